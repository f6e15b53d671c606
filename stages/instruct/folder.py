"""Hugging Face folders: read with checks, written so that equal weights give equal bytes."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import logging as transformers_logging

from trainwright.stages.contract import DataError, UsageError

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


def pick_device() -> torch.device:
    """CUDA where there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def use_threads(threads: int) -> None:
    """Let torch use `threads` CPU threads; 0 means all cores this process may run on."""
    torch.set_num_threads(threads or len(os.sched_getaffinity(0)))


def quiet() -> None:
    """No progress bars (progress has its own file) and no notes on fresh heads in the stage's log."""
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()


def load_tokenizer(folder: Path) -> Any:
    """The folder's tokenizer; `DataError` if it cannot be read."""
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise DataError(f"{folder.name}: the tokenizer cannot be loaded: {_line(error)}") from None


def load_causal(folder: Path, device: torch.device) -> PreTrainedModel:
    """The folder's causal language model in float32, in evaluation mode."""
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder, local_files_only=True, dtype=torch.float32
        )
    except (OSError, ValueError) as error:
        raise DataError(f"{folder.name}: the model cannot be loaded: {_line(error)}") from None
    return model.to(device).eval()


def check_fit(model: PreTrainedModel, tokenizer: Any, longest: int, what: str) -> None:
    """Refuse a tokenizer with more tokens than the model, and `longest` beyond its positions."""
    vocabulary = model.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > vocabulary:
        raise DataError(
            f"the tokenizer has {len(tokenizer)} tokens, the model's vocabulary {vocabulary}: "
            "they do not belong together; use the tokenizer that the model was made with"
        )
    positions = getattr(model.config, "max_position_embeddings", None)
    if positions is not None and longest > positions:
        raise UsageError(
            f"{what} is {longest} tokens, the model has {positions} positions: "
            f"lower it to {positions} or less, or initialize the model with more positions"
        )


def save_folder(model: PreTrainedModel, source: Path, target: Path) -> None:
    """Write weights and configuration to `target`, with the tokenizer files of `source` as they are."""
    model.save_pretrained(target)
    drop_origin(target / "config.json")
    copy_tokenizer(source, target)


def end_answers_at(model: PreTrainedModel, end_id: int) -> None:
    """Let `generate` elsewhere stop at the end of an answer as well as at the end of a text."""
    given = model.config.eos_token_id
    ends = [given] if isinstance(given, int) else list(given or [])
    model.generation_config.eos_token_id = sorted({*ends, end_id})


def copy_tokenizer(source: Path, target: Path) -> None:
    """Copy the tokenizer's files."""
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)


def drop_origin(path: Path) -> None:
    """Rewrite a configuration without the folder that it came from."""
    config = json.loads(path.read_text())
    config.pop("_name_or_path", None)
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def _line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
