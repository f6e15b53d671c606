"""The reward model: a Hugging Face sequence classifier of one label, read at the end token."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification, PreTrainedModel


def new_reward_model(folder: Path, device: torch.device, seed: int) -> PreTrainedModel:
    """The language model in `folder` with a fresh head of one output and no bias, in float32."""
    torch.manual_seed(seed)
    model = AutoModelForSequenceClassification.from_pretrained(
        folder, num_labels=1, local_files_only=True, dtype=torch.float32
    )
    # Drawn from a generator of its own, whatever else the load has drawn.
    width = model.score.weight.shape[1]
    draw = torch.randn(1, width, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        model.score.weight.copy_(draw / (width + 1) ** 0.5)
    return model.to(device).eval()


def pad_right(
    sequences: Sequence[Sequence[int]], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequences as int64 [n, longest], filled up with 0 on the right, and their lengths."""
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    ids = torch.zeros(len(sequences), int(lengths.max()), dtype=torch.int64)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = torch.tensor(list(sequence))
    return ids.to(device), lengths.to(device)


def reward_at_end(model: PreTrainedModel, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """The reward of each sequence, read at its last token, which its length tells; float [n].

    What fills a row up is behind the last token, where causal attention cannot look, so it needs no
    mask, and an end token that is also the padding token does no harm.
    """
    hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
    rows = torch.arange(len(ids), device=ids.device)
    return model.score(hidden[rows, lengths - 1])[:, 0]


@torch.no_grad()
def rewards_of(
    model: PreTrainedModel, sequences: Sequence[Sequence[int]], batch: int = 32
) -> torch.Tensor:
    """The rewards of sequences that close with the end token, on the CPU; float [n]."""
    device = next(model.parameters()).device
    found = [
        reward_at_end(model, *pad_right(sequences[start : start + batch], device)).cpu()
        for start in range(0, len(sequences), batch)
    ]
    return torch.cat(found)
