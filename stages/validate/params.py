"""Parameters of the gates."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from trainwright.stages.contract import Params, runtime


class ValidateParams(Params):
    """What a model must pass.

    `pretrained`: a float checkpoint after pretraining, against n-gram models trained on the same text.
    `export`: the int8 export, against the float model that it was made from.
    """

    kind: Literal["pretrained", "export"] = Field("pretrained", description="Which gate this is")
    max_perplexity: float | None = Field(
        None, gt=1, description="Largest held-out perplexity a token; empty for no bound"
    )
    beat: Literal["none", "unigram", "bigram"] = Field(
        "bigram",
        description="n-gram model that the held-out loss must be below (kind pretrained): unigram, "
        "or interpolated Kneser-Ney bigram (and unigram)",
    )
    max_perplexity_ratio: float = Field(
        1.02, ge=1, description="Largest perplexity relative to the float model (kind export)"
    )
    max_size_ratio: float = Field(
        1 / 3, gt=0, le=1, description="Largest file size relative to float32 (kind export)"
    )
    heldout_tokens: int = Field(
        60_000, ge=100, description="Held-out tokens on which perplexity is measured, at most"
    )
    sequence_length: int = Field(128, ge=8, description="Tokens of a held-out window")
    prompts: list[str] = Field(
        ["Return the", "This module", "If the argument is"],
        description="Beginnings that the model continues, to see that it generates",
        min_length=1,
    )
    sample_tokens: int = Field(32, ge=8, le=4096, description="Tokens of a sample")
    max_repeat_share: float = Field(
        0.9,
        gt=0,
        le=1,
        description="Largest share of one token in sampled text: above it, generation is degenerate",
    )
    seed: int = Field(0, ge=0, description="Seed of sampling")
    threads: int = runtime(0, "CPU threads; 0 takes all cores", ge=0)

    @model_validator(mode="after")
    def _no_empty_prompt(self) -> ValidateParams:
        if any(not prompt.strip() for prompt in self.prompts):
            raise ValueError("an empty prompt shows nothing: give each prompt some text")
        return self
