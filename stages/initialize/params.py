"""Parameters of initialization: a model's shape, or an existing Hugging Face folder to go on with."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from trainwright.stages.contract import Params, Strict, runtime


class Architecture(Strict):
    """Shape of the model, in the terms of a Hugging Face configuration."""

    model_type: str = Field("llama", description="Model type as transformers names it")
    hidden_size: int = Field(192, ge=8, description="Width of the residual stream")
    num_hidden_layers: int = Field(4, ge=1, description="Layers")
    num_attention_heads: int = Field(6, ge=1, description="Attention heads")
    num_key_value_heads: int = Field(
        6, ge=1, description="Key and value heads; fewer than attention heads for grouped queries"
    )
    intermediate_size: int = Field(512, ge=8, description="Width of the feed-forward layer")
    max_position_embeddings: int = Field(512, ge=8, description="Longest sequence, in tokens")
    rope_theta: float = Field(10_000.0, gt=0, description="Base of the rotary embedding")
    tie_word_embeddings: bool = Field(
        True, description="One matrix for input and output embeddings"
    )

    @model_validator(mode="after")
    def _divides(self) -> Architecture:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size ({self.hidden_size}) must be a multiple of num_attention_heads "
                f"({self.num_attention_heads})"
            )
        if (self.hidden_size // self.num_attention_heads) % 2:
            raise ValueError(
                f"hidden_size / num_attention_heads is {self.hidden_size // self.num_attention_heads}: "
                "rotary embeddings need an even head size"
            )
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads ({self.num_attention_heads}) must be a multiple of "
                f"num_key_value_heads ({self.num_key_value_heads})"
            )
        return self


class InitializeParams(Params):
    """How the model comes to be before training."""

    architecture: Architecture = Field(
        Architecture(), description="Shape of a new model; not used with from_folder"
    )
    method: Literal["xavier_uniform", "normal"] = Field(
        "xavier_uniform",
        description="Initialization of matrices: Xavier uniform (Glorot and Bengio 2010), or normal",
    )
    std: float = Field(
        0.02, gt=0, description="Standard deviation of embeddings, and of matrices with `normal`"
    )
    seed: int = Field(
        0, ge=0, description="Seed; each parameter draws from its own stream, by name"
    )
    from_folder: str | None = runtime(
        None,
        "Hugging Face folder to go on with (continued pretraining); its content counts, not its place",
    )

    def reads_outside(self) -> bool:
        """A given folder lies outside the store."""
        return self.from_folder is not None

    @model_validator(mode="after")
    def _one_origin(self) -> InitializeParams:
        if self.from_folder is not None and self.architecture != Architecture():
            raise ValueError(
                "both from_folder and architecture are given: a folder brings its own "
                "architecture; leave one of them out"
            )
        return self
