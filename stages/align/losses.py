"""Losses of alignment. Sums over tokens or pairs: the caller divides by the whole step's count.

So a step's gradient does not depend on how it is cut into forward passes.
"""

from __future__ import annotations

import torch
from torch.nn import functional

Tensor = torch.Tensor


def bradley_terry(chosen: Tensor, rejected: Tensor) -> Tensor:
    """Sum over pairs of -log sigmoid(chosen - rejected), in nats.

    The model of Bradley and Terry 1952, as a loss in Ouyang et al. 2022 (arXiv:2203.02155, eq. 1).
    """
    return -functional.logsigmoid(chosen - rejected).sum()


def centering(chosen: Tensor, rejected: Tensor) -> Tensor:
    """Sum over pairs of (chosen + rejected)^2 (Eisenstein et al. 2023, arXiv:2312.09244)."""
    return ((chosen + rejected) ** 2).sum()


def clipped_policy(
    logprobs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor, clip: float
) -> Tensor:
    """Sum over the mask of max(-A r, -A clamp(r, 1 - clip, 1 + clip)), r = exp(logprobs - old).

    Schulman et al. 2017 (arXiv:1707.06347, eq. 7), as a loss.
    """
    # Beyond the mask the gap is set to 0 before exp: inf * 0 would make the gradient not a number.
    ratio = torch.exp(torch.where(mask, logprobs - old, 0.0))
    worse = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - clip, 1 + clip))
    return (worse * mask).sum()


def clipped_value(
    values: Tensor, old: Tensor, returns: Tensor, mask: Tensor, clip: float
) -> Tensor:
    """Sum over the mask of half the larger squared error, with the value clipped to old +- clip."""
    clipped = old + (values - old).clamp(-clip, clip)
    worse = torch.maximum((values - returns) ** 2, (clipped - returns) ** 2)
    return 0.5 * (worse * mask).sum()


def clip_fraction(logprobs: Tensor, old: Tensor, mask: Tensor, clip: float) -> Tensor:
    """The part of the tokens whose ratio has left the bounds."""
    ratio = torch.exp(torch.where(mask, logprobs - old, 0.0))
    return (((ratio - 1).abs() > clip) & mask).sum() / mask.sum()
