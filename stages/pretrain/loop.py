"""The training loop of one rank."""

from __future__ import annotations

import json
import logging
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import distributed

from trainwright.stages.contract import BreakerOpenError
from trainwright.stages.pretrain.data import Loader
from trainwright.stages.pretrain.engine import Engine
from trainwright.stages.pretrain.params import PretrainParams
from trainwright.stages.pretrain.schedule import learning_rate
from trainwright.stages.pretrain.snapshots import Snapshots

log = logging.getLogger(__name__)

_CURVE = "curve.json"

Report = Callable[[int, dict[str, float]], None]


def seed_generators(seed: int, step: int, rank: int) -> None:
    """Key Python's, numpy's and torch's generators by (seed, step, rank).

    So they need no saved state: dropout after a resume is that of an undisturbed run.
    """
    key = seed * 1_000_003 + step * 4099 + rank
    random.seed(key)
    np.random.seed(key % 2**32)
    torch.manual_seed(key)


@dataclass
class Curve:
    """Losses by step: of every training step, and of each held-out evaluation."""

    train: list[float] = field(default_factory=list)
    heldout: dict[int, float] = field(default_factory=dict)
    bad_in_a_row: int = 0

    def state_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "train": list(self.train),
            "heldout": {str(step): loss for step, loss in self.heldout.items()},
            "bad_in_a_row": self.bad_in_a_row,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to a state."""
        self.train = list(state["train"])
        self.heldout = {int(step): loss for step, loss in state["heldout"].items()}
        self.bad_in_a_row = int(state["bad_in_a_row"])

    def table(self) -> dict[str, list[Any]]:
        """For curve.json: `train`, a loss a step (null where it was not finite); `heldout`, [step, loss]."""
        return {
            "train": [_finite(loss) for loss in self.train],
            "heldout": [[step, _finite(loss)] for step, loss in sorted(self.heldout.items())],
        }

    def final_loss(self) -> float:
        """Mean finite loss over the last tenth of the steps; NaN if none is finite."""
        tail = self.train[-max(1, len(self.train) // 10) :]
        finite = [loss for loss in tail if math.isfinite(loss)]
        return sum(finite) / len(finite) if finite else math.nan


def _finite(loss: float) -> float | None:
    return loss if math.isfinite(loss) else None


@dataclass
class Pace:
    """Tokens and seconds of this session's steps, evaluations and snapshots left out."""

    tokens: int = 0
    seconds: float = 0.0

    @property
    def tokens_per_s(self) -> float:
        """Training throughput over all ranks."""
        return self.tokens / self.seconds if self.seconds else 0.0


@dataclass
class Trainer:
    """What a rank trains with. `report` is called on rank 0 alone."""

    params: PretrainParams
    engine: Engine
    loader: Loader
    heldout: list[torch.Tensor]
    snapshots: Snapshots
    meta: dict[str, Any]
    report: Report
    rank: int
    curve: Curve = field(default_factory=Curve)
    pace: Pace = field(default_factory=Pace)

    def fit(self, first: int) -> None:
        """Train from step `first` to the last one."""
        for step in range(first, self.params.steps):
            self._train_step(step)
            done = step + 1
            last = done == self.params.steps
            if done % self.params.evaluate_every == 0 or last:
                self.curve.heldout[done] = self.engine.evaluate(self.heldout)
                self.report(done, {"heldout_loss": self.curve.heldout[done]})
            if done % self.params.snapshot_every == 0 or last:
                self.save(done)

    def _train_step(self, step: int) -> None:
        started = time.perf_counter()
        seed_generators(self.params.seed, step, self.rank)
        rate = learning_rate(step, self.params.steps, self.params.optimization)
        self.engine.set_rate(rate)
        skipped = self.engine.skipped
        loss = self.engine.step(self.loader.batch(step))
        self._watch(step, loss, skipped=self.engine.skipped > skipped)
        self.curve.train.append(loss)
        seconds = time.perf_counter() - started
        self.pace.tokens += self.params.global_batch * self.params.sequence_length
        self.pace.seconds += seconds
        if (step + 1) % self.params.log_every == 0 or step + 1 == self.params.steps:
            self._log(step + 1, loss, rate, seconds)

    def _watch(self, step: int, loss: float, *, skipped: bool) -> None:
        """Count bad steps in a row. All ranks see the same loss and skips, so they decide alike."""
        bad = skipped or not math.isfinite(loss)
        self.curve.bad_in_a_row = self.curve.bad_in_a_row + 1 if bad else 0
        if bad:
            log.warning("step %d: loss %s, update skipped: %s", step + 1, loss, skipped)
        if self.curve.bad_in_a_row >= self.params.max_bad_steps:
            raise BreakerOpenError(
                f"pretraining stopped at step {step + 1}: the loss or its gradient was not finite in "
                f"{self.curve.bad_in_a_row} steps in a row; lower pretrain.optimization.learning_rate, "
                "or look at the data of these steps"
            )

    def _log(self, done: int, loss: float, rate: float, seconds: float) -> None:
        tokens = self.params.global_batch * self.params.sequence_length
        figures = {
            "loss": loss,
            "lr": rate,
            "tokens_per_s": tokens / seconds,
            "step_time": seconds,
            "tokens_seen": float(done * tokens),
            "skipped_steps": float(self.engine.skipped),
        }
        norm = self.engine.grad_norm()
        if norm is not None:
            figures["grad_norm"] = norm
        self.report(done, figures)

    def save(self, step: int) -> None:
        """Take a snapshot together."""
        if self.rank == 0:
            self.snapshots.begin(step)
        distributed.barrier()
        self.engine.save(self.snapshots.place(step))
        distributed.barrier()
        if self.rank == 0:
            curve = json.dumps(self.curve.state_dict())
            (self.snapshots.place(step) / _CURVE).write_text(curve)
            self.snapshots.complete(step, self.meta)
        distributed.barrier()

    def restore(self, place: Path) -> None:
        """Go back to a snapshot together."""
        self.engine.load(place)
        self.curve.load_state_dict(json.loads((place / _CURVE).read_text()))
