"""The trained weights as a Hugging Face folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from trainwright.stages.model.folder import load_causal, save_folder


def write_model(initial: Path, weights: dict[str, torch.Tensor], target: Path) -> None:
    """Write `weights` with the configuration and tokenizer of the initial folder.

    Equal weights give equal bytes.
    """
    model = load_causal(initial, torch.device("cpu"))
    tied = {name for name in model.state_dict() if name not in weights}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    if unexpected or set(missing) != tied:
        raise ValueError(f"weights do not fit the model: missing {missing}, unknown {unexpected}")
    model.tie_weights()
    temporary = target.with_name(f"{target.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    save_folder(model, initial, temporary)
    shutil.rmtree(target, ignore_errors=True)
    temporary.rename(target)
