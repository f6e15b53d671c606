"""Shares of held-out n-grams are counted right, whatever surrounds a text in its batch."""

from trainwright.stages.corpus.contamination import Contamination

HELD = ["one two three four five six", "short text"]


def test_the_share_is_that_of_the_texts_ngrams() -> None:
    checker = Contamination.of(HELD, 4)
    assert checker.shares(
        [
            "one two three four five six",
            "zero two three four five seven",
            "nothing of the kind at all",
            "",
            "ONE, two; three (four)!",
        ]
    ) == [1.0, 1 / 3, 0.0, 0.0, 1.0]


def test_a_held_out_text_shorter_than_an_ngram_taints_nothing() -> None:
    assert Contamination.of(HELD, 4).shares(["short text", "a short text here"]) == [0.0, 0.0]


def test_nothing_is_contaminated_by_nothing() -> None:
    assert Contamination.of([], 4).shares(["one two three four"]) == [0.0]
    assert Contamination.of(HELD, 4).shares([]) == []
