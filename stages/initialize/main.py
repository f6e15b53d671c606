"""Initialize: a model's shape, or an existing folder, to initial weights as a Hugging Face folder."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from trainwright.stages.artifact import file_sha256
from trainwright.stages.context import StageContext
from trainwright.stages.contract import DataError, Params, StageResult, UsageError
from trainwright.stages.initialize.params import Architecture, InitializeParams
from trainwright.stages.model.vocabulary import same_vocabulary


def identify(params: Params) -> dict[str, str]:
    """The digest of the given folder's model and tokenizer files."""
    assert isinstance(params, InitializeParams)
    if params.from_folder is None:
        return {}
    folder = checked_folder(params.from_folder)
    digest = hashlib.sha256()
    for path in model_files(folder):
        digest.update(f"{path.name}\0{file_sha256(path)}\0".encode())
    return {"from_folder": digest.hexdigest()}


def checked_folder(given: str) -> Path:
    """The folder, refused if it is not a Hugging Face model folder with safetensors weights."""
    folder = Path(given).expanduser()
    if not (folder / "config.json").is_file():
        raise DataError(
            f"initialize.from_folder: {given!r} has no config.json; give a Hugging Face model folder"
        )
    if not list(folder.glob("*.safetensors")):
        raise DataError(
            f"initialize.from_folder: {given!r} has no .safetensors weights (pickled weights are not "
            "loaded, they can run code); convert them with save_pretrained first"
        )
    return folder


def model_files(folder: Path) -> list[Path]:
    """The files that say what the model is, in name order."""
    suffixes = (".json", ".safetensors", ".jinja", ".model", ".txt")
    return sorted(p for p in folder.iterdir() if p.is_file() and p.suffix in suffixes)


def run(context: StageContext) -> StageResult:
    """Write `model/`: configuration, weights, the corpus's tokenizer."""
    from trainwright.stages.model.folder import check_fit, load_tokenizer, quiet

    params = context.typed(InitializeParams)
    corpus = context.input("corpus")
    quiet()
    tokenizer = load_tokenizer(corpus / "tokenizer")
    context.progress("initialize")
    if params.from_folder is None:
        model = fresh_model(params, tokenizer)
    else:
        model = given_model(params.from_folder, corpus / "tokenizer")
    check_fit(model, tokenizer, 1, "a sequence")
    target = context.out / "model"
    save(model, corpus / "tokenizer", target)
    count = sum(p.numel() for p in model.parameters())
    shape = json.loads((target / "config.json").read_text())
    return StageResult(
        metrics={"parameters": float(count)},
        summary={"architecture": {k: shape[k] for k in sorted(shape) if k in _SHOWN}},
    )


_SHOWN = {
    "model_type",
    "vocab_size",
    *(name for name in Architecture.model_fields if name != "rope_theta"),
}


def fresh_model(params: InitializeParams, tokenizer: Any) -> Any:
    """A new model of the given shape, initialized."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from trainwright.stages.model.initialization import initialize

    shape = params.architecture.model_dump(exclude={"model_type"})
    try:
        config = AutoConfig.for_model(
            params.architecture.model_type,
            vocab_size=len(tokenizer),
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            **shape,
        )
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    except (ValueError, KeyError) as error:
        raise UsageError(
            f"initialize.architecture: transformers has no causal language model of the type "
            f"{params.architecture.model_type!r} with this shape: {str(error).splitlines()[0]}"
        ) from None
    initialize(model, method=params.method, std=params.std, seed=params.seed)
    return model


def given_model(given: str, tokenizer: Path) -> Any:
    """The model of an existing folder, whose tokenizer must be the corpus's."""
    import torch

    from trainwright.stages.model.folder import load_causal

    folder = checked_folder(given)
    theirs, ours = folder / "tokenizer.json", tokenizer / "tokenizer.json"
    if not theirs.is_file() or not same_vocabulary(theirs, ours):
        raise DataError(
            f"initialize.from_folder: the tokenizer of {given!r} is not the corpus's; set "
            f"corpus.tokenizer.folder to {given!r}, so that the text is tokenized as the model expects"
        )
    return load_causal(folder, torch.device("cpu"))


def save(model: Any, tokenizer: Path, target: Path) -> None:
    """Write the Hugging Face folder."""
    from trainwright.stages.model.folder import save_folder

    save_folder(model, tokenizer, target)
