"""AdamW that refuses a gradient which is not finite, with decay on matrices alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from trainwright.stages.pretrain.params import Optimization


class GuardedAdamW(torch.optim.AdamW):
    """Leaves weights and moments alone when a gradient is not finite, and counts it in `skipped`.

    DeepSpeed checks for that itself at ZeRO 1 to 3. At ZeRO 0 in float32 it does not; gradients are
    reduced before the step there, so every rank decides alike.
    """

    skipped = 0

    def step(self, closure: Callable[[], float] | None = None) -> Any:  # type: ignore[override]
        """One update, or none."""
        gradients = (p.grad for group in self.param_groups for p in group["params"])
        if not all_finite(g for g in gradients if g is not None):
            self.skipped += 1
            return None
        return super().step(closure)


def all_finite(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether no element is NaN or infinite."""
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors)


def decay_groups(model: torch.nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Parameter groups: matrices with decay; vectors (norms, biases) without."""
    learning = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in learning if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in learning if p.ndim < 2], "weight_decay": 0.0},
    ]


def make_optimizer(model: torch.nn.Module, what: Optimization) -> GuardedAdamW:
    """The optimizer of a model."""
    groups = [g for g in decay_groups(model, what.weight_decay) if g["params"]]
    return GuardedAdamW(
        groups, lr=what.learning_rate, betas=(what.beta1, what.beta2), eps=what.epsilon
    )
