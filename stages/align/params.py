"""Parameters of alignment: a reward model from preferences, then PPO against it."""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from trainwright.stages.contract import Params, Strict, runtime


class RewardParams(Strict):
    """Training of the reward model on pairs of a better and a worse answer."""

    steps: int = Field(80, ge=1, le=1_000_000, description="Optimizer steps")
    batch_pairs: int = Field(16, ge=1, le=65536, description="Pairs in an optimizer step")
    micro_pairs: int = Field(16, ge=1, le=65536, description="Pairs in one forward pass")
    learning_rate: float = Field(5e-4, gt=0, le=1, description="Peak learning rate")
    warmup_steps: int = Field(10, ge=0, description="Steps of linear warmup, then cosine decay")
    weight_decay: float = Field(0.01, ge=0, le=1, description="AdamW's decoupled weight decay")
    clip_norm: float = Field(1.0, gt=0, description="Largest global norm of the gradient")
    centering: float = Field(
        0.01,
        ge=0,
        le=1,
        description="Weight of the squared sum of a pair's two rewards, which keeps rewards "
        "around zero",
    )
    max_tokens: int = Field(
        192,
        ge=8,
        le=1_048_576,
        description="Longest question with answer, in tokens; longer pairs are left out and counted",
    )
    heldout_pairs: int = Field(
        1200, ge=1, description="Held-out pairs on which accuracy is measured"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.batch_pairs % self.micro_pairs:
            raise ValueError(
                f"reward.batch_pairs ({self.batch_pairs}) must be a multiple of reward.micro_pairs "
                f"({self.micro_pairs}): every forward pass of a step takes as many pairs"
            )
        if self.warmup_steps >= self.steps:
            raise ValueError(
                f"reward.warmup_steps ({self.warmup_steps}) must be below reward.steps "
                f"({self.steps}): else the learning rate never reaches its peak"
            )
        return self


class KlControl(StrEnum):
    """How the KL coefficient moves."""

    FIXED = "fixed"
    ADAPTIVE = "adaptive"


class KlParams(Strict):
    """The pull back to the reference, the model that PPO began with."""

    control: KlControl = Field(
        KlControl.ADAPTIVE,
        description="fixed, or adaptive: the coefficient follows the KL towards its target",
    )
    coefficient: float = Field(
        0.07, ge=0, le=100, description="First (or fixed) weight of the KL in the reward"
    )
    target: float = Field(
        4.0, gt=0, description="KL to keep near, in nats an answer (adaptive control alone)"
    )
    horizon: float = Field(
        256.0,
        gt=0,
        description="Answers over which the coefficient adapts (adaptive control alone)",
    )


class PpoParams(Strict):
    """Proximal policy optimization (Schulman et al. 2017, arXiv:1707.06347)."""

    iterations: int = Field(
        30, ge=1, le=1_000_000, description="Rollouts, each learnt from at once"
    )
    rollout_prompts: int = Field(32, ge=1, le=65536, description="Answers in a rollout")
    epochs: int = Field(1, ge=1, le=100, description="Passes over a rollout")
    minibatch: int = Field(16, ge=1, description="Answers in an optimizer step")
    micro_batch: int = Field(16, ge=1, description="Answers in one forward pass")
    prompt_tokens: int = Field(
        80, ge=1, description="Longest prompt, in tokens; a longer one is left out and counted"
    )
    answer_tokens: int = Field(32, ge=1, description="Longest answer, in tokens")
    temperature: float = Field(1.0, gt=0, le=10, description="Sampling temperature of rollouts")
    learning_rate: float = Field(3e-4, gt=0, le=1, description="Learning rate of the policy")
    value_learning_rate: float = Field(3e-4, gt=0, le=1, description="Learning rate of the values")
    warmup_iterations: int = Field(
        2, ge=0, description="First iterations in which the values learn and the policy does not"
    )
    gamma: float = Field(1.0, ge=0, le=1, description="Discount of later rewards, per token")
    lam: float = Field(0.95, ge=0, le=1, description="Lambda of the advantage estimate")
    clip: float = Field(0.2, gt=0, le=1, description="Bound on the probability ratio's move from 1")
    value_clip: float = Field(0.2, gt=0, description="Bound on a value's move from the old value")
    clip_norm: float = Field(1.0, gt=0, description="Largest global norm of a gradient")
    reward_bound: float = Field(
        3.0, gt=0, description="Bound on the standardized reward, in standard deviations"
    )
    unfinished_penalty: float = Field(
        1.0,
        ge=0,
        description="Taken from the standardized reward of an answer cut off at answer_tokens",
    )
    kl: KlParams = Field(default_factory=KlParams, description="The pull back to the reference")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.rollout_prompts % self.minibatch:
            raise ValueError(
                f"ppo.rollout_prompts ({self.rollout_prompts}) must be a multiple of ppo.minibatch "
                f"({self.minibatch}): every answer of a rollout is learnt from as often"
            )
        if self.minibatch % self.micro_batch:
            raise ValueError(
                f"ppo.minibatch ({self.minibatch}) must be a multiple of ppo.micro_batch "
                f"({self.micro_batch}): every forward pass of a step takes as many answers"
            )
        if self.warmup_iterations >= self.iterations:
            raise ValueError(
                f"ppo.warmup_iterations ({self.warmup_iterations}) must be below ppo.iterations "
                f"({self.iterations}): else the policy never learns"
            )
        return self


class AlignParams(Params):
    """A reward model from preferences, then PPO against it with a KL penalty to the start."""

    reward: RewardParams = Field(default_factory=RewardParams, description="The reward model")
    ppo: PpoParams = Field(default_factory=PpoParams, description="Optimization against it")
    seed: int = Field(23, ge=0, description="Seed of the reward head, order and sampling")
    heldout_prompts: int = Field(
        128, ge=2, description="Held-out prompts on which the reward is measured before and after"
    )
    samples: int = Field(4, ge=0, le=1000, description="Held-out prompts completed for the report")
    snapshot_every: int = runtime(50, "Reward-model steps between two snapshots", ge=1)
    snapshot_iterations: int = runtime(1, "PPO iterations between two snapshots", ge=1)
    threads: int = runtime(0, "CPU threads; 0 takes all cores", ge=0)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        asked = self.ppo.prompt_tokens + self.ppo.answer_tokens + 1
        if asked > self.reward.max_tokens:
            raise ValueError(
                f"ppo.prompt_tokens + ppo.answer_tokens + 1 ({asked}) is above reward.max_tokens "
                f"({self.reward.max_tokens}): the reward model would judge answers longer than it "
                "has learnt from; raise the one or lower the others"
            )
        return self
