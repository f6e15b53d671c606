"""What both gates have: their inputs, and what they hand back."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from trainwright.stages.context import StageContext
from trainwright.stages.contract import Metrics, Sample
from trainwright.stages.model.folder import pick_device
from trainwright.stages.model.tokens import Split
from trainwright.stages.validate.checks import Checklist
from trainwright.stages.validate.params import ValidateParams


@dataclass(frozen=True)
class Inputs:
    """What a gate reads."""

    params: ValidateParams
    model: Path
    """The model's folder."""
    corpus: Path
    heldout: Split
    device: torch.device
    context: StageContext

    @classmethod
    def of(cls, context: StageContext) -> Inputs:
        """The inputs of a stage context."""
        corpus = context.input("corpus")
        return cls(
            params=context.typed(ValidateParams),
            model=context.input("model") / "model",
            corpus=corpus,
            heldout=Split(corpus, "heldout"),
            device=pick_device(),
            context=context,
        )

    @property
    def span(self) -> dict[str, int]:
        """Which held-out positions are measured."""
        return {"length": self.params.sequence_length, "limit": self.params.heldout_tokens}

    def few_windows(self, count: int = 4) -> torch.Tensor:
        """The first held-out windows, int64 [<= count, length + 1]."""
        windows: torch.Tensor = next(self.heldout.windows(rows=count, **self.span))
        return windows


@dataclass
class Verdict:
    """What a gate found."""

    checks: Checklist = field(default_factory=Checklist)
    metrics: Metrics = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
