"""Keys see through Unicode's many spellings; n-grams of a batch are those of its texts."""

import numpy as np
import pytest

from trainwright.stages.corpus.text import WordHasher, content_id, words


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("caf\u00e9", "cafe\u0301"),
        ("\uff21\uff22\uff23 1", "ABC 1"),
        ("zero\u200bwidth", "zerowidth"),
        ("soft\u00adhyphen", "softhyphen"),
        ("\ufeffbom ", "bom"),
        ("\u6771\u4eac\u30bf\u30ef\u30fc", "\u6771\u4eac\uff80\uff9c\uff70"),
    ],
)
def test_spellings_of_one_text_have_one_content_id(a: str, b: str) -> None:
    assert content_id(a) == content_id(b)


def test_other_texts_have_other_content_ids() -> None:
    assert len({content_id(t) for t in ("a", "b", "A", "a b", "ab")}) == 5


def test_words_of_a_script_without_spaces_are_its_characters() -> None:
    assert words("I like 東京タワー, yes_no!") == [
        *("i", "like", "東", "京", "タ", "ワ", "ー", "yes", "no")
    ]


def test_ngrams_of_a_batch_are_those_of_each_text_alone() -> None:
    texts = ["a b c d e f g", "", "a b", "x y z", "a b c d e", "q " * 40]
    tokens = [words(text) for text in texts]
    flat, starts = WordHasher().ngrams(tokens, 3)
    pieces = np.split(flat, starts[1:])
    assert [len(p) for p in pieces] == [5, 1, 1, 1, 3, 38]
    for piece, text in zip(pieces, tokens, strict=True):
        assert np.array_equal(piece, WordHasher().ngrams([text], 3)[0])


def test_ngrams_are_equal_exactly_where_the_words_are() -> None:
    hasher = WordHasher()
    a = hasher.ngram_set(words("the cat sat on the mat"), 3)
    b = hasher.ngram_set(words("a cat sat on the mat"), 3)
    assert len(a) == len(b) == 4
    assert len(np.intersect1d(a, b)) == 3


def test_the_order_of_words_counts() -> None:
    hasher = WordHasher()
    assert (
        len(np.intersect1d(hasher.ngram_set(["a", "b"], 2), hasher.ngram_set(["b", "a"], 2))) == 0
    )
