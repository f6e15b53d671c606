"""Parameters of quantization-aware training."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from trainwright.stages.contract import Params, runtime


class QuantizeParams(Params):
    """Training through int8 weights and activations, distilled from the float model; int8 export."""

    steps: int = Field(120, ge=1, le=1_000_000, description="Optimizer steps")
    batch_rows: int = Field(8, ge=1, le=65536, description="Rows of tokens in an optimizer step")
    micro_rows: int = Field(8, ge=1, le=65536, description="Rows of tokens in one forward pass")
    row_tokens: int = Field(128, ge=16, le=1_048_576, description="Length of a row, in tokens")
    chat_share: float = Field(
        0.5,
        ge=0,
        le=1,
        description="Part of a step's rows that are instruction chats; the rest is corpus text",
    )
    learning_rate: float = Field(1e-4, gt=0, le=1, description="Peak learning rate")
    warmup_steps: int = Field(10, ge=0, description="Steps of linear warmup, then cosine decay")
    clip_norm: float = Field(1.0, gt=0, description="Largest global norm of the gradient")
    seed: int = Field(29, ge=0, description="Seed of the data order")
    heldout_tokens: int = Field(
        40_000, ge=1, description="Held-out tokens on which perplexity is measured, at most"
    )
    samples: int = Field(4, ge=0, le=1000, description="Held-out prompts completed by the export")
    sample_tokens: int = Field(48, ge=1, description="Longest sample completion, in tokens")
    snapshot_every: int = runtime(50, "Steps between two snapshots", ge=1)
    threads: int = runtime(0, "CPU threads; 0 takes all cores", ge=0)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.batch_rows % self.micro_rows:
            raise ValueError(
                f"batch_rows ({self.batch_rows}) must be a multiple of micro_rows "
                f"({self.micro_rows}): every forward pass of a step takes as many rows"
            )
        if self.warmup_steps >= self.steps:
            raise ValueError(
                f"warmup_steps ({self.warmup_steps}) must be below steps ({self.steps}): "
                "else the learning rate never reaches its peak"
            )
        return self
