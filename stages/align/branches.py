"""A question with both of its answers in one row: the question is read once, the answers apart.

Each answer sees the question and itself at the positions that it would have alone, so its reward is
the one that it has alone; the question's part of the work is not done twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from trainwright.stages.instruct.packing import pack

_ROW = 256
"""Tokens that a row is filled up to; a longer group has a row of its own."""


@dataclass(frozen=True)
class Group:
    """A question and its answers, each closed with the end token."""

    prompt: list[int]
    answers: list[list[int]]

    def __len__(self) -> int:
        return len(self.prompt) + sum(map(len, self.answers))


@dataclass(frozen=True)
class Branches:
    """Groups side by side. All but `ends` are int64 [rows, tokens].

    `groups` numbers the groups of a row (-1 for padding), `branch` is 0 for the question and counts
    the answers from 1. `ends` [n, 2] has (row, place) of the last token of every answer, in the
    order of the groups and of their answers.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    groups: torch.Tensor
    branch: torch.Tensor
    ends: torch.Tensor

    def attention(self) -> torch.Tensor:
        """Bool [rows, 1, tokens, tokens]: earlier tokens of the same answer, and the question's."""
        length = self.ids.shape[1]
        same = self.groups[:, :, None] == self.groups[:, None, :]
        reach = (self.branch[:, :, None] == self.branch[:, None, :]) | (self.branch == 0)[:, None]
        causal = torch.ones(length, length, dtype=torch.bool, device=self.ids.device).tril()
        return (same & reach & causal)[:, None]


def lay_side_by_side(groups: Sequence[Group], device: torch.device) -> Branches:
    """Groups as rows, in order."""
    longest = max(_ROW, *(len(group) for group in groups))
    rows = pack([len(group) for group in groups], range(len(groups)), longest)
    shape = (len(rows), max(sum(len(groups[i]) for i in row) for row in rows))
    out = Branches(
        ids=torch.zeros(shape, dtype=torch.int64),
        positions=torch.zeros(shape, dtype=torch.int64),
        groups=torch.full(shape, -1),
        branch=torch.zeros(shape, dtype=torch.int64),
        ends=torch.empty(0, 2, dtype=torch.int64),
    )
    ends: list[tuple[int, int]] = []
    for number, row in enumerate(rows):
        at = 0
        for index, item in enumerate(row):
            at = _fill(out, number, index, at, groups[item], ends)
    parts = (out.ids, out.positions, out.groups, out.branch, torch.tensor(ends))
    return Branches(*(part.to(device) for part in parts))


def _fill(
    out: Branches, row: int, index: int, at: int, group: Group, ends: list[tuple[int, int]]
) -> int:
    """Write a group from place `at` on; the place behind it."""
    pieces = [group.prompt, *group.answers]
    for branch, piece in enumerate(pieces):
        stop = at + len(piece)
        first = 0 if branch == 0 else len(group.prompt)
        out.ids[row, at:stop] = torch.tensor(piece)
        out.positions[row, at:stop] = torch.arange(first, first + len(piece))
        out.groups[row, at:stop] = index
        out.branch[row, at:stop] = branch
        if branch:
            ends.append((row, stop - 1))
        at = stop
    return at


def branch_rewards(model: PreTrainedModel, branches: Branches) -> torch.Tensor:
    """The reward of every answer, read at its last token; float [n], in the order of `ends`."""
    hidden = model.base_model(
        input_ids=branches.ids,
        position_ids=branches.positions,
        attention_mask=branches.attention(),
        use_cache=False,
    ).last_hidden_state
    return model.score(hidden[branches.ends[:, 0], branches.ends[:, 1]])[:, 0]
