"""Hugging Face folders: read with checks, written so that equal weights give equal bytes.

Other rooms use:
- `load_causal(folder, device)`: the model in float32; weights from safetensors alone, every one of them
- `load_tokenizer(folder)`, `check_fit(model, tokenizer, longest, what)`, `check_masks(model)`
- `save_folder(model, source, target)`: weights, configuration, and the tokenizer files of `source`
- `pick_device()`, `use_threads(n)`, `quiet()`
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
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
    """No progress bars in the stage's log: progress has its own file."""
    transformers_logging.disable_progress_bar()


def load_tokenizer(folder: Path) -> Any:
    """The folder's tokenizer; `DataError` if it cannot be read."""
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # The tokenizers library raises bare Exception for a broken file.
        raise DataError(f"{folder.name}: the tokenizer cannot be loaded: {_line(error)}") from None


@dataclass(frozen=True)
class Misfit:
    """Names of weights that a folder's configuration and its weight files do not agree on."""

    missing: tuple[str, ...]
    """In the configuration's model, not in the files: transformers fills them with random numbers."""
    unexpected: tuple[str, ...]
    """In the files, with no place in the configuration's model: transformers leaves them out."""
    mismatched: tuple[str, ...]
    """Of another shape: transformers fills them with random numbers."""

    def __len__(self) -> int:
        return len(self.missing) + len(self.unexpected) + len(self.mismatched)

    def __str__(self) -> str:
        kinds = {
            "not in the weight files": self.missing,
            "of another shape": self.mismatched,
            "unknown to the configuration": self.unexpected,
        }
        return ", ".join(
            f"{len(names)} weights {what} ({names[0]} ...)"
            for what, names in kinds.items()
            if names
        )


def load_with_misfit(
    folder: Path, device: torch.device, dtype: torch.dtype = torch.float32
) -> tuple[PreTrainedModel, Misfit]:
    """The folder's causal language model in evaluation mode, and what did not fit.

    Pickled weights and code in the folder are never run. `DataError` if it cannot be loaded at all.
    """
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            dtype=dtype,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except torch.OutOfMemoryError:
        raise
    except _LOADING_ERRORS as error:
        raise DataError(f"{folder.name}: the model cannot be loaded: {_line(error)}") from None
    model, info = loaded
    misfit = Misfit(
        missing=tuple(sorted(info["missing_keys"])),
        unexpected=tuple(sorted(info["unexpected_keys"])),
        mismatched=tuple(sorted(_name(entry) for entry in info["mismatched_keys"])),
    )
    return model.to(device).eval(), misfit


_LOADING_ERRORS = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RuntimeError,
    SafetensorError,
)


def load_causal(folder: Path, device: torch.device) -> PreTrainedModel:
    """The folder's causal language model in float32, in evaluation mode.

    Refused are weights that are missing or of another shape: transformers would go on with random
    ones.
    """
    model, misfit = load_with_misfit(folder, device)
    if misfit.missing or misfit.mismatched:
        raise DataError(
            f"{folder.name}: config.json and the weights do not belong together: {misfit}; "
            "save configuration and weights of one model with save_pretrained"
        )
    return model


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


def check_masks(model: PreTrainedModel) -> None:
    """Refuse a model that would not obey the masks of packed rows.

    They are bool. Attention written out by hand adds a mask to its scores, so true and false would
    be 1 and 0, and every token would see every other.
    """
    kind = getattr(model.config, "_attn_implementation", None)
    if kind != "sdpa":
        raise DataError(
            f"the model ({model.config.model_type}) has the attention {kind!r}, which does not obey "
            "the masks of packed rows: use an architecture for which transformers has sdpa attention"
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


def _name(entry: Any) -> str:
    return entry if isinstance(entry, str) else str(entry[0])


def _line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
