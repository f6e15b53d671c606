"""n-gram models of the training text: what a trained model must be better than.

Counted over the whole train split as one stream of tokens, documents with their beginning and end, as
the trained model reads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trainwright.stages.contract import DataError

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

CHUNK = 1 << 22
"""Tokens counted at a time; memory is that of a chunk and of the distinct pairs."""


@dataclass(frozen=True)
class Counts:
    """How often each token, and each pair of neighbours, stands in a text."""

    tokens: Ints
    """[vocabulary]"""
    pairs: Ints
    """Distinct pairs as first * vocabulary + second, ascending."""
    pair_counts: Ints

    @property
    def vocabulary(self) -> int:
        """Number of tokens there are."""
        return len(self.tokens)


def count(split: Any, vocabulary: int, chunk: int = CHUNK) -> Counts:
    """Count a split (`stages.model.tokens.Split`, or anything with a length and `read`)."""
    tokens = np.zeros(vocabulary, np.int64)
    pairs, pair_counts = np.zeros(0, np.int64), np.zeros(0, np.int64)
    for ids, own in _chunks(split, chunk):
        if ids.max() >= vocabulary:
            raise DataError(
                f"the train split has the token {ids.max()}, its vocabulary ends at "
                f"{vocabulary - 1}: build the corpus again"
            )
        tokens += np.bincount(ids[own:], minlength=vocabulary)
        found, found_counts = np.unique(ids[:-1] * vocabulary + ids[1:], return_counts=True)
        pairs, pair_counts = _merge(pairs, pair_counts, found, found_counts)
    return Counts(tokens, pairs, pair_counts)


def _chunks(split: Any, chunk: int) -> Iterator[tuple[Ints, int]]:
    """Pieces of the split, each begun by the last token before it; and where its own tokens begin."""
    for start in range(0, len(split), chunk):
        before = max(0, start - 1)
        yield split.read(before, min(start + chunk, len(split))), start - before


def _merge(a: Ints, a_counts: Ints, b: Ints, b_counts: Ints) -> tuple[Ints, Ints]:
    if not len(a):
        return b, b_counts
    keys, where = np.unique(np.concatenate([a, b]), return_inverse=True)
    counts = np.zeros(len(keys), np.int64)
    np.add.at(counts, where, np.concatenate([a_counts, b_counts]))
    return keys, counts


class Unigram:
    """Add-one (Laplace) estimate: P(w) = (c(w) + 1) / (N + V)."""

    def __init__(self, counts: Counts) -> None:
        self._log = np.log((counts.tokens + 1.0) / (counts.tokens.sum() + counts.vocabulary))

    def log_probability(self, words: Ints) -> Floats:
        """ln P(w)."""
        return np.asarray(self._log[words])


class KneserNeyBigram:
    """Interpolated Kneser-Ney of order 2 (Kneser and Ney 1995; Chen and Goodman 1999, section 2.7).

    P(w | v) = max(c(vw) - D, 0) / c(v.) + D N1+(v.) / c(v.) Pc(w), where the continuation probability
    Pc is estimated from N1+(.w), the number of distinct tokens before w, with its own discount and
    interpolated with 1 / V, so that no token is impossible. D = n1 / (n1 + 2 n2) (Ney, Essen and
    Kneser 1994), n1 and n2 being how many counts are 1 and 2. After a token never seen, Pc alone.
    """

    def __init__(self, counts: Counts) -> None:
        size = self._vocabulary = counts.vocabulary
        first, second = counts.pairs // size, counts.pairs % size
        self.discount = discount(counts.pair_counts)
        self._pairs = counts.pairs
        self._discounted = np.maximum(counts.pair_counts - self.discount, 0.0)
        # Weights make bincount a float: exact up to 2**53.
        self._seen = np.bincount(first, counts.pair_counts, size)
        self._followers = np.bincount(first, minlength=size)
        self.continuation = _continuation(np.bincount(second, minlength=size))

    def probability(self, previous: Ints, words: Ints) -> Floats:
        """P(w | v), elementwise."""
        seen = self._seen[previous]
        divisor = np.maximum(seen, 1.0)
        weight = np.where(seen > 0, self.discount * self._followers[previous] / divisor, 1.0)
        return np.asarray(self._own(previous, words) / divisor + weight * self.continuation[words])

    def log_probability(self, previous: Ints, words: Ints) -> Floats:
        """ln P(w | v), elementwise."""
        return np.log(self.probability(previous, words))

    def _own(self, previous: Ints, words: Ints) -> Floats:
        """max(c(vw) - D, 0)."""
        keys = previous * self._vocabulary + words
        places = np.minimum(np.searchsorted(self._pairs, keys), len(self._pairs) - 1)
        return np.where(self._pairs[places] == keys, self._discounted[places], 0.0)


def _continuation(before: Ints) -> Floats:
    """Pc(w) from N1+(.w): discounted, the rest spread evenly over the vocabulary."""
    cut, total = discount(before[before > 0]), before.sum()
    rest = cut * np.count_nonzero(before) / total
    return np.asarray(np.maximum(before - cut, 0.0) / total + rest / len(before))


def discount(counts: Ints) -> float:
    """n1 / (n1 + 2 n2); one half where that would be 0 and leave nothing, or 1 and keep nothing."""
    once, twice = np.count_nonzero(counts == 1), np.count_nonzero(counts == 2)
    return float(once / (once + 2 * twice)) if once and twice else 0.5
