"""Whether a checkpoint is whole: files, finite weights, configuration and tokenizer that belong to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import PreTrainedModel

from trainwright.stages.contract import DataError
from trainwright.stages.model.folder import load_tokenizer, load_with_misfit
from trainwright.stages.model.vocabulary import same_vocabulary
from trainwright.stages.validate.checks import Checklist
from trainwright.stages.validate.files import config_faults, weight_faults


def check_integrity(
    checks: Checklist, folder: Path, tokenizer: Path, device: torch.device
) -> tuple[PreTrainedModel, Any] | None:
    """Check a model folder; its model and tokenizer, or None where one cannot be used.

    `tokenizer` is the folder of the tokenizer by which the corpus was made.
    """
    config = checks.none_of("config_faults", config_faults(folder))
    weights = checks.none_of("weight_file_faults", weight_faults(folder))
    own_tokenizer = check_tokenizer(checks, folder, tokenizer)
    finite = weights and checks.none_of("tensors_not_finite", tensors_not_finite(folder))
    if not weights:
        checks.left_out.append("finite weights")
    model = _load(checks, folder, device) if config and weights else None
    if model is None and not (config and weights):
        checks.left_out.append("whether the weights fit the configuration")
    if not finite or model is None or own_tokenizer is None:
        return None
    return model, own_tokenizer


def check_tokenizer(checks: Checklist, folder: Path, corpus: Path) -> Any | None:
    """The model's tokenizer, which must tokenize as the corpus's does."""
    name = "tokenizer"
    if not (folder / "tokenizer.json").is_file():
        checks.require(name, "missing", "there", False, "the folder has no tokenizer.json")
        return None
    try:
        tokenizer = load_tokenizer(folder)
        same = same_vocabulary(folder / "tokenizer.json", corpus / "tokenizer.json")
    except DataError as error:
        checks.require(name, "unreadable", "there", False, str(error))
        return None
    value = "the corpus's" if same else "another than the corpus's"
    fits = checks.require(name, value, "the corpus's", same, "its losses cannot be compared")
    return tokenizer if fits else None


def tensors_not_finite(folder: Path) -> list[str]:
    """Names of tensors that hold a NaN or an infinity, read one at a time."""
    found = []
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (it is no mapping)
                values = file.get_tensor(name)
                if values.is_floating_point() and not torch.isfinite(values).all():
                    found.append(name)
    return sorted(found)


def _load(checks: Checklist, folder: Path, device: torch.device) -> PreTrainedModel | None:
    try:
        model, misfit = load_with_misfit(folder, device)
    except DataError as error:
        checks.require("loads", str(error), "loads", False)
        return None
    fits = checks.require(
        "weights_that_do_not_fit_config", float(len(misfit)), "0", not len(misfit), str(misfit)
    )
    return model if fits else None
