"""The KL coefficient and the scale of rewards: small state that belongs in every snapshot."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Self

import torch

from trainwright.stages.align.params import KlControl, KlParams


@dataclass
class KlCoefficient:
    """The weight of the KL penalty, fixed or adaptive.

    Adaptive is the proportional controller of Ziegler et al. 2019 (arXiv:1909.08593, section 2.2):
    coefficient *= 1 + clamp(kl / target - 1, -0.2, 0.2) * answers / horizon.
    """

    value: float

    def update(self, kl: float, answers: int, params: KlParams) -> None:
        """Follow the KL of a rollout, in nats an answer."""
        if params.control is KlControl.ADAPTIVE:
            error = min(max(kl / params.target - 1, -0.2), 0.2)
            self.value *= 1 + error * answers / params.horizon


@dataclass
class RewardScale:
    """Mean and deviation of the rewards of the model that PPO began with."""

    mean: float
    deviation: float

    @classmethod
    def of(cls, rewards: torch.Tensor) -> Self:
        """The scale of a first set of rewards; a deviation below 1e-3 counts as 1e-3."""
        return cls(float(rewards.mean()), max(float(rewards.std(correction=0)), 1e-3))

    def standardize(self, rewards: torch.Tensor, bound: float) -> torch.Tensor:
        """Rewards in deviations from the mean, within +-bound."""
        return ((rewards - self.mean) / self.deviation).clamp(-bound, bound)

    def state(self) -> dict[str, Any]:
        """The two numbers."""
        return asdict(self)
