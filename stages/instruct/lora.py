"""Adapters: put on, merged in float32, written with bytes that depend on nothing but their values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import PreTrainedModel

from trainwright.stages.instruct.params import LoraParams


def add_adapters(
    model: PreTrainedModel, params: LoraParams, special_ids: list[int], seed: int
) -> PeftModel:
    """The model with fresh adapters on every linear layer but the output; the rest is frozen.

    `special_ids` are the tokens whose embeddings are trained too, if the parameters say so.
    """
    torch.manual_seed(seed)
    config = LoraConfig(
        r=params.rank,
        lora_alpha=params.alpha,
        lora_dropout=params.dropout,
        target_modules="all-linear",
        trainable_token_indices=special_ids if params.train_chat_tokens else None,
        task_type="CAUSAL_LM",
    )
    return get_peft_model(model, config)


def trainable(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """The parameters that learn, by name; a parameter shared by two layers stands once."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def save_adapter(model: PeftModel, folder: Path) -> None:
    """Write the adapters; `base_model_name_or_path` is left empty, since the base is an artifact."""
    model.save_pretrained(folder, save_embedding_layers=False)
    (folder / "README.md").unlink(missing_ok=True)
    path = folder / "adapter_config.json"
    config = json.loads(path.read_text())
    config["base_model_name_or_path"] = None
    path.write_text(json.dumps(_ordered(config), indent=2, sort_keys=True) + "\n")


def _ordered(value: Any) -> Any:
    # peft keeps module names in a set, whose order changes from process to process.
    if isinstance(value, dict):
        return {key: _ordered(item) for key, item in value.items()}
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return sorted(value)
    return value


def merge(model: PeftModel) -> PreTrainedModel:
    """The base model with the adapters added to its weights, in the weights' own precision."""
    return model.merge_and_unload(safe_merge=True)
