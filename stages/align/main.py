"""Alignment: a reward model learnt from preferences, and PPO against it."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from trainwright.stages.align.heldout import Judged, judge, kl_to_reference
from trainwright.stages.align.params import AlignParams
from trainwright.stages.align.ppo import Models, Tokens, Trainer, optimize
from trainwright.stages.align.reward import new_reward_model
from trainwright.stages.align.reward_training import (
    Accuracy,
    RewardTuner,
    encode_pairs,
    measure_accuracy,
    paired,
    train_reward_model,
)
from trainwright.stages.context import StageContext
from trainwright.stages.contract import DataError, Sample, StageResult
from trainwright.stages.instruct.chat import ChatFormat
from trainwright.stages.instruct.pairs import Instruction, Preference, read_rows
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
from trainwright.stages.model.sampler import Sampling


@dataclass(frozen=True)
class Setup:
    """What both halves of the stage read."""

    params: AlignParams
    source: Path
    chat: ChatFormat
    tokens: Tokens
    device: torch.device


@dataclass(frozen=True)
class Questions:
    """Prompts as text and as ids."""

    texts: list[str]
    ids: list[list[int]]


def run(context: StageContext) -> StageResult:
    """Train the reward model, optimize against it, write `reward_model/` and `model/`."""
    setup = _setup(context)
    # Read and checked before anything is trained: a refusal costs no minutes.
    reference = _reference(setup)
    learnt = _questions(context, setup, "train", None)
    heldout = _questions(context, setup, "heldout", setup.params.heldout_prompts)
    reward, accuracy, pairs = _reward_model(context, setup)
    save_folder(reward, setup.source, context.out / "reward_model")
    outcome = _optimize(context, setup, reference, reward, learnt, heldout)
    return _result(setup, accuracy, pairs, heldout, outcome)


def _setup(context: StageContext) -> Setup:
    params = context.typed(AlignParams)
    use_threads(params.threads)
    quiet()
    source = context.input("model") / "model"
    tokenizer = load_tokenizer(source)
    chat = ChatFormat(tokenizer)
    pad = tokenizer.pad_token_id
    tokens = Tokens(end=chat.end_id, pad=chat.end_id if pad is None else pad)
    return Setup(params, source, chat, tokens, pick_device())


def _reward_model(
    context: StageContext, setup: Setup
) -> tuple[PreTrainedModel, Accuracy, dict[str, int]]:
    params = setup.params.reward
    folder = context.input("corpus") / "preferences"
    learnt, left_out = encode_pairs(
        setup.chat, read_rows(folder / "train.jsonl", Preference), params.max_tokens
    )
    rows = read_rows(folder / "heldout.jsonl", Preference)[: params.heldout_pairs]
    measured, _ = encode_pairs(setup.chat, rows, params.max_tokens)
    model = new_reward_model(setup.source, setup.device, setup.params.seed)
    model.config.pad_token_id = setup.tokens.pad
    train_reward_model(
        context, RewardTuner(model, params), learnt, setup.params.seed, setup.params.snapshot_every
    )
    context.progress("reward model on held-out pairs")
    counts = {"train": len(learnt), "train_too_long": left_out, "heldout": len(measured)}
    return model.requires_grad_(False), measure_accuracy(model, measured), counts


def _reference(setup: Setup) -> PreTrainedModel:
    reference = load_causal(setup.source, setup.device).requires_grad_(False)
    ppo = setup.params.ppo
    for longest, what in (
        (ppo.prompt_tokens + ppo.answer_tokens + 1, "ppo.prompt_tokens + ppo.answer_tokens + 1"),
        (setup.params.reward.max_tokens, "reward.max_tokens"),
    ):
        check_fit(reference, setup.chat.tokenizer, longest, what)
    check_masks(reference)
    return reference


@dataclass(frozen=True)
class Optimized:
    """What PPO did: answers before and after, KL, the figures of every iteration."""

    before: Judged
    after: Judged
    kl: dict[str, float]
    history: list[dict[str, Any]]


def _optimize(
    context: StageContext,
    setup: Setup,
    reference: PreTrainedModel,
    reward: PreTrainedModel,
    learnt: Questions,
    heldout: Questions,
) -> Optimized:
    policy = load_causal(setup.source, setup.device)
    values = copy.deepcopy(reward).requires_grad_(True)
    context.progress("held-out prompts before")
    before = _judge(setup, reference, reward, heldout)
    models = Models(policy=policy, values=values, reference=reference, reward=reward)
    trainer = Trainer(models, setup.params.ppo, setup.tokens, setup.params.seed)
    history = optimize(context, trainer, learnt.ids, setup.params.snapshot_iterations)
    context.progress("held-out prompts after")
    after = _judge(setup, policy, reward, heldout)
    kl = kl_to_reference(policy, reference, heldout.ids, after.answers, pad_id=setup.tokens.pad)
    end_answers_at(policy, setup.tokens.end)
    save_folder(policy, setup.source, context.out / "model")
    return Optimized(before, after, kl, history)


def _questions(context: StageContext, setup: Setup, split: str, limit: int | None) -> Questions:
    """Distinct prompts of a split, in file order, without those that are too long."""
    path = context.input("corpus") / "instructions" / f"{split}.jsonl"
    texts = list(dict.fromkeys(row.prompt for row in read_rows(path, Instruction)))
    longest = setup.params.ppo.prompt_tokens
    kept = Questions([], [])
    for text in texts:
        ids = setup.chat.prompt(text)
        if len(ids) <= longest:
            kept.texts.append(text)
            kept.ids.append(ids)
    if not kept.ids:
        raise DataError(
            f"instructions/{split}.jsonl has no prompt of at most {longest} tokens: "
            "raise ppo.prompt_tokens or shorten the prompts"
        )
    return Questions(kept.texts[:limit], kept.ids[:limit])


def _judge(
    setup: Setup, policy: PreTrainedModel, reward: PreTrainedModel, heldout: Questions
) -> Judged:
    # Keyed apart from the rollouts' draws.
    sampling = Sampling(setup.params.ppo.answer_tokens, 1.0, seed=setup.params.seed + 500_009)
    return judge(policy, reward, heldout.ids, setup.tokens, sampling)


def _result(
    setup: Setup,
    accuracy: Accuracy,
    pairs: dict[str, int],
    heldout: Questions,
    outcome: Optimized,
) -> StageResult:
    before, after, kl = outcome.before, outcome.after, outcome.kl
    gain, gain_error = paired(after.rewards.tolist(), before.rewards.tolist())
    samples = [
        {"prompt": prompt, "before": setup.chat.text(old), "after": setup.chat.text(new)}
        for prompt, old, new in zip(heldout.texts, before.answers, after.answers, strict=True)
    ][: setup.params.samples]
    return StageResult(
        metrics={
            "rm_accuracy": accuracy.model,
            **{f"rm_accuracy_{row['kind']}": float(row["reward_model"]) for row in accuracy.kinds},
            "baseline_word_overlap": accuracy.word_overlap,
            "baseline_longer": accuracy.longer,
            "reward_before": before.reward,
            "reward_after": after.reward,
            "kl": kl["exact"],
        },
        summary={
            "preference_pairs": pairs,
            "rm_accuracy_by_kind": accuracy.kinds,
            "rm_margin_over_best_baseline": accuracy.margin,
            "rm_margin_standard_error": accuracy.margin_error,
            "heldout_prompts": len(heldout.ids),
            "before": before.statistics(),
            "after": after.statistics(),
            "reward_gain": gain,
            "reward_gain_standard_error": gain_error,
            "kl_nats_per_answer": kl,
            "history": outcome.history,
            "samples": samples,
        },
        samples=[Sample(prompt=row["prompt"], completion=row["after"]) for row in samples],
    )
