"""What alignment did, on held-out prompts: the same prompts and draws before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from trainwright.stages.align import estimators
from trainwright.stages.align.ppo import Prompts, Tokens, draw, score
from trainwright.stages.align.rollout import answer_logits, lay_out, logprobs_of
from trainwright.stages.model.sampler import Sampling


@dataclass(frozen=True)
class Judged:
    """Answers to the held-out prompts, and the reward of each."""

    answers: list[list[int]]
    rewards: torch.Tensor
    cut: torch.Tensor

    @property
    def reward(self) -> float:
        """Mean reward."""
        return float(self.rewards.mean())

    def statistics(self) -> dict[str, float]:
        """Lengths and variety: what moves when a policy exploits its reward model."""
        return {
            "reward": round(self.reward, 4),
            "answer_tokens": round(sum(map(len, self.answers)) / len(self.answers), 2),
            "unfinished": round(float(self.cut.float().mean()), 4),
            "distinct_1": round(distinct(self.answers, 1), 4),
            "distinct_2": round(distinct(self.answers, 2), 4),
            "distinct_2_within": round(distinct_within(self.answers, 2), 4),
        }


def judge(
    policy: PreTrainedModel,
    reward: PreTrainedModel,
    prompts: Prompts,
    tokens: Tokens,
    sampling: Sampling,
    batch: int = 32,
) -> Judged:
    """Draw an answer for each prompt and judge it."""
    answers: list[list[int]] = []
    for start in range(0, len(prompts), batch):
        keyed = Sampling(sampling.new_tokens, sampling.temperature, sampling.seed + start)
        answers += draw(policy, prompts[start : start + batch], tokens, keyed)
    return Judged(answers, *score(reward, prompts, answers, tokens.end))


def distinct(answers: Sequence[Sequence[int]], n: int) -> float:
    """Distinct n-grams over all n-grams of all answers (Li et al. 2016, arXiv:1510.03055)."""
    grams = [gram for answer in answers for gram in _grams(answer, n)]
    return len(set(grams)) / len(grams) if grams else 0.0


def distinct_within(answers: Sequence[Sequence[int]], n: int) -> float:
    """The mean over answers of their own distinct n-grams over their n-grams: 1 if none repeats."""
    shares = [len(set(g)) / len(g) for answer in answers if (g := _grams(answer, n))]
    return sum(shares) / len(shares) if shares else 0.0


def _grams(answer: Sequence[int], n: int) -> list[tuple[int, ...]]:
    return [tuple(answer[i : i + n]) for i in range(len(answer) - n + 1)]


@torch.no_grad()
def kl_to_reference(
    policy: PreTrainedModel,
    reference: PreTrainedModel,
    prompts: Prompts,
    answers: Prompts,
    *,
    pad_id: int,
    batch: int = 32,
) -> dict[str, float]:
    """KL of the policy from the reference on the policy's own answers, in nats an answer.

    `exact` sums over the vocabulary at every token; `k1` and `k3` are the estimates from the drawn
    tokens alone.
    """
    device = next(policy.parameters()).device
    sums = dict.fromkeys(("exact", "k1", "k3"), 0.0)
    for start in range(0, len(prompts), batch):
        stop = start + batch
        laid = lay_out(prompts[start:stop], answers[start:stop], pad_id=pad_id, device=device)
        p, q = answer_logits(policy, laid), answer_logits(reference, laid)
        logp, logq = logprobs_of(p, laid.tokens), logprobs_of(q, laid.tokens)
        found = {
            "exact": estimators.kl_exact(p, q),
            "k1": estimators.kl_k1(logp, logq),
            "k3": estimators.kl_k3(logp, logq),
        }
        for name, value in found.items():
            sums[name] += float((value * laid.mask).sum())
    return {name: total / len(prompts) for name, total in sums.items()}
