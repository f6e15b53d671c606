"""The gate of the export: small, and as good as the float model that it was made from."""

from __future__ import annotations

import json
from typing import Any

import torch
from transformers import PreTrainedModel

from trainwright.stages.contract import DataError
from trainwright.stages.model.folder import check_fit, load_causal
from trainwright.stages.model.perplexity import likelihood
from trainwright.stages.validate.elsewhere import check_elsewhere
from trainwright.stages.validate.files import tensors_of, weight_bytes
from trainwright.stages.validate.gate import Inputs, Verdict
from trainwright.stages.validate.generation import check_generation
from trainwright.stages.validate.integrity import check_integrity
from trainwright.stages.validate.pretrained import loss_of

WAY_OUT = (
    "If the files are whole, train longer in the step quantize, or change what the step accept asks "
    "for (max_perplexity_ratio, max_size_ratio, max_repeat_share)"
)
_DEPENDENT = ["perplexity ratio", "size ratio", "generation", "loading elsewhere"]


def judge(inputs: Inputs) -> Verdict:
    """Measure an int8 export beside the input `reference`."""
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
    check_fit(model, tokenizer, inputs.params.sequence_length, "accept.sequence_length")
    _check_format(verdict, inputs)
    reference = load_causal(inputs.context.input("reference") / "model", inputs.device)
    if _vocabulary(reference) != _vocabulary(model):
        raise DataError(
            f"the export has {_vocabulary(model)} tokens, its reference {_vocabulary(reference)}: "
            "give as reference the model that was quantized"
        )
    _judge_size(verdict, inputs, reference)
    _judge_loss(verdict, inputs, model, reference)
    progress("generation")
    verdict.samples = check_generation(verdict.checks, model, tokenizer, inputs.params)
    progress("loading elsewhere")
    _judge_elsewhere(verdict, inputs, model)
    return verdict


def _check_format(verdict: Verdict, inputs: Inputs) -> None:
    config = json.loads((inputs.model / "config.json").read_text(encoding="utf-8"))
    method = (config.get("quantization_config") or {}).get("quant_method", "none")
    verdict.checks.require(
        "quantization", method, "compressed-tensors", method == "compressed-tensors"
    )
    count = tensors_of(inputs.model, "I8")
    verdict.checks.require("int8_tensors", float(count), "at least 1", count > 0)


def _judge_size(verdict: Verdict, inputs: Inputs, reference: PreTrainedModel) -> None:
    """Bytes of the weight files over 4 bytes a parameter of the float model, tied ones once."""
    size, full = weight_bytes(inputs.model), 4 * sum(p.numel() for p in reference.parameters())
    verdict.metrics["size_ratio"] = size / full
    verdict.facts["bytes"] = {"export": size, "float32": full}
    verdict.checks.at_most("size_ratio", size / full, inputs.params.max_size_ratio)


def _judge_loss(
    verdict: Verdict, inputs: Inputs, model: PreTrainedModel, reference: PreTrainedModel
) -> None:
    progress, params = inputs.context.progress, inputs.params
    progress("held-out text, export")
    ours = likelihood(model, inputs.heldout, **inputs.span)
    progress("held-out text, float model")
    theirs = likelihood(reference, inputs.heldout, **inputs.span)
    # Through losses: a quotient of two infinite perplexities would say nothing.
    ratio = _ratio(ours.loss, theirs.loss)
    verdict.metrics |= {
        "perplexity": ours.perplexity,
        "perplexity_reference": theirs.perplexity,
        "perplexity_ratio": ratio,
        "max_logit_difference": logit_difference(model, reference, inputs.few_windows(8)),
    }
    verdict.facts["heldout"] = {"tokens": ours.tokens}
    verdict.checks.at_most("perplexity_ratio", ratio, params.max_perplexity_ratio)
    if params.max_perplexity is not None:
        verdict.checks.at_most("perplexity", ours.perplexity, params.max_perplexity)


def _ratio(loss: float, reference: float) -> float:
    return float(torch.tensor(loss - reference, dtype=torch.float64).exp())


@torch.no_grad()
def logit_difference(one: PreTrainedModel, other: PreTrainedModel, ids: torch.Tensor) -> float:
    """The largest difference between two models' logits on the windows, in absolute value."""
    rows = ids[:, :-1].to(next(one.parameters()).device)
    gap = (
        one(input_ids=rows, use_cache=False).logits - other(input_ids=rows, use_cache=False).logits
    )
    return float(gap.abs().max())


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


def _vocabulary(model: PreTrainedModel) -> int:
    embeddings: Any = model.get_input_embeddings()
    return int(embeddings.weight.shape[0])
