"""Answers drawn from the policy, as tensors that policy, reference and values are read on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from trainwright.stages.align.estimators import length_mask
from trainwright.stages.model.sampler import pad_left, positions_of


@dataclass(frozen=True)
class Answers:
    """Prompts padded on the left, answers on the right, side by side.

    `ids` int64 [n, prompt + answer], `real` int64 of the same shape (1 where a token is real),
    `lengths` int64 [n] of the answers, `width` the longest answer.
    """

    ids: torch.Tensor
    real: torch.Tensor
    lengths: torch.Tensor
    width: int

    @property
    def mask(self) -> torch.Tensor:
        """Bool [n, width]: the answers' tokens."""
        return length_mask(self.lengths, self.width)

    @property
    def tokens(self) -> torch.Tensor:
        """The answers' ids, [n, width]."""
        return self.ids[:, -self.width :]

    def rows(self, start: int, stop: int) -> Answers:
        """Rows `start` to `stop`, as wide as the whole."""
        return self.take(torch.arange(start, min(stop, len(self.ids)), device=self.ids.device))

    def take(self, rows: torch.Tensor) -> Answers:
        """The given rows."""
        return Answers(self.ids[rows], self.real[rows], self.lengths[rows], self.width)


def lay_out(
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    *,
    pad_id: int,
    device: torch.device,
) -> Answers:
    """Prompts and answers as tensors. What is padding is told by lengths; its id says nothing."""
    ids, real = pad_left(prompts, pad_id)
    lengths = torch.tensor([len(answer) for answer in answers])
    width = int(lengths.max())
    tail = torch.full((len(answers), width), pad_id)
    for row, answer in enumerate(answers):
        tail[row, : len(answer)] = torch.tensor(list(answer))
    real = torch.cat([real, length_mask(lengths, width).long()], 1)
    ids = torch.cat([ids, tail], 1)
    return Answers(ids.to(device), real.to(device), lengths.to(device), width)


def _inputs(answers: Answers) -> dict[str, torch.Tensor]:
    return {
        "input_ids": answers.ids,
        "attention_mask": answers.real,
        "position_ids": positions_of(answers.real),
    }


def answer_logits(
    model: PreTrainedModel, answers: Answers, temperature: float = 1.0
) -> torch.Tensor:
    """What the model says before each answer token, divided by the temperature: [n, width, vocabulary]."""
    out = model(**_inputs(answers), use_cache=False, logits_to_keep=answers.width + 1)
    return out.logits[:, :-1] / temperature


def logprobs_of(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Log-probability of each token, [n, width]."""
    return logits.log_softmax(-1).gather(-1, tokens[..., None])[..., 0]


def answer_values(model: PreTrainedModel, answers: Answers) -> torch.Tensor:
    """The value model's expectation before each answer token, [n, width].

    The value model is a sequence classifier of one label, read at every position.
    """
    hidden = model.base_model(**_inputs(answers), use_cache=False).last_hidden_state
    return model.score(hidden[:, -answers.width - 1 : -1])[..., 0]
