"""Quantization-aware training to int8 weights and activations, and an export that loads elsewhere."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from trainwright.stages.context import StageContext
from trainwright.stages.contract import DataError, GateError, Sample, StageResult
from trainwright.stages.instruct.chat import ChatFormat
from trainwright.stages.instruct.packing import PackedOrder
from trainwright.stages.instruct.pairs import Instruction, read_rows, render
from trainwright.stages.model.folder import (
    check_fit,
    check_masks,
    load_causal,
    load_tokenizer,
    pick_device,
    quiet,
    use_threads,
)
from trainwright.stages.model.perplexity import perplexity
from trainwright.stages.model.sampler import Sampling, generate
from trainwright.stages.model.tokens import Split
from trainwright.stages.quantize.export import export, weight_bytes
from trainwright.stages.quantize.fake import with_fake_quantization
from trainwright.stages.quantize.params import QuantizeParams
from trainwright.stages.quantize.training import Distiller, Rows, chat_rows_of, distil

LARGEST_DIFFERENCE = 1e-4
"""Of the export's logits from the trained model's: more is another model, not rounding."""


@dataclass(frozen=True)
class Setup:
    """What the stage reads."""

    params: QuantizeParams
    source: Path
    tokenizer: Any
    device: torch.device
    train: Split
    heldout: Split


def run(context: StageContext) -> StageResult:
    """Quantize, train, export, load the export again and measure it; writes `model/`."""
    setup = _setup(context)
    teacher = load_causal(setup.source, setup.device).requires_grad_(False)
    check_fit(teacher, setup.tokenizer, setup.params.row_tokens, "row_tokens")
    check_masks(teacher)
    _check_vocabulary(setup, teacher)
    student = copy.deepcopy(teacher).requires_grad_(True)
    layers = with_fake_quantization(student)
    if not layers:
        raise DataError(
            f"the model ({teacher.config.model_type}) has no linear layer beside its output, so there "
            "is nothing to quantize: use an architecture made of torch.nn.Linear, such as llama"
        )
    context.progress("held-out text before")
    figures = {
        "perplexity_float": _perplexity(setup, teacher),
        "perplexity_ptq": _perplexity(setup, student),
    }
    distil(context, Distiller(student, teacher, setup.params, setup.device), _rows(context, setup))

    target = context.out / "model"
    export(student, setup.source, target)
    context.progress("held-out text after")
    reloaded = load_causal(target, setup.device)
    difference = logit_difference(student, reloaded, setup.heldout, setup.params.row_tokens)
    if not difference <= LARGEST_DIFFERENCE:
        raise GateError(
            f"the export's logits are {difference} from the trained model's: "
            "this version of compressed-tensors computes otherwise; install the pinned one"
        )
    return _result(context, setup, figures, reloaded, difference, len(layers))


def _setup(context: StageContext) -> Setup:
    params = context.typed(QuantizeParams)
    use_threads(params.threads)
    quiet()
    source = context.input("model") / "model"
    corpus = context.input("corpus")
    return Setup(
        params=params,
        source=source,
        tokenizer=load_tokenizer(source),
        device=pick_device(),
        train=Split(corpus, "train"),
        heldout=Split(corpus, "heldout"),
    )


def _check_vocabulary(setup: Setup, model: PreTrainedModel) -> None:
    held = model.get_input_embeddings().weight.shape[0]
    if setup.train.vocabulary > held:
        raise DataError(
            f"the corpus has a vocabulary of {setup.train.vocabulary} tokens, the model one of "
            f"{held}: give the model the corpus that it was trained on"
        )


def _rows(context: StageContext, setup: Setup) -> Rows:
    params = setup.params
    count = chat_rows_of(params)
    if not count:
        return Rows(setup.train, None, params)
    path = context.input("corpus") / "instructions" / "train.jsonl"
    chats, _ = render(ChatFormat(setup.tokenizer), read_rows(path, Instruction), params.row_tokens)
    order = PackedOrder(chats, row_tokens=params.row_tokens, batch_rows=count, seed=params.seed)
    return Rows(setup.train, order, params)


def _perplexity(setup: Setup, model: PreTrainedModel) -> float:
    return perplexity(
        model, setup.heldout, length=setup.params.row_tokens, limit=setup.params.heldout_tokens
    )


@torch.no_grad()
def logit_difference(
    one: PreTrainedModel, other: PreTrainedModel, split: Split, length: int
) -> float:
    """The largest difference between two models' logits on held-out text."""
    device = next(one.parameters()).device
    ids = next(iter(split.windows(length, 8 * length + 1, 8)))[:, :-1].to(device)
    gap = one(input_ids=ids, use_cache=False).logits - other(input_ids=ids, use_cache=False).logits
    return float(gap.abs().max())


def _result(
    context: StageContext,
    setup: Setup,
    figures: dict[str, float],
    reloaded: PreTrainedModel,
    difference: float,
    layers: int,
) -> StageResult:
    figures["perplexity_int8"] = _perplexity(setup, reloaded)
    figures["perplexity_ratio"] = figures["perplexity_int8"] / figures["perplexity_float"]
    figures["bytes_float32"] = float(weight_bytes(setup.source))
    figures["bytes_int8"] = float(weight_bytes(context.out / "model"))
    figures["size_ratio"] = figures["bytes_int8"] / figures["bytes_float32"]
    return StageResult(
        metrics=figures,
        summary={
            "objective": "self-distillation: KL of the aligned float model to the int8 one",
            "int8_layers": layers,
            "export_logit_difference": difference,
            "perplexity_ratio_ptq": figures["perplexity_ptq"] / figures["perplexity_float"],
        },
        samples=_samples(context, setup, reloaded),
    )


def _samples(context: StageContext, setup: Setup, model: PreTrainedModel) -> list[Sample]:
    """Greedy completions by the reloaded export."""
    path = context.input("corpus") / "instructions" / "heldout.jsonl"
    if not setup.params.samples or not path.is_file():
        return []
    chat = ChatFormat(setup.tokenizer)
    prompts = [row.prompt for row in read_rows(path, Instruction)[: setup.params.samples]]
    answers = generate(
        model,
        [chat.prompt(prompt) for prompt in prompts],
        Sampling(new_tokens=setup.params.sample_tokens, temperature=0),
        end_id=chat.end_id,
        pad_id=setup.tokenizer.pad_token_id or 0,
    )
    return [
        Sample(prompt=p, completion=chat.text(ids)) for p, ids in zip(prompts, answers, strict=True)
    ]
