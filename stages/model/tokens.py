"""Token shards of a corpus, memory-mapped, as rows to learn from and windows to measure on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainwright.stages.contract import DataError

Array = np.ndarray[Any, Any]


class Split:
    """The tokens of a split (`train`, `heldout`), shard after shard."""

    def __init__(self, corpus: Path, name: str) -> None:
        meta = _read_meta(corpus, name)
        dtype = np.dtype(meta["dtype"]).newbyteorder("<")
        said = meta["splits"][name]
        self.vocabulary = int(meta["vocab_size"])
        self.bytes = int(said.get("bytes", 0))
        """UTF-8 bytes of the documents' text."""
        self._shards: list[Array] = []
        for shard in said["shards"]:
            if shard["tokens"]:
                self._shards.append(_map_shard(corpus / "shards" / shard["file"], dtype, shard))
        self._ends = np.cumsum([len(shard) for shard in self._shards])
        if not self._shards or self._ends[-1] < 2:
            raise DataError(f"the corpus has no tokens in its split {name!r}")

    def __len__(self) -> int:
        return int(self._ends[-1])

    def read(self, start: int, stop: int) -> Array:
        """Tokens `start` to `stop` of the whole split, int64."""
        parts = []
        first = 0
        for shard, end in zip(self._shards, self._ends, strict=True):
            if start < end and stop > first:
                parts.append(shard[max(0, start - first) : stop - first])
            first = int(end)
        return np.concatenate(parts).astype(np.int64)

    def rows(self, seed: int, step: int, count: int, length: int) -> torch.Tensor:
        """`count` rows of `length` tokens at random places: a pure function of (seed, step)."""
        length = min(length, len(self))
        places = np.random.default_rng([seed, step]).integers(0, len(self) - length + 1, count)
        return torch.from_numpy(np.stack([self.read(int(p), int(p) + length) for p in places]))

    def windows(self, length: int, limit: int, rows: int) -> Iterator[torch.Tensor]:
        """The first `limit` tokens as windows, [<= rows, length + 1] each.

        A window's last token is the next one's first: every token but the very first is predicted
        once, from at most `length` tokens before it. What is left over at the end is left out.
        """
        limit = min(limit, len(self))
        length = min(length, limit - 1)
        starts = list(range(0, limit - length, length))
        for at in range(0, len(starts), rows):
            group = [self.read(s, s + length + 1) for s in starts[at : at + rows]]
            yield torch.from_numpy(np.stack(group))


def _read_meta(corpus: Path, split: str) -> dict[str, Any]:
    try:
        meta: dict[str, Any] = json.loads((corpus / "corpus.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"corpus.json cannot be read: {error}; build the corpus again") from None
    missing = [key for key in ("dtype", "vocab_size", "splits") if key not in meta]
    if missing or split not in meta["splits"]:
        lacks = missing[0] if missing else f"splits.{split}"
        raise DataError(f"corpus.json has no {lacks!r}: it is not a corpus; build the corpus again")
    return meta


def _map_shard(path: Path, dtype: np.dtype[Any], said: dict[str, Any]) -> Array:
    if not path.is_file():
        raise DataError(f"shards/{path.name} is missing: build the corpus again")
    size = path.stat().st_size
    if size != said["tokens"] * dtype.itemsize:
        raise DataError(
            f"shards/{path.name} has {size / dtype.itemsize:g} tokens, corpus.json says "
            f"{said['tokens']}: build the corpus again"
        )
    return np.memmap(path, dtype=dtype, mode="r")
