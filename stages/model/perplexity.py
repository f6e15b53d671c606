"""Perplexity on a split's tokens."""

from __future__ import annotations

import math

import torch
from torch.nn import functional
from transformers import PreTrainedModel

from trainwright.stages.model.tokens import Split


@torch.no_grad()
def perplexity(
    model: PreTrainedModel, split: Split, *, length: int, limit: int, rows: int = 16
) -> float:
    """exp of the mean NLL per token over the split's first `limit` tokens, in windows of `length`."""
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
    return math.exp(total / tokens)
