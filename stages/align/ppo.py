"""Proximal policy optimization against the reward model, with a KL penalty to the reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel

from trainwright.stages.align import estimators, losses
from trainwright.stages.align.control import KlCoefficient, RewardScale
from trainwright.stages.align.params import PpoParams
from trainwright.stages.align.reward import rewards_of
from trainwright.stages.align.rollout import (
    Answers,
    answer_logits,
    answer_values,
    lay_out,
    logprobs_of,
)
from trainwright.stages.context import StageContext
from trainwright.stages.instruct.loop import check_finite
from trainwright.stages.instruct.packing import permutation
from trainwright.stages.model.sampler import Sampling, generate
from trainwright.stages.model.snapshot import Snapshots, State

Prompts = Sequence[Sequence[int]]


@dataclass(frozen=True)
class Models:
    """The four: what learns (policy, values) and what stays (reference, reward)."""

    policy: PreTrainedModel
    values: PreTrainedModel
    reference: PreTrainedModel
    reward: PreTrainedModel


@dataclass(frozen=True)
class Tokens:
    """The ids that end an answer and fill up a row."""

    end: int
    pad: int


@dataclass(frozen=True)
class Experience:
    """A rollout with all that its updates need; every figure [n, width] is 0 beyond its answer."""

    answers: Answers
    logprobs: torch.Tensor
    values: torch.Tensor
    advantages: torch.Tensor
    returns: torch.Tensor
    figures: dict[str, float]

    def take(self, rows: torch.Tensor) -> Experience:
        """The given rows."""
        parts = (self.logprobs, self.values, self.advantages, self.returns)
        return Experience(self.answers.take(rows), *(p[rows] for p in parts), self.figures)


def draw(
    policy: PreTrainedModel, prompts: Prompts, tokens: Tokens, sampling: Sampling
) -> list[list[int]]:
    """One answer for each prompt."""
    return generate(policy, prompts, sampling, end_id=tokens.end, pad_id=tokens.pad)


def score(
    reward: PreTrainedModel, prompts: Prompts, answers: Prompts, end_id: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Reward of each answer, and which were cut off; both [n], on the CPU.

    A cut-off answer is judged as if it ended there, since the reward model knows ended ones only.
    """
    cut = torch.tensor([answer[-1] != end_id for answer in answers])
    closed = [
        [*prompt, *answer, *([end_id] if unfinished else [])]
        for prompt, answer, unfinished in zip(prompts, answers, cut.tolist(), strict=True)
    ]
    return rewards_of(reward, closed), cut


