"""The gate after pretraining: a whole checkpoint that has learned more than n-gram models know."""

from __future__ import annotations

import math

import torch
from torch.nn import functional
from transformers import PreTrainedModel

from trainwright.stages.model.folder import check_fit
from trainwright.stages.model.perplexity import Likelihood, likelihood
from trainwright.stages.model.tokens import Split
from trainwright.stages.validate.elsewhere import check_elsewhere
from trainwright.stages.validate.gate import Inputs, Verdict
from trainwright.stages.validate.generation import check_generation
from trainwright.stages.validate.heldout import (
    baseline_losses,
    bits_per_byte,
    positions,
    text_bytes,
)
from trainwright.stages.validate.integrity import check_integrity

WAY_OUT = (
    "If the files are whole, train longer or on more text, or change what the step validate asks for "
    "(beat, max_perplexity, max_repeat_share)"
)
_DEPENDENT = ["held-out loss", "n-gram models", "generation", "loading elsewhere"]


def judge(inputs: Inputs) -> Verdict:
    """Measure a float checkpoint."""
    verdict = Verdict()
    progress = inputs.context.progress
    progress("files")
    found = check_integrity(
        verdict.checks, inputs.model, inputs.corpus / "tokenizer", inputs.device
    )
    if found is None:
        verdict.checks.left_out += _DEPENDENT
        return verdict
    model, tokenizer = found
    check_fit(model, tokenizer, inputs.params.sequence_length, "validate.sequence_length")
    progress("held-out text")
    _judge_loss(verdict, inputs, model)
    progress("generation")
    verdict.samples = check_generation(verdict.checks, model, tokenizer, inputs.params)
    progress("loading elsewhere")
    _judge_elsewhere(verdict, inputs, model)
    return verdict


def _judge_loss(verdict: Verdict, inputs: Inputs, model: PreTrainedModel) -> None:
    measured = likelihood(model, inputs.heldout, **inputs.span)
    where = positions(inputs.heldout, **inputs.span)
    size = text_bytes(inputs.heldout, where.targets, inputs.corpus / "tokenizer")
    inputs.context.progress("n-gram models")
    baselines = baseline_losses(Split(inputs.corpus, "train"), where)
    verdict.metrics = {
        "heldout_loss": measured.loss,
        "perplexity": measured.perplexity,
        "bits_per_byte": bits_per_byte(measured.nats, size),
        "unigram_loss": baselines["unigram"],
        "bigram_loss": baselines["bigram"],
    }
    verdict.facts["heldout"] = {"tokens": measured.tokens, "bytes": size}
    _check_loss(verdict, inputs, measured, baselines)


def _check_loss(
    verdict: Verdict, inputs: Inputs, measured: Likelihood, baselines: dict[str, float]
) -> None:
    checks, params, loss = verdict.checks, inputs.params, measured.loss
    checks.require("heldout_loss", loss, "finite", math.isfinite(loss))
    if params.max_perplexity is not None:
        checks.at_most("perplexity", measured.perplexity, params.max_perplexity)
    for name, what in _TO_BEAT[params.beat].items():
        checks.below(f"heldout_loss_against_{name}", loss, baselines[name], what)


_UNIGRAM = {"unigram": "the loss of a unigram model on the same tokens"}
_BIGRAM = {"bigram": "the loss of a Kneser-Ney bigram model on the same tokens"}
_TO_BEAT: dict[str, dict[str, str]] = {
    "none": {},
    "unigram": _UNIGRAM,
    "bigram": {**_UNIGRAM, **_BIGRAM},
}


def _judge_elsewhere(verdict: Verdict, inputs: Inputs, model: PreTrainedModel) -> None:
    ids = inputs.few_windows()
    check_elsewhere(
        verdict.checks,
        inputs.model,
        ids=ids.tolist(),
        loss=loss_of(model, ids),
        prompt=inputs.params.prompts[0],
        threads=inputs.params.threads,
    )


@torch.no_grad()
def loss_of(model: PreTrainedModel, ids: torch.Tensor) -> float:
    """Mean NLL of the windows' tokens but the first ones, in nats."""
    rows = ids.to(next(model.parameters()).device)
    logits = model(input_ids=rows[:, :-1], use_cache=False).logits.float()
    return float(functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()))
