"""Batched generation with a key-value cache; a row's outcome does not hang on its neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. Temperature 0 takes the likeliest token; `seed` keys the draws."""

    new_tokens: int
    temperature: float = 1.0
    seed: int = 0


def pad_left(prompts: Sequence[Sequence[int]], pad_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Prompts as int64 [n, longest], padded on the left, and the mask of what is real (by length)."""
    longest = max(len(prompt) for prompt in prompts)
    ids = torch.full((len(prompts), longest), pad_id)
    mask = torch.zeros(len(prompts), longest, dtype=torch.int64)
    for row, prompt in enumerate(prompts):
        ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask[row, longest - len(prompt) :] = 1
    return ids, mask


def positions_of(mask: torch.Tensor) -> torch.Tensor:
    """Position of each token in its own sequence, from a mask padded on the left; padding is at 0."""
    return (mask.cumsum(-1) - 1).clamp(min=0)


def uniforms(rows: int, columns: int, seed: int) -> torch.Tensor:
    """One uniform number per row and step, float64 [rows, columns], a pure function of the seed."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(rows, columns, generator=generator, dtype=torch.float64)


def choose(logits: torch.Tensor, uniform: torch.Tensor, temperature: float) -> torch.Tensor:
    """The next token of each row, by inverting the cumulative distribution at `uniform`.

    `logits` [rows, vocabulary], `uniform` [rows] in [0, 1); int64 [rows].
    """
    if temperature == 0:
        return logits.argmax(-1)
    cumulative = torch.softmax(logits.double() / temperature, -1).cumsum(-1)
    # Scaled by the sum, which rounding leaves beside 1: the last token must stay reachable, none beyond.
    target = uniform[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, target, right=True)[:, 0].clamp(max=logits.shape[-1] - 1)


@torch.no_grad()
def generate(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    *,
    end_id: int,
    pad_id: int,
) -> list[list[int]]:
    """The answers' ids, each with its end token unless it ran into `new_tokens`."""
    device = next(model.parameters()).device
    ids, mask = (tensor.to(device) for tensor in pad_left(prompts, pad_id))
    draws = uniforms(len(prompts), sampling.new_tokens, sampling.seed).to(device)
    positions = positions_of(mask)
    cache, answers = None, [[] for _ in prompts]
    open_rows = set(range(len(prompts)))
    for step in range(sampling.new_tokens):
        out = model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            cache=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        cache = out.cache
        chosen = choose(out.logits[:, -1].float(), draws[:, step], sampling.temperature)
        for row, token in enumerate(chosen.tolist()):
            if row in open_rows:
                answers[row].append(token)
                if token == end_id:
                    open_rows.discard(row)
        if not open_rows:
            break
        ids = chosen[:, None]
        mask = torch.cat([mask, mask.new_ones(len(prompts), 1)], 1)
        positions = mask.sum(-1, keepdim=True) - 1
    return answers
