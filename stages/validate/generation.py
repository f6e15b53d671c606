"""Completions of a few prompts, and whether they are text or a stuck needle."""

from __future__ import annotations

from collections import Counter
from typing import Any

from transformers import PreTrainedModel

from trainwright.stages.contract import Sample
from trainwright.stages.model.folder import check_fit
from trainwright.stages.model.sampler import Sampling, generate
from trainwright.stages.validate.checks import Checklist
from trainwright.stages.validate.params import ValidateParams

TEMPERATURE = 0.8
"""Of the samples: greedy text of a small model repeats itself even where the model is sound."""
MOST_EMPTY = 0.5
"""Share of prompts that may get no text: one sample can end at once by chance, most cannot."""


def check_generation(
    checks: Checklist, model: PreTrainedModel, tokenizer: Any, params: ValidateParams
) -> list[Sample]:
    """Sample a completion of each prompt, check them, and return them."""
    prompts = [prompt_ids(tokenizer, prompt) for prompt in params.prompts]
    longest = max(map(len, prompts)) + params.sample_tokens
    check_fit(model, tokenizer, longest, "a prompt with its sample_tokens")
    answers = generate(
        model,
        prompts,
        Sampling(params.sample_tokens, temperature=TEMPERATURE, seed=params.seed),
        end_id=_or(tokenizer.eos_token_id, -1),
        pad_id=_or(tokenizer.pad_token_id, 0),
    )
    ends = end_ids(model, tokenizer)
    answers = [until_end(answer, ends) for answer in answers]
    texts = [tokenizer.decode(answer, skip_special_tokens=True) for answer in answers]
    empty = sum(not text.strip() for text in texts) / len(texts)
    checks.at_most("empty_sample_share", empty, MOST_EMPTY, "no text comes out")
    share = repeat_share(answers)
    checks.at_most("repeat_share", share, params.max_repeat_share, "one token over and over")
    return [Sample(prompt=p, completion=t) for p, t in zip(params.prompts, texts, strict=True)]


def prompt_ids(tokenizer: Any, prompt: str) -> list[int]:
    """The prompt as the beginning of a document."""
    start = [] if tokenizer.bos_token_id is None else [int(tokenizer.bos_token_id)]
    return [*start, *tokenizer.encode(prompt, add_special_tokens=False)]


def end_ids(model: PreTrainedModel, tokenizer: Any) -> set[int]:
    """The tokens that end a text: the tokenizer's, and those of the generation config."""
    given = model.generation_config.eos_token_id
    ends = {given} if isinstance(given, int) else set(given or [])
    return ends | ({tokenizer.eos_token_id} - {None})


def until_end(ids: list[int], ends: set[int]) -> list[int]:
    """The tokens before the first that ends a text."""
    for place, token in enumerate(ids):
        if token in ends:
            return ids[:place]
    return ids


def repeat_share(answers: list[list[int]]) -> float:
    """The share of all tokens that the commonest token of their own answer makes up; 0 without tokens.

    Counted by answer, so that an answer stuck on one token shows even if another is stuck elsewhere.
    """
    total = sum(map(len, answers))
    commonest = sum(Counter(answer).most_common(1)[0][1] for answer in answers if answer)
    return commonest / total if total else 0.0


def _or(value: int | None, other: int) -> int:
    return other if value is None else value
