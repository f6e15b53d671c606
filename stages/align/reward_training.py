"""Training of the reward model; goes on from the newest snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from trainwright.stages.align.baselines import by_kind, length, outcome, outcomes, overlap
from trainwright.stages.align.branches import Group, branch_rewards, lay_side_by_side
from trainwright.stages.align.losses import bradley_terry, centering
from trainwright.stages.align.params import RewardParams
from trainwright.stages.context import StageContext
from trainwright.stages.contract import DataError
from trainwright.stages.instruct.chat import ChatFormat
from trainwright.stages.instruct.loop import check_finite
from trainwright.stages.instruct.packing import permutation
from trainwright.stages.instruct.pairs import Preference
from trainwright.stages.model.schedule import set_rate, warmup_cosine
from trainwright.stages.model.snapshot import Snapshots, State


@dataclass(frozen=True)
class Pair:
    """A preference, and its question with the better and the worse answer as token ids."""

    row: Preference
    group: Group

    @property
    def longest(self) -> int:
        """Tokens of the question with the longer answer."""
        return len(self.group.prompt) + max(map(len, self.group.answers))


def encode_pairs(
    chat: ChatFormat, rows: Sequence[Preference], longest: int
) -> tuple[list[Pair], int]:
    """The pairs whose both sides have at most `longest` tokens, and how many were longer."""
    pairs = [
        Pair(
            row,
            Group(chat.prompt(row.prompt), [chat.answer(row.chosen), chat.answer(row.rejected)]),
        )
        for row in rows
    ]
    kept = [pair for pair in pairs if pair.longest <= longest]
    if not kept:
        raise DataError(
            f"no preference pair fits into {longest} tokens: raise reward.max_tokens "
            "or shorten the pairs"
        )
    return kept, len(pairs) - len(kept)


class PairOrder:
    """The pairs of every step, a pure function of (pairs, seed, step)."""

    def __init__(self, count: int, batch: int, seed: int) -> None:
        self._count, self._batch, self._seed = count, batch, seed

    def indices(self, step: int) -> list[int]:
        """Which pairs a step (from 0) takes; a batch may reach into the next epoch."""
        taken = []
        for position in range(step * self._batch, (step + 1) * self._batch):
            epoch, index = divmod(position, self._count)
            taken.append(self._order(epoch)[index])
        return taken

    def _order(self, epoch: int) -> list[int]:
        if getattr(self, "_epoch", None) != epoch:
            self._epoch, self._permutation = epoch, permutation(self._count, self._seed, epoch)
        return self._permutation


def pair_rewards(
    model: PreTrainedModel, pairs: Sequence[Pair]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rewards of the better and of the worse answers; float [n] each."""
    device = next(model.parameters()).device
    branches = lay_side_by_side([pair.group for pair in pairs], device)
    found = branch_rewards(model, branches).view(-1, 2)
    return found[:, 0], found[:, 1]


@dataclass
class RewardTuner:
    """What learns, and how."""

    model: PreTrainedModel
    params: RewardParams

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=self.params.learning_rate,
            betas=(0.9, 0.95),
            weight_decay=self.params.weight_decay,
        )

    def state(self) -> State:
        """Everything that the next step depends on, beside the step's number."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def restore(self, state: State) -> None:
        """Go back to a state."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    def step(self, number: int, pairs: Sequence[Pair]) -> tuple[float, float]:
        """One optimizer step; mean loss of a pair (nats) and the part of the pairs ranked right."""
        self.optimizer.zero_grad(set_to_none=True)
        total, right = 0.0, 0.0
        for start in range(0, len(pairs), self.params.micro_pairs):
            loss, good = self._forward(pairs[start : start + self.params.micro_pairs])
            (loss / len(pairs)).backward()
            total, right = total + float(loss.detach()), right + good
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.params.clip_norm))
        check_finite("reward model", number, loss=total, gradient_norm=norm)
        share = warmup_cosine(number, steps=self.params.steps, warmup=self.params.warmup_steps)
        set_rate(self.optimizer, self.params.learning_rate * share)
        self.optimizer.step()
        return total / len(pairs), right / len(pairs)

    def _forward(self, pairs: Sequence[Pair]) -> tuple[torch.Tensor, float]:
        chosen, rejected = pair_rewards(self.model, pairs)
        loss = bradley_terry(chosen, rejected)
        loss = loss + self.params.centering * centering(chosen, rejected)
        return loss, float((chosen > rejected).sum())


def train_reward_model(
    context: StageContext, tuner: RewardTuner, pairs: Sequence[Pair], seed: int, every: int
) -> None:
    """Run the remaining steps."""
    params = tuner.params
    snapshots = Snapshots(context.work / "reward")
    order = PairOrder(len(pairs), params.batch_pairs, seed)
    first = 0
    if (found := snapshots.newest()) is not None:
        first, state = found
        tuner.restore(state)
    tuner.model.train()
    for number in range(first, params.steps):
        # Dropout draws from the global generator: keyed by the step, it needs no saved state.
        torch.manual_seed(seed * 1_000_003 + number)
        loss, right = tuner.step(number, [pairs[i] for i in order.indices(number)])
        done = number + 1
        context.progress("reward model", done, params.steps, loss=loss, accuracy=right)
        context.tracker.log({"rm_loss": loss, "rm_train_accuracy": right}, done)
        if done % every == 0 or done == params.steps:
            snapshots.save(done, tuner.state())
    tuner.model.eval()


@dataclass(frozen=True)
class Accuracy:
    """Held-out accuracy of the reward model and of what needs no model, overall and by kind."""

    model: float
    word_overlap: float
    longer: float
    margin: float
    """Of the reward model over the better baseline."""
    margin_error: float
    """The margin's standard error, over pairs."""
    kinds: list[dict[str, float | str]]


def measure_accuracy(model: PreTrainedModel, pairs: Sequence[Pair]) -> Accuracy:
    """Accuracy on held-out pairs; ties count half."""
    with torch.no_grad():
        parts = [pair_rewards(model, pairs[at : at + 32]) for at in range(0, len(pairs), 32)]
    chosen, rejected = (torch.cat(side).tolist() for side in zip(*parts, strict=True))
    rows = [pair.row for pair in pairs]
    found = {
        "reward_model": [outcome(c, r) for c, r in zip(chosen, rejected, strict=True)],
        "word_overlap": outcomes(rows, overlap),
        "longer_wins": outcomes(rows, length),
    }
    tables = {name: by_kind(rows, right) for name, right in found.items()}
    kinds: list[dict[str, float | str]] = [
        {
            "kind": kind,
            "pairs": sum(row.kind == kind for row in rows),
            **{name: round(table[kind], 4) for name, table in tables.items()},
        }
        for kind in tables["reward_model"]
    ]
    overall = {name: sum(right) / len(right) for name, right in found.items()}
    best = max(("word_overlap", "longer_wins"), key=overall.__getitem__)
    margin, error = paired(found["reward_model"], found[best])
    return Accuracy(
        model=overall["reward_model"],
        word_overlap=overall["word_overlap"],
        longer=overall["longer_wins"],
        margin=margin,
        margin_error=error,
        kinds=kinds,
    )


def paired(one: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    """Mean of one - other over pairs of figures, and its standard error (0 for a single pair)."""
    gaps = torch.tensor(one, dtype=torch.float64) - torch.tensor(other, dtype=torch.float64)
    error = gaps.std() / len(gaps) ** 0.5 if len(gaps) > 1 else torch.zeros(())
    return float(gaps.mean()), float(error)
