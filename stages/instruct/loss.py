"""Negative log-likelihood of what the assistant said."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional
from transformers import PreTrainedModel

from trainwright.stages.instruct.chat import Rendered
from trainwright.stages.instruct.packing import PackedBatch, collate, pack


def answer_nll(model: torch.nn.Module, batch: PackedBatch) -> torch.Tensor:
    """Sum of the NLL over the batch's answer tokens, in nats; a scalar.

    Each token sees only its own chat, at positions that begin with 0.
    """
    logits = model(
        input_ids=batch.ids,
        position_ids=batch.positions,
        attention_mask=batch.attention(),
        use_cache=False,
    ).logits
    return functional.cross_entropy(
        logits.flatten(0, 1).float(), batch.targets.flatten(), ignore_index=-100, reduction="sum"
    )


@torch.no_grad()
def mean_answer_loss(
    model: PreTrainedModel,
    chats: Sequence[Rendered],
    *,
    row_tokens: int,
    rows: int,
    device: torch.device,
) -> float:
    """Mean NLL per answer token over all chats, in nats, `rows` packed rows at a time."""
    packed = pack([len(chat.ids) for chat in chats], range(len(chats)), row_tokens)
    total, tokens = 0.0, 0
    for start in range(0, len(packed), rows):
        batch = collate([[chats[i] for i in row] for row in packed[start : start + rows]])
        total += float(answer_nll(model, batch.to(device)))
        tokens += batch.answer_tokens
    return total / tokens
