"""Near duplicates: MinHash signatures, LSH bands, and a check of the true Jaccard similarity.

Broder 1997, "On the resemblance and containment of documents"; a pair of similarity s becomes a
candidate with probability 1 - (1 - s^r)^b for b bands of r rows.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trainwright.stages.corpus.text import Hashes, Offsets, mix


class MinHasher:
    """Band keys of sets of 64-bit hashes."""

    def __init__(self, num_hashes: int, bands: int) -> None:
        numbers = np.arange(1, 2 * num_hashes + 1, dtype=np.uint64)
        constants = mix(numbers * np.uint64(0x9E3779B97F4A7C15))
        self._factors = constants[:num_hashes] | np.uint64(1)
        self._offsets = constants[num_hashes:]
        self._bands = bands

    def bands(self, hashes: Hashes, starts: Offsets) -> Hashes:
        """One key a band for each set, shape (sets, bands).

        The sets lie one after the other in `hashes`, each from its start to the next one's; none is
        empty. Repeated elements change nothing.
        """
        shape = (len(starts), self._bands, len(self._factors) // self._bands)
        rows = self._signatures(hashes, starts).reshape(shape)
        keys = np.zeros(rows.shape[:2], dtype=np.uint64)
        for row in range(rows.shape[2]):
            keys = mix(keys * np.uint64(0x9E3779B97F4A7C15) + rows[:, :, row])
        return keys

    def _signatures(self, hashes: Hashes, starts: Offsets) -> Hashes:
        out = np.empty((len(starts), len(self._factors)), dtype=np.uint64)
        if not len(starts):
            return out
        for index, (factor, offset) in enumerate(zip(self._factors, self._offsets, strict=True)):
            # The high half: the low bits of a multiplicative hash hardly mix.
            hashed = (hashes * factor + offset) >> np.uint64(32)
            out[:, index] = np.minimum.reduceat(hashed, starts)
        return out


def jaccard(a: Hashes, b: Hashes) -> float:
    """Size of the intersection over that of the union, of sorted distinct hashes."""
    shared = len(np.intersect1d(a, b, assume_unique=True))
    return shared / max(1, len(a) + len(b) - shared)


def near_duplicates(
    keys: Hashes, shingles: Callable[[int], Hashes], threshold: float
) -> dict[int, tuple[int, float]]:
    """Which rows are near duplicates of which earlier row, and their true Jaccard similarity.

    Rows are in order of preference: a row survives unless an earlier survivor that shares a band has
    at least `threshold` similarity; its survivor is the first such. `shingles(row)` is asked only
    for rows that share a band with another.
    """
    crowded = crowded_bands(keys)
    survivors: dict[tuple[int, int], list[int]] = {}
    found: dict[int, tuple[int, float]] = {}
    for row in sorted(crowded):
        places = [(band, int(keys[row, band])) for band in crowded[row]]
        rivals = sorted({other for place in places for other in survivors.get(place, ())})
        match = _first_match(row, rivals, shingles, threshold)
        if match is not None:
            found[row] = match
            continue
        for place in places:
            survivors.setdefault(place, []).append(row)
    return found


def _first_match(
    row: int, rivals: list[int], shingles: Callable[[int], Hashes], threshold: float
) -> tuple[int, float] | None:
    for other in rivals:
        similarity = jaccard(shingles(row), shingles(other))
        if similarity >= threshold:
            return other, similarity
    return None


def crowded_bands(keys: Hashes) -> dict[int, list[int]]:
    """For each row, the bands whose key another row has too."""
    crowded: dict[int, list[int]] = {}
    for band in range(keys.shape[1] if len(keys) else 0):
        _, inverse, counts = np.unique(keys[:, band], return_inverse=True, return_counts=True)
        for row in np.flatnonzero(counts[inverse] > 1):
            crowded.setdefault(int(row), []).append(band)
    return crowded
