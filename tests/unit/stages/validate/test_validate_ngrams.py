from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict

import numpy as np
import pytest

from trainwright.stages.contract import DataError
from trainwright.stages.validate.ngrams import KneserNeyBigram, Unigram, count, discount


class Stream:
    """A split in memory."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = np.array(ids, np.int64)

    def __len__(self) -> int:
        return len(self.ids)

    def read(self, start: int, stop: int) -> np.ndarray:
        return self.ids[start:stop]


def text(size: int = 600, vocabulary: int = 23, seed: int = 0) -> list[int]:
    """Zipf-like tokens; the last ones of the vocabulary never occur."""
    rng = np.random.default_rng(seed)
    return np.minimum(rng.zipf(1.5, size) - 1, vocabulary - 4).tolist()


def plain_kneser_ney(ids: list[int], vocabulary: int):
    """Interpolated Kneser-Ney bigram with dicts, straight from the formula."""
    pairs = Counter(itertools.pairwise(ids))

    def cut(counts: list[int]) -> float:
        return counts.count(1) / (counts.count(1) + 2 * counts.count(2))

    after, before = defaultdict(set), defaultdict(set)
    for v, w in pairs:
        after[v].add(w)
        before[w].add(v)
    d, d1 = cut(list(pairs.values())), cut([len(s) for s in before.values()])
    types = len(pairs)

    def probability(v: int, w: int) -> float:
        lower = max(len(before[w]) - d1, 0) / types if w in before else 0.0
        lower += d1 * len([x for x in before if before[x]]) / types / vocabulary
        total = sum(n for (a, _), n in pairs.items() if a == v)
        if not total:
            return lower
        own = max(pairs.get((v, w), 0) - d, 0) / total
        return own + d * len(after[v]) / total * lower

    return probability


def test_kneser_ney_is_that_of_a_plain_implementation():
    ids, vocabulary = text(), 23
    ours, plain = KneserNeyBigram(count(Stream(ids), vocabulary)), plain_kneser_ney(ids, vocabulary)
    v, w = (grid.ravel() for grid in np.meshgrid(range(vocabulary), range(vocabulary)))
    expected = [plain(int(a), int(b)) for a, b in zip(v, w, strict=True)]
    np.testing.assert_allclose(ours.probability(v, w), expected, rtol=1e-12)


@pytest.mark.parametrize("ids", [text(), text(5000, seed=1), [0, 1, 0, 1, 0, 1, 2], [3, 3]])
def test_probabilities_after_any_token_sum_to_one_and_none_is_zero(ids):
    vocabulary = 23
    model = KneserNeyBigram(count(Stream(ids), vocabulary))
    for v in range(vocabulary):
        row = model.probability(np.full(vocabulary, v), np.arange(vocabulary))
        assert row.min() > 0
        assert row.sum() == pytest.approx(1, abs=1e-12)


def test_unigram_is_add_one_and_sums_to_one():
    ids = [0, 0, 0, 2]
    found = np.exp(Unigram(count(Stream(ids), 4)).log_probability(np.arange(4)))
    np.testing.assert_allclose(found, [4 / 8, 1 / 8, 2 / 8, 1 / 8])


def test_a_bigram_model_of_a_random_text_is_not_better_than_its_entropy():
    rng = np.random.default_rng(5)
    train, heldout = rng.integers(0, 8, 200_000), rng.integers(0, 8, 20_001)
    model = KneserNeyBigram(count(Stream(train), 8))
    loss = -model.log_probability(heldout[:-1], heldout[1:]).mean()
    assert loss == pytest.approx(math.log(8), abs=2e-3)


@pytest.mark.parametrize("chunk", [1, 7, 599, 600, 10_000])
def test_counts_do_not_hang_on_the_chunks(chunk):
    ids = text()
    counts = count(Stream(ids), 23, chunk=chunk)
    pairs = Counter(itertools.pairwise(ids))
    assert counts.tokens.tolist() == [ids.count(w) for w in range(23)]
    found = zip(counts.pairs.tolist(), counts.pair_counts.tolist(), strict=True)
    assert {(key // 23, key % 23): n for key, n in found} == pairs


def test_the_discount_is_the_closed_form_and_never_keeps_all_or_nothing():
    assert discount(np.array([1, 1, 1, 2, 5])) == 3 / 5
    assert discount(np.array([2, 2, 5])) == 0.5
    assert discount(np.array([1, 1, 5])) == 0.5


def test_a_token_beyond_the_vocabulary_is_refused():
    with pytest.raises(DataError, match="token 9, its vocabulary ends at 4"):
        count(Stream([0, 9]), 5)
