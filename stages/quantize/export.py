"""The int8 model as a Hugging Face folder in the format `int-quantized` of compressed-tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel

from trainwright.stages.model.folder import copy_tokenizer, drop_origin
from trainwright.stages.quantize.fake import FakeQuantLinear


def quantization_config(ignored: list[str]) -> dict[str, Any]:
    """What tells a loader that linear layers hold int8 weights and take int8 activations."""
    shared = {"num_bits": 8, "type": "int", "symmetric": True}
    return {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {**shared, "strategy": "channel", "dynamic": False},
                "input_activations": {**shared, "strategy": "token", "dynamic": True},
                "format": "int-quantized",
            }
        },
        "ignore": ignored,
    }


def tensors(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The file's tensors: int8 weights with scales, embeddings in bfloat16, the rest in float32.

    An output layer tied to the embeddings is not stored twice.
    """
    tied = model.config.tie_word_embeddings
    embeddings = {id(model.get_input_embeddings().weight), id(model.get_output_embeddings().weight)}
    found: dict[str, torch.Tensor] = {}
    for name, module in model.named_modules():
        if isinstance(module, FakeQuantLinear):
            found[f"{name}.weight"], found[f"{name}.weight_scale"] = module.stored()
            if module.bias is not None:
                found[f"{name}.bias"] = module.bias.detach()
            continue
        if tied and module is model.get_output_embeddings():
            continue
        for leaf, parameter in module.named_parameters(recurse=False):
            half = id(parameter) in embeddings
            dtype = torch.bfloat16 if half else torch.float32
            found[f"{name}.{leaf}"] = parameter.detach().to(dtype)
    return {name: value.cpu().contiguous() for name, value in found.items()}


def export(model: PreTrainedModel, source: Path, target: Path) -> None:
    """Write a fake-quantized model to `target`, with the tokenizer files of `source`."""
    target.mkdir(parents=True)
    save_file(tensors(model), target / "model.safetensors", metadata={"format": "pt"})
    model.config.save_pretrained(target)
    model.generation_config.save_pretrained(target)
    path = target / "config.json"
    drop_origin(path)
    config = json.loads(path.read_text())
    config["quantization_config"] = quantization_config([_output_name(model)])
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    copy_tokenizer(source, target)


def weight_bytes(folder: Path) -> int:
    """Size of a folder's weight files."""
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def _output_name(model: PreTrainedModel) -> str:
    output = model.get_output_embeddings()
    return next(name for name, module in model.named_modules() if module is output)
