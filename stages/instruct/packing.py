"""Chats packed into rows, and the order in which they are learnt: pure functions of (seed, epoch)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from trainwright.stages.instruct.chat import Rendered


@dataclass(frozen=True)
class PackedBatch:
    """Rows of chats side by side.

    `ids`, `positions` (restarting with each chat), `chats` (number of the chat in its row, -1 for
    padding) and `targets` (the next token where the assistant says it, else -100) are int64 of shape
    [rows, tokens].
    """

    ids: torch.Tensor
    positions: torch.Tensor
    chats: torch.Tensor
    targets: torch.Tensor

    @property
    def answer_tokens(self) -> int:
        """How many tokens bear the loss."""
        return int((self.targets != -100).sum())

    def attention(self) -> torch.Tensor:
        """Who may look at whom, bool [rows, 1, tokens, tokens]: earlier tokens of the same chat.

        Padding sees itself, since a softmax over nothing is not a number.
        """
        length = self.ids.shape[1]
        same = self.chats[:, :, None] == self.chats[:, None, :]
        causal = torch.ones(length, length, dtype=torch.bool, device=self.ids.device).tril()
        return (same & causal)[:, None]

    def rows(self, start: int, stop: int) -> PackedBatch:
        """Rows `start` to `stop`."""
        parts = (self.ids, self.positions, self.chats, self.targets)
        return PackedBatch(*(part[start:stop] for part in parts))

    def to(self, device: torch.device) -> PackedBatch:
        """A copy on a device."""
        parts = (self.ids, self.positions, self.chats, self.targets)
        return PackedBatch(*(part.to(device) for part in parts))


def permutation(count: int, seed: int, epoch: int) -> list[int]:
    """The order of `count` items in an epoch."""
    return [int(i) for i in np.random.default_rng([seed, epoch]).permutation(count)]


def pack(lengths: Sequence[int], order: Sequence[int], row_tokens: int) -> list[list[int]]:
    """Items in order, filled into rows of at most `row_tokens`; a row closes when the next won't fit."""
    rows: list[list[int]] = []
    room = 0
    for item in order:
        if not rows or lengths[item] > room:
            rows.append([])
            room = row_tokens
        rows[-1].append(item)
        room -= lengths[item]
    return rows


class PackedOrder:
    """The batch of every step, a pure function of (chats, seed, step)."""

    def __init__(
        self, chats: Sequence[Rendered], *, row_tokens: int, batch_rows: int, seed: int
    ) -> None:
        self._chats = chats
        self._row_tokens = row_tokens
        self._batch_rows = batch_rows
        self._seed = seed
        self._rows: list[list[int]] = []
        self._epochs = 0

    def batch(self, step: int) -> PackedBatch:
        """The batch of a step, counted from 0. Rows left over in an epoch open the next one's."""
        stop = (step + 1) * self._batch_rows
        while len(self._rows) < stop:
            self._rows.extend(self._epoch_rows(self._epochs))
            self._epochs += 1
        return collate(
            [[self._chats[i] for i in row] for row in self._rows[stop - self._batch_rows : stop]]
        )

    def _epoch_rows(self, epoch: int) -> list[list[int]]:
        lengths = [len(chat.ids) for chat in self._chats]
        order = permutation(len(self._chats), self._seed, epoch)
        return pack(lengths, order, self._row_tokens)


def collate(rows: Sequence[Sequence[Rendered]]) -> PackedBatch:
    """Rows of chats as tensors, padded on the right to the longest row."""
    length = max(sum(len(chat.ids) for chat in row) for row in rows)
    shape = (len(rows), length)
    batch = PackedBatch(
        ids=torch.zeros(shape, dtype=torch.int64),
        positions=torch.zeros(shape, dtype=torch.int64),
        chats=torch.full(shape, -1),
        targets=torch.full(shape, -100),
    )
    for number, row in enumerate(rows):
        _fill(batch, number, row)
    return batch


def _fill(batch: PackedBatch, number: int, row: Sequence[Rendered]) -> None:
    start = 0
    for index, chat in enumerate(row):
        stop = start + len(chat.ids)
        ids = torch.tensor(chat.ids)
        batch.ids[number, start:stop] = ids
        batch.positions[number, start:stop] = torch.arange(stop - start)
        batch.chats[number, start:stop] = index
        said = torch.tensor(chat.answer)
        batch.targets[number, start : stop - 1] = torch.where(said[1:], ids[1:], -100)
        start = stop
