"""The global order of samples: a pure function of (seed, epoch, step), for any number of ranks.

A sample is a window of the packed token stream. Each epoch visits every window once, in the order of a
keyed permutation that needs no memory: a Feistel network on the smallest even number of bits that holds
the count, with cycle walking back into it (Black and Rogaway 2002, "Ciphers with arbitrary finite
domains"). So the loader's whole state is the step's number.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.uint64]

_ROUNDS = 4


def permute(index: Indices, count: int, key: int) -> Indices:
    """Where a keyed permutation of `range(count)` sends each index; uint64, same shape."""
    half_bits = max(1, ((count - 1).bit_length() + 1) // 2)
    out = _feistel(index, half_bits, key)
    while (outside := out >= np.uint64(count)).any():
        out[outside] = _feistel(out[outside], half_bits, key)
    return out


def _feistel(index: Indices, half_bits: int, key: int) -> Indices:
    mask = np.uint64((1 << half_bits) - 1)
    left, right = index >> np.uint64(half_bits), index & mask
    for number in range(_ROUNDS):
        left, right = right, left ^ (_mix(right, key, number) & mask)
    return (left << np.uint64(half_bits)) | right


def _mix(value: Indices, key: int, number: int) -> Indices:
    """The finalizer of SplitMix64 (Steele, Lea and Flood 2014) over value, key and round."""
    # Overflow is wanted: the arithmetic is modulo 2^64.
    with np.errstate(over="ignore"):
        x = value + np.uint64((key * 0x9E3779B97F4A7C15 + number * 0xD1B54A32D192ED03) % (1 << 64))
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def samples_of(step: int, *, batch: int, count: int, seed: int) -> Indices:
    """The windows of a step's global batch, uint64 [batch]; steps go on over epochs."""
    position = np.arange(step * batch, (step + 1) * batch, dtype=np.uint64)
    epoch, place = position // np.uint64(count), position % np.uint64(count)
    out = np.empty(batch, dtype=np.uint64)
    for number in np.unique(epoch):
        chosen = epoch == number
        out[chosen] = permute(place[chosen], count, seed * 1_000_003 + int(number))
    return out


def share_of(samples: Indices, rank: int, ranks: int) -> Indices:
    """A rank's part of a step: every `ranks`-th sample, so that the global order is the same."""
    return samples[rank::ranks]
