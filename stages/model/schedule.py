"""The learning rate as a pure function of the step."""

from __future__ import annotations

import math

import torch


def warmup_cosine(step: int, *, steps: int, warmup: int, floor: float = 0.1) -> float:
    """The fraction of the peak rate at `step` (from 0): linear warmup, then cosine down to `floor`.

    The cosine is that of Loshchilov and Hutter 2016 (arXiv:1608.03983), one period.
    """
    if step < warmup:
        return (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of every group."""
    for group in optimizer.param_groups:
        group["lr"] = rate
