"""Parameters of instruction tuning."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from trainwright.stages.contract import Params, Strict, runtime


class LoraParams(Strict):
    """Low-rank adapters (Hu et al. 2021, arXiv:2106.09685) on every linear layer."""

    rank: int = Field(16, ge=1, le=1024, description="Rank of the adapters")
    alpha: float = Field(
        32.0, gt=0, le=4096, description="Scale of the adapters; the update is alpha / rank * BA"
    )
    dropout: float = Field(
        0.0, ge=0, lt=1, description="Dropout on the adapters' input, as a fraction"
    )
    train_chat_tokens: bool = Field(
        True,
        description="Also train the embeddings of the chat template's special tokens, which "
        "pretraining has never shown",
    )


class InstructParams(Params):
    """LoRA on instruction pairs, loss on the assistant's tokens alone, merged in float32."""

    lora: LoraParams = Field(default_factory=LoraParams, description="The adapters")
    steps: int = Field(150, ge=1, le=1_000_000, description="Optimizer steps")
    batch_rows: int = Field(8, ge=1, le=65536, description="Packed rows in an optimizer step")
    micro_rows: int = Field(8, ge=1, le=65536, description="Packed rows in one forward pass")
    row_tokens: int = Field(
        256,
        ge=16,
        le=1_048_576,
        description="Length of a packed row, in tokens; a longer pair is left out and counted",
    )
    learning_rate: float = Field(2e-3, gt=0, le=1, description="Peak learning rate")
    warmup_steps: int = Field(10, ge=0, description="Steps of linear warmup, then cosine decay")
    weight_decay: float = Field(0.0, ge=0, le=1, description="AdamW's decoupled weight decay")
    clip_norm: float = Field(1.0, gt=0, description="Largest global norm of the gradient")
    seed: int = Field(17, ge=0, description="Seed of adapters, order and dropout")
    heldout_pairs: int = Field(
        300, ge=1, description="Held-out pairs on which the answer loss is measured"
    )
    samples: int = Field(4, ge=0, le=1000, description="Held-out prompts completed for the report")
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
