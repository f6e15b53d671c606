"""Instruction tuning: LoRA on the pretrained model, merged into a model of the same shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from trainwright.stages.context import StageContext
from trainwright.stages.contract import Sample, StageResult
from trainwright.stages.instruct.chat import ChatFormat, Rendered
from trainwright.stages.instruct.loop import Tuner, train
from trainwright.stages.instruct.lora import add_adapters, merge, save_adapter, trainable
from trainwright.stages.instruct.loss import mean_answer_loss
from trainwright.stages.instruct.packing import PackedOrder
from trainwright.stages.instruct.pairs import Instruction, read_rows, render
from trainwright.stages.instruct.params import InstructParams
from trainwright.stages.model.folder import (
    check_fit,
    check_masks,
    end_answers_at,
    load_causal,
    load_tokenizer,
    pick_device,
    quiet,
    save_folder,
    use_threads,
)
from trainwright.stages.model.sampler import Sampling, generate


@dataclass(frozen=True)
class Data:
    """Chats to learn, chats to measure on, and the prompts of the samples."""

    train: list[Rendered]
    heldout: list[Rendered]
    prompts: list[str]
    too_long: int


def run(context: StageContext) -> StageResult:
    """Tune, measure the held-out answer loss before and after, write `model/` and `adapter/`."""
    params = context.typed(InstructParams)
    use_threads(params.threads)
    quiet()
    device = pick_device()
    source = context.input("model") / "model"
    tokenizer = load_tokenizer(source)
    chat = ChatFormat(tokenizer)
    model = load_causal(source, device)
    check_fit(model, tokenizer, params.row_tokens, "row_tokens")
    check_masks(model)
    data = _read(context, params, chat)

    before = _measure(context, model, data, params, device)
    samples = [_samples(model, chat, tokenizer, data.prompts, params)]
    tuned = add_adapters(model, params.lora, chat.special_ids, params.seed)
    learning = sum(p.numel() for p in trainable(tuned).values())
    order = PackedOrder(
        data.train, row_tokens=params.row_tokens, batch_rows=params.batch_rows, seed=params.seed
    )
    train(context, Tuner(tuned, params, device), order)
    save_adapter(tuned, context.out / "adapter")
    merged = merge(tuned)
    after = _measure(context, merged, data, params, device)
    samples.append(_samples(merged, chat, tokenizer, data.prompts, params))
    end_answers_at(merged, chat.end_id)
    save_folder(merged, source, context.out / "model")
    return StageResult(
        metrics={"answer_loss_before": before, "answer_loss_after": after},
        summary={
            "pairs": {"train": len(data.train), "heldout": len(data.heldout)},
            "pairs_too_long": data.too_long,
            "parameters": {"trained": learning, "model": _count(merged)},
            "samples": _side_by_side(data.prompts, *samples),
        },
        samples=[
            Sample(prompt=prompt, completion=text)
            for prompt, text in zip(data.prompts, samples[1], strict=True)
        ],
    )


def _read(context: StageContext, params: InstructParams, chat: ChatFormat) -> Data:
    folder = context.input("corpus") / "instructions"
    train_rows = read_rows(folder / "train.jsonl", Instruction)
    heldout_rows = read_rows(folder / "heldout.jsonl", Instruction)[: params.heldout_pairs]
    learnt, left_out = render(chat, train_rows, params.row_tokens)
    measured, _ = render(chat, heldout_rows, params.row_tokens)
    prompts = [row.prompt for row in heldout_rows[: params.samples]]
    return Data(learnt, measured, prompts, left_out)


def _measure(
    context: StageContext,
    model: PreTrainedModel,
    data: Data,
    params: InstructParams,
    device: torch.device,
) -> float:
    context.progress("held-out answers")
    return mean_answer_loss(
        model, data.heldout, row_tokens=params.row_tokens, rows=params.micro_rows, device=device
    )


def _samples(
    model: PreTrainedModel,
    chat: ChatFormat,
    tokenizer: Any,
    prompts: list[str],
    params: InstructParams,
) -> list[str]:
    """Greedy completions of the prompts."""
    if not prompts:
        return []
    answers = generate(
        model,
        [chat.prompt(prompt) for prompt in prompts],
        Sampling(new_tokens=params.sample_tokens, temperature=0),
        end_id=chat.end_id,
        pad_id=tokenizer.pad_token_id or 0,
    )
    return [chat.text(ids) for ids in answers]


def _side_by_side(prompts: list[str], before: list[str], after: list[str]) -> list[dict[str, str]]:
    return [
        {"prompt": p, "before": b, "after": a}
        for p, b, a in zip(prompts, before, after, strict=True)
    ]


def _count(model: PreTrainedModel) -> int:
    return sum(p.numel() for p in model.parameters())
