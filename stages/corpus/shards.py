"""Token shards: raw ids in a `.bin`, document starts in an `.idx`, both little-endian, for memory maps."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """uint16 if every id fits, else uint32; little-endian."""
    return np.dtype("<u2" if vocab_size <= 65536 else "<u4")


@dataclass
class Split:
    """What the shards of one split hold."""

    shards: list[dict[str, Any]] = field(default_factory=list)
    tokens: int = 0
    documents: int = 0
    bytes: int = 0

    def as_json(self) -> dict[str, Any]:
        """As `corpus.json` has it."""
        return {
            "shards": self.shards,
            "tokens": self.tokens,
            "documents": self.documents,
            "bytes": self.bytes,
        }


class ShardWriter:
    """Writes documents of one split in the order given; a shard closes at `shard_tokens` tokens.

    A document is never cut, so a shard ends with the document that reaches its size.
    """

    def __init__(
        self, folder: Path, split: str, vocab_size: int, bos: int, eos: int, shard_tokens: int
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._split, self._limit = folder, split, shard_tokens
        self._dtype = token_dtype(vocab_size)
        self._bos, self._eos = bos, eos
        self._parts: list[npt.NDArray[Any]] = []
        self._starts = [0]
        self.result = Split()

    def add(self, ids: list[int], size: int) -> tuple[int, int]:
        """Append a document of `size` UTF-8 bytes; returns its shard's number and first token."""
        place = (len(self.result.shards), self._starts[-1])
        self._parts.append(np.array([self._bos, *ids, self._eos], dtype=self._dtype))
        self._starts.append(self._starts[-1] + len(ids) + 2)
        self.result.bytes += size
        if self._starts[-1] >= self._limit:
            self._flush()
        return place

    def close(self) -> Split:
        """Write what is pending. A split without documents has one empty shard."""
        if len(self._starts) > 1 or not self.result.shards:
            self._flush()
        return self.result

    def _flush(self) -> None:
        name = f"{self._split}-{len(self.result.shards):05d}"
        tokens = np.concatenate(self._parts) if self._parts else np.array([], self._dtype)
        tokens.tofile(self._folder / f"{name}.bin")
        np.array(self._starts, dtype="<i8").tofile(self._folder / f"{name}.idx")
        documents = len(self._starts) - 1
        self.result.shards.append(
            {"file": f"{name}.bin", "tokens": len(tokens), "documents": documents}
        )
        self.result.tokens += len(tokens)
        self.result.documents += documents
        self._parts, self._starts = [], [0]
