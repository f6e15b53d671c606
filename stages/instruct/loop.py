"""The training loop of the adapters; goes on from the newest snapshot."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch

from trainwright.stages.context import StageContext
from trainwright.stages.contract import DataError
from trainwright.stages.instruct.lora import trainable
from trainwright.stages.instruct.loss import answer_nll
from trainwright.stages.instruct.packing import PackedBatch, PackedOrder
from trainwright.stages.instruct.params import InstructParams
from trainwright.stages.model.schedule import set_rate, warmup_cosine
from trainwright.stages.model.snapshot import Snapshots, State


@dataclass
class Tuner:
    """What learns, and how: model with adapters, optimizer, parameters of the stage."""

    model: torch.nn.Module
    params: InstructParams
    device: torch.device

    def __post_init__(self) -> None:
        self._learning = trainable(self.model)
        self.optimizer = torch.optim.AdamW(
            self._learning.values(),
            lr=self.params.learning_rate,
            betas=(0.9, 0.95),
            weight_decay=self.params.weight_decay,
        )

    def state(self) -> State:
        """Everything that the next step depends on, beside the step's number."""
        weights = {name: p.detach().clone() for name, p in self._learning.items()}
        return {"weights": weights, "optimizer": self.optimizer.state_dict()}

    def restore(self, state: State) -> None:
        """Go back to a state."""
        with torch.no_grad():
            for name, value in state["weights"].items():
                self._learning[name].copy_(value)
        self.optimizer.load_state_dict(state["optimizer"])

    def step(self, number: int, batch: PackedBatch) -> tuple[float, float]:
        """One optimizer step; mean loss per answer token (nats) and gradient norm before clipping."""
        # Dropout draws from the global generator: keyed by the step, it needs no saved state.
        torch.manual_seed(self.params.seed * 1_000_003 + number)
        self.optimizer.zero_grad(set_to_none=True)
        tokens, total = batch.answer_tokens, 0.0
        for start in range(0, len(batch.ids), self.params.micro_rows):
            part = batch.rows(start, start + self.params.micro_rows).to(self.device)
            loss = answer_nll(self.model, part) / tokens
            loss.backward()
            total += float(loss.detach())
        norm = float(torch.nn.utils.clip_grad_norm_(self._learning.values(), self.params.clip_norm))
        check_finite("instruct", number, loss=total, gradient_norm=norm)
        share = warmup_cosine(number, steps=self.params.steps, warmup=self.params.warmup_steps)
        set_rate(self.optimizer, self.params.learning_rate * share)
        self.optimizer.step()
        return total, norm


def check_finite(what: str, step: int, **figures: float) -> None:
    """Refuse a step whose figures are not finite, naming them."""
    for name, value in figures.items():
        if not math.isfinite(value):
            raise DataError(
                f"{what}: {name} is {value} at step {step}: lower the learning rate, "
                "or look for a broken input model"
            )


def train(context: StageContext, tuner: Tuner, order: PackedOrder) -> None:
    """Run the remaining steps."""
    params = tuner.params
    snapshots = Snapshots(context.work / "instruct")
    first = 0
    if (found := snapshots.newest()) is not None:
        first, state = found
        tuner.restore(state)
    tuner.model.train()
    for number in range(first, params.steps):
        started = time.perf_counter()
        batch = order.batch(number)
        loss, norm = tuner.step(number, batch)
        done = number + 1
        rate = int((batch.chats >= 0).sum()) / (time.perf_counter() - started)
        context.progress("lora", done, params.steps, loss=loss, tokens_per_s=rate)
        context.tracker.log({"loss": loss, "grad_norm": norm, "tokens_per_s": rate}, done)
        if done % params.snapshot_every == 0 or done == params.steps:
            snapshots.save(done, tuner.state())
    tuner.model.eval()
