"""Negative log-likelihood and perplexity on a split's tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.nn import functional
from transformers import PreTrainedModel

from trainwright.stages.model.tokens import Split


@dataclass(frozen=True)
class Likelihood:
    """What a model made of the tokens it predicted."""

    nats: float
    """Negative log-likelihood, summed over the tokens."""
    tokens: int

    @property
    def loss(self) -> float:
        """Mean NLL a token, in nats."""
        return self.nats / self.tokens

    @property
    def perplexity(self) -> float:
        """exp of the mean NLL; infinite where a float cannot hold it."""
        try:
            return math.exp(self.loss)
        except OverflowError:
            return math.inf


@torch.no_grad()
def likelihood(
    model: PreTrainedModel, split: Split, *, length: int, limit: int, rows: int = 16
) -> Likelihood:
    """NLL over the split's first `limit` tokens, in windows of `length` (`Split.windows`)."""
    device = next(model.parameters()).device
    total, tokens = 0.0, 0
    for window in split.windows(length, limit, rows):
        ids = window.to(device)
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits
        targets = ids[:, 1:].flatten()
        total += float(
            functional.cross_entropy(logits.flatten(0, 1).float(), targets, reduction="sum")
        )
        tokens += targets.numel()
    return Likelihood(total, tokens)


def perplexity(
    model: PreTrainedModel, split: Split, *, length: int, limit: int, rows: int = 16
) -> float:
    """exp of the mean NLL per token over the split's first `limit` tokens, in windows of `length`."""
    return likelihood(model, split, length=length, limit=limit, rows=rows).perplexity
