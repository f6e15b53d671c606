"""Initial weights: each parameter draws from its own stream, keyed by (seed, name).

So the weights are equal whatever the order in which parameters are made, and whatever the sharding.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import nn

from trainwright.stages.contract import UsageError

METHODS = ("xavier_uniform", "normal")


def initialize(model: nn.Module, *, method: str, std: float, seed: int) -> None:
    """Fill the parameters of `model` in place.

    Matrices: `xavier_uniform`, U(-a, a) with a = sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio 2010,
    eq. 16), or `normal`, N(0, std). Embeddings: N(0, std), which is also what an output matrix tied to
    them gets. Vectors: weights of norms 1, biases 0; `UsageError` for a vector of another kind.
    """
    if method not in METHODS:
        raise UsageError(f"initialization method {method!r}: use {' or '.join(METHODS)}")
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    with torch.no_grad():
        for name, parameter in stable_names(model).items():
            generator = torch.Generator().manual_seed(stream(seed, name))
            values = torch.empty(parameter.shape, dtype=torch.float32)
            if parameter.ndim < 2:
                values.fill_(_constant(name))
            elif id(parameter) in embeddings or method == "normal":
                values.normal_(0.0, std, generator=generator)
            else:
                bound = xavier_bound(parameter.shape)
                values.uniform_(-bound, bound, generator=generator)
            parameter.copy_(values)


def stable_names(model: nn.Module) -> dict[str, nn.Parameter]:
    """Each parameter once, by the first of its names in the alphabet.

    A tied parameter has several names; which one torch meets first hangs on the order of the modules.
    """
    names: dict[int, str] = {}
    parameters: dict[int, nn.Parameter] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[id(parameter)] = min(name, names.get(id(parameter), name))
        parameters[id(parameter)] = parameter
    return {names[key]: parameters[key] for key in parameters}


def xavier_bound(shape: torch.Size) -> float:
    """sqrt(6 / (fan_in + fan_out)) of a matrix [out, in], or of each in a stack [..., out, in]."""
    return math.sqrt(6.0 / (shape[-1] + shape[-2]))


def stream(seed: int, name: str) -> int:
    """The seed of one parameter's own stream."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def _constant(name: str) -> float:
    leaf = name.rpartition(".")[2]
    if leaf not in ("weight", "bias"):
        raise UsageError(
            f"initialize.architecture: there is no rule for the parameter {name!r}, which is neither "
            "a matrix nor a norm's weight nor a bias; use another model_type, or from_folder"
        )
    return 0.0 if leaf == "bias" else 1.0
