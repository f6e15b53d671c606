"""Self-distillation: the fake-quantized model learns to say what its float self says."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional
from transformers import PreTrainedModel

from trainwright.stages.context import StageContext
from trainwright.stages.instruct.loop import check_finite
from trainwright.stages.instruct.lora import trainable
from trainwright.stages.instruct.packing import PackedBatch, PackedOrder
from trainwright.stages.model.schedule import set_rate, warmup_cosine
from trainwright.stages.model.snapshot import Snapshots, State
from trainwright.stages.model.tokens import Split
from trainwright.stages.quantize.params import QuantizeParams


def divergence(student: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """KL(teacher || student) at each position, in nats; logits [..., vocabulary] to [...]."""
    p, q = teacher.log_softmax(-1), student.log_softmax(-1)
    return functional.kl_div(q, p, log_target=True, reduction="none").sum(-1)


@dataclass(frozen=True)
class Rows:
    """The rows of every step: corpus text and chats."""

    split: Split
    chats: PackedOrder | None
    params: QuantizeParams

    def batches(self, step: int) -> list[PackedBatch]:
        """A step's rows: one batch of text, one of chats, either left out if it has no rows."""
        chat_rows = chat_rows_of(self.params)
        text_rows = self.params.batch_rows - chat_rows
        found = []
        if text_rows:
            ids = self.split.rows(self.params.seed, step, text_rows, self.params.row_tokens)
            found.append(as_text(ids))
        if chat_rows and self.chats is not None:
            found.append(self.chats.batch(step))
        return found


def chat_rows_of(params: QuantizeParams) -> int:
    """How many of a step's rows are chats."""
    return round(params.batch_rows * params.chat_share)


def as_text(ids: torch.Tensor) -> PackedBatch:
    """Plain rows as a batch: one text a row."""
    positions = torch.arange(ids.shape[1]).expand_as(ids).contiguous()
    return PackedBatch(ids, positions, torch.zeros_like(ids), torch.full_like(ids, -100))


@dataclass
class Distiller:
    """What learns (student), from whom (teacher), and how."""

    student: PreTrainedModel
    teacher: PreTrainedModel
    params: QuantizeParams
    device: torch.device

    def __post_init__(self) -> None:
        self._learning = trainable(self.student)
        self.optimizer = torch.optim.Adam(
            self._learning.values(), lr=self.params.learning_rate, betas=(0.9, 0.95)
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

    def step(self, number: int, batches: list[PackedBatch]) -> float:
        """One optimizer step; the mean divergence of a token, in nats."""
        self.optimizer.zero_grad(set_to_none=True)
        tokens = sum(int((batch.chats >= 0).sum()) for batch in batches)
        total = 0.0
        for batch in batches:
            for start in range(0, len(batch.ids), self.params.micro_rows):
                part = batch.rows(start, start + self.params.micro_rows).to(self.device)
                loss = self._loss(part) / tokens
                loss.backward()
                total += float(loss.detach())
        norm = float(torch.nn.utils.clip_grad_norm_(self._learning.values(), self.params.clip_norm))
        check_finite("quantize", number, loss=total, gradient_norm=norm)
        share = warmup_cosine(number, steps=self.params.steps, warmup=self.params.warmup_steps)
        set_rate(self.optimizer, self.params.learning_rate * share)
        self.optimizer.step()
        return total

    def _loss(self, part: PackedBatch) -> torch.Tensor:
        inputs = {
            "input_ids": part.ids,
            "position_ids": part.positions,
            "attention_mask": part.attention(),
            "use_cache": False,
        }
        with torch.no_grad():
            teacher = self.teacher(**inputs).logits
        gap = divergence(self.student(**inputs).logits, teacher)
        return (gap * (part.chats >= 0)).sum()


def distil(context: StageContext, distiller: Distiller, rows: Rows) -> None:
    """Run the remaining steps."""
    params = distiller.params
    snapshots = Snapshots(context.work / "quantize")
    first = 0
    if (found := snapshots.newest()) is not None:
        first, state = found
        distiller.restore(state)
    for number in range(first, params.steps):
        loss = distiller.step(number, rows.batches(number))
        done = number + 1
        context.progress("distil", done, params.steps, loss=loss)
        context.tracker.log({"loss": loss}, done)
        if done % params.snapshot_every == 0 or done == params.steps:
            snapshots.save(done, distiller.state())