@dataclass
class Trainer:
    """PPO's state and its one step."""

    models: Models
    params: PpoParams
    tokens: Tokens
    seed: int
    scale: RewardScale | None = None
    coefficient: KlCoefficient = field(init=False)

    def __post_init__(self) -> None:
        self.coefficient = KlCoefficient(self.params.kl.coefficient)
        self.policy_optimizer = self._adam(self.models.policy, self.params.learning_rate)
        self.value_optimizer = self._adam(self.models.values, self.params.value_learning_rate)

    @staticmethod
    def _adam(model: PreTrainedModel, rate: float) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=rate, betas=(0.9, 0.95))

    def state(self) -> State:
        """Everything that the next iteration depends on, beside its number."""
        return {
            "policy": self.models.policy.state_dict(),
            "values": self.models.values.state_dict(),
            "policy_optimizer": self.policy_optimizer.state_dict(),
            "value_optimizer": self.value_optimizer.state_dict(),
            "kl_coefficient": self.coefficient.value,
            "reward_scale": self.scale.state() if self.scale else None,
        }

    def restore(self, state: State) -> None:
        """Go back to a state."""
        self.models.policy.load_state_dict(state["policy"])
        self.models.values.load_state_dict(state["values"])
        self.policy_optimizer.load_state_dict(state["policy_optimizer"])
        self.value_optimizer.load_state_dict(state["value_optimizer"])
        self.coefficient.value = state["kl_coefficient"]
        scale = state["reward_scale"]
        self.scale = RewardScale(**scale) if scale else None

    def iterate(self, number: int, prompts: Prompts) -> dict[str, float]:
        """Draw, judge, learn; the iteration's figures."""
        sampling = Sampling(
            new_tokens=self.params.answer_tokens,
            temperature=self.params.temperature,
            seed=self.seed * 1_000_003 + number,
        )
        experience = self.experience(
            prompts, draw(self.models.policy, prompts, self.tokens, sampling)
        )
        learned = self.learn(number, experience)
        used = self.coefficient.value
        self.coefficient.update(experience.figures["kl"], len(prompts), self.params.kl)
        return {**experience.figures, **learned, "kl_coefficient": used}

    @torch.no_grad()
    def experience(self, prompts: Prompts, drawn: Prompts) -> Experience:
        """What a rollout teaches."""
        device = next(self.models.policy.parameters()).device
        answers = lay_out(prompts, drawn, pad_id=self.tokens.pad, device=device)
        mask = answers.mask
        logprobs = self._chunked(answers, self._policy_logprobs) * mask
        reference = self._chunked(answers, self._reference_logprobs) * mask
        values = self._chunked(answers, lambda part: answer_values(self.models.values, part)) * mask
        raw, cut = score(self.models.reward, prompts, drawn, self.tokens.end)
        kl = estimators.kl_k1(logprobs, reference)
        rewards = estimators.token_rewards(
            self._shaped(raw, cut).to(device), kl, answers.lengths, self.coefficient.value
        )
        advantages, returns = estimators.gae(
            rewards, values, answers.lengths, gamma=self.params.gamma, lam=self.params.lam
        )
        figures = {
            "reward": float(raw.mean()),
            "kl": float(kl.sum(1).mean()),
            "kl_k3": float((estimators.kl_k3(logprobs, reference) * mask).sum(1).mean()),
            "answer_tokens": float(answers.lengths.float().mean()),
            "unfinished": float(cut.float().mean()),
        }
        advantages = estimators.whiten(advantages, mask)
        return Experience(answers, logprobs, values, advantages, returns, figures)

    def _shaped(self, raw: torch.Tensor, cut: torch.Tensor) -> torch.Tensor:
        if self.scale is None:
            self.scale = RewardScale.of(raw)
        standard = self.scale.standardize(raw, self.params.reward_bound)
        return standard - self.params.unfinished_penalty * cut

    def _policy_logprobs(self, part: Answers) -> torch.Tensor:
        logits = answer_logits(self.models.policy, part, self.params.temperature)
        return logprobs_of(logits, part.tokens)

    def _reference_logprobs(self, part: Answers) -> torch.Tensor:
        logits = answer_logits(self.models.reference, part, self.params.temperature)
        return logprobs_of(logits, part.tokens)

    def _chunked(self, answers: Answers, read: Callable[[Answers], torch.Tensor]) -> torch.Tensor:
        size = self.params.micro_batch
        parts = [read(answers.rows(at, at + size)) for at in range(0, len(answers.ids), size)]
        return torch.cat(parts)

    def learn(self, number: int, experience: Experience) -> dict[str, float]:
        """The updates from one rollout; figures of the last one."""
        figures: dict[str, float] = {}
        count = len(experience.answers.ids)
        for epoch in range(self.params.epochs):
            order = torch.tensor(permutation(count, self.seed, number * self.params.epochs + epoch))
            for rows in order.split(self.params.minibatch):
                figures = self.update(number, experience.take(rows))
        return figures

    def update(self, number: int, batch: Experience) -> dict[str, float]:
        """One optimizer step of policy and values; losses are means over the batch's tokens."""
        self.policy_optimizer.zero_grad(set_to_none=True)
        self.value_optimizer.zero_grad(set_to_none=True)
        figures = self.backward(batch)
        clip_norm = self.params.clip_norm
        norms = {
            "grad_norm": torch.nn.utils.clip_grad_norm_(self.models.policy.parameters(), clip_norm),
            "value_grad_norm": torch.nn.utils.clip_grad_norm_(
                self.models.values.parameters(), clip_norm
            ),
        }
        figures |= {name: float(norm) for name, norm in norms.items()}
        check_finite("PPO", number, **figures)
        if number >= self.params.warmup_iterations:
            self.policy_optimizer.step()
        self.value_optimizer.step()
        return figures

    def backward(self, batch: Experience) -> dict[str, float]:
        """Gradients of both losses, micro-batch by micro-batch, each divided by all of the tokens."""
        tokens = batch.answers.mask.sum()
        figures = {"policy_loss": 0.0, "value_loss": 0.0, "clip_fraction": 0.0}
        size = self.params.micro_batch
        for start in range(0, len(batch.answers.ids), size):
            stop = min(start + size, len(batch.answers.ids))
            part = batch.take(torch.arange(start, stop, device=batch.logprobs.device))
            for name, value in self._micro(part, tokens).items():
                figures[name] += value
        return figures

    def _micro(self, part: Experience, tokens: torch.Tensor) -> dict[str, float]:
        mask = part.answers.mask
        logprobs = self._policy_logprobs(part.answers)
        policy = losses.clipped_policy(
            logprobs, part.logprobs, part.advantages, mask, self.params.clip
        )
        (policy / tokens).backward()
        values = answer_values(self.models.values, part.answers)
        value = losses.clipped_value(
            values, part.values, part.returns, mask, self.params.value_clip
        )
        (value / tokens).backward()
        left = losses.clip_fraction(logprobs.detach(), part.logprobs, mask, self.params.clip)
        return {
            "policy_loss": float(policy.detach() / tokens),
            "value_loss": float(value.detach() / tokens),
            "clip_fraction": float(left * mask.sum() / tokens),
        }


def prompts_of(prompts: Prompts, number: int, size: int, seed: int) -> Prompts:
    """The prompts of an iteration: a pure function of (prompts, seed, iteration)."""
    taken = []
    order: dict[int, list[int]] = {}
    for position in range(number * size, (number + 1) * size):
        epoch, index = divmod(position, len(prompts))
        if epoch not in order:
            order[epoch] = permutation(len(prompts), seed, epoch)
        taken.append(prompts[order[epoch][index]])
    return taken


def optimize(
    context: StageContext, trainer: Trainer, prompts: Prompts, every: int
) -> list[dict[str, Any]]:
    """Run the remaining iterations, a snapshot after `every` of them; the figures of all."""
    params = trainer.params
    snapshots = Snapshots(context.work / "ppo")
    first, history = 0, []
    if (found := snapshots.newest()) is not None:
        first, state = found
        history = state.pop("history")
        trainer.restore(state)
    for number in range(first, params.iterations):
        chosen = prompts_of(prompts, number, params.rollout_prompts, trainer.seed)
        figures = trainer.iterate(number, chosen)
        done = number + 1
        history.append({"iteration": done, **figures})
        context.progress("ppo", done, params.iterations, reward=figures["reward"], kl=figures["kl"])
        context.tracker.log(figures, done)
        if done % every == 0 or done == params.iterations:
            snapshots.save(done, {**trainer.state(), "history": history})
    return history
