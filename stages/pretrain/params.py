"""Parameters of pretraining."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from trainwright.stages.contract import Params, Strict, runtime


class Optimization(Strict):
    """AdamW (Loshchilov and Hutter 2019) and its schedule."""

    learning_rate: float = Field(3e-3, gt=0, le=1, description="Peak learning rate")
    schedule: Literal["cosine", "linear", "constant"] = Field(
        "cosine", description="What follows the warmup"
    )
    warmup_steps: int = Field(30, ge=0, description="Steps of linear warmup")
    final_share: float = Field(
        0.1, ge=0, le=1, description="Learning rate at the end, as a share of the peak (0 to 1)"
    )
    beta1: float = Field(0.9, ge=0, lt=1, description="Decay of the gradient's mean")
    beta2: float = Field(0.95, ge=0, lt=1, description="Decay of the gradient's square")
    epsilon: float = Field(1e-8, gt=0, description="Added to the root of the square")
    weight_decay: float = Field(
        0.1, ge=0, le=1, description="Decoupled weight decay of matrices; none on norms and biases"
    )
    clip_norm: float = Field(1.0, gt=0, description="Largest global norm of the gradient")


class PretrainParams(Params):
    """What is trained, on how much, and how it is spread.

    The global batch is `global_batch` sequences of `sequence_length` tokens a step. `ranks`, `zero_stage`
    and `micro_batch` say how it is spread; they do not change what is computed, up to rounding.
    """

    steps: int = Field(900, ge=1, description="Optimizer steps")
    sequence_length: int = Field(128, ge=8, description="Tokens of a sequence")
    global_batch: int = Field(16, ge=1, description="Sequences in a step, over all ranks")
    optimization: Optimization = Field(Optimization(), description="Optimizer and schedule")
    precision: Literal["float32", "bf16", "fp16"] = Field(
        "float32", description="Precision of compute; master weights are float32 in each"
    )
    seed: int = Field(0, ge=0, description="Seed of the sample order and of dropout")
    heldout_sequences: int = Field(
        128, ge=1, description="Held-out sequences on which the loss is followed, at most"
    )
    max_bad_steps: int = Field(
        5, ge=1, description="Steps in a row with a non-finite loss or gradient until it stops"
    )
    ranks: int = runtime(2, "Processes that train together (data parallel)", ge=1, le=4096)
    zero_stage: Literal[0, 1, 2, 3] = runtime(1, "ZeRO stage (Rajbhandari et al. 2020)")
    micro_batch: int | None = runtime(
        None, "Sequences of one forward pass on one rank; empty: the rank's whole share", ge=1
    )
    threads_per_rank: int = runtime(1, "CPU threads of a rank", ge=1, le=256)
    evaluate_every: int = Field(200, ge=1, description="Steps between two held-out evaluations")
    log_every: int = runtime(10, "Steps between two rows of metrics", ge=1)
    snapshot_every: int = runtime(100, "Steps between two snapshots", ge=1)
    keep_snapshots: int = runtime(2, "Complete snapshots kept", ge=2)
    max_restarts: int = runtime(
        2, "Restarts of the process group from the newest snapshot after a rank died", ge=0, le=100
    )

    @property
    def per_rank(self) -> int:
        """Sequences of a step on one rank."""
        return self.global_batch // self.ranks

    @property
    def accumulation(self) -> int:
        """Forward passes of a step on one rank."""
        return self.per_rank // (self.micro_batch or self.per_rank)

    @model_validator(mode="after")
    def _consistent(self) -> PretrainParams:
        if self.global_batch % self.ranks:
            raise ValueError(
                f"global_batch ({self.global_batch}) must be a multiple of ranks ({self.ranks}): "
                "every rank takes an equal part of each step"
            )
        if self.micro_batch is not None and self.per_rank % self.micro_batch:
            raise ValueError(
                f"a rank takes {self.per_rank} sequences a step (global_batch / ranks): "
                f"micro_batch ({self.micro_batch}) must divide that"
            )
        if self.optimization.warmup_steps >= self.steps:
            raise ValueError(
                f"optimization.warmup_steps ({self.optimization.warmup_steps}) must be below steps "
                f"({self.steps}): else the learning rate never reaches its peak"
            )
        return self
