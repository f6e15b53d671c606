"""Windows of the packed token stream, by number."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from trainwright.stages.contract import DataError
from trainwright.stages.model.tokens import Split
from trainwright.stages.pretrain.order import Indices, samples_of, share_of


class Windows:
    """A split cut into windows of `length` predictions; a window reads length + 1 tokens.

    A window's last token is the next one's first, so every token but the first is predicted once an
    epoch. Documents stand one after the other, each between its beginning and end tokens.
    """

    def __init__(self, corpus: Path, split: str, length: int) -> None:
        self._tokens = Split(corpus, split)
        self._length = length
        self.count = (len(self._tokens) - 1) // length
        if self.count < 1:
            raise DataError(
                f"the split {split!r} has {len(self._tokens)} tokens, fewer than one sequence of "
                f"{length}: add text, or lower pretrain.sequence_length"
            )

    def read(self, indices: Indices) -> torch.Tensor:
        """The windows' tokens, int64 [len(indices), length + 1]."""
        starts = [int(index) * self._length for index in indices]
        rows = [self._tokens.read(start, start + self._length + 1) for start in starts]
        return torch.from_numpy(np.stack(rows))


class Loader:
    """A rank's part of the training batches; its whole state is the step's number."""

    def __init__(self, windows: Windows, *, batch: int, seed: int, rank: int, ranks: int) -> None:
        self._windows, self._batch, self._seed = windows, batch, seed
        self._rank, self._ranks = rank, ranks

    def batch(self, step: int) -> torch.Tensor:
        """This rank's sequences of a step, int64 [batch / ranks, length + 1]."""
        samples = samples_of(step, batch=self._batch, count=self._windows.count, seed=self._seed)
        return self._windows.read(share_of(samples, self._rank, self._ranks))
