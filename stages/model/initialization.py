"""Initial weights: each parameter draws from its own stream, keyed by (seed, name).

So the weights are equal whatever the order in which parameters are made, and whatever the sharding.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import nn

from trainwright.stages.contract import UsageError


def initialize(model: nn.Module, *, method: str, std: float, seed: int) -> None:
    """Fill the parameters of `model` in place.

    Matrices of linear layers: `xavier_uniform`, U(-a, a) with a = sqrt(6 / (fan_in + fan_out)) (Glorot
    and Bengio 2010, eq. 16), or `normal`, N(0, std). Embeddings: N(0, std), which is also what a tied
    output matrix gets. Vectors of norms: 1. Biases: 0.
    """
    embeddings = {
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Embedding)
    }
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            generator = torch.Generator().manual_seed(stream(seed, name))
            values = torch.empty(parameter.shape, dtype=torch.float32)
            owner = name.rpartition(".")[0]
            if parameter.ndim < 2:
                values.fill_(0.0 if name.endswith("bias") else 1.0)
            elif owner in embeddings or method == "normal":
                values.normal_(0.0, std, generator=generator)
            elif method == "xavier_uniform":
                bound = math.sqrt(6.0 / (parameter.shape[0] + parameter.shape[1]))
                values.uniform_(-bound, bound, generator=generator)
            else:
                raise UsageError(f"initialization method {method!r}: use xavier_uniform or normal")
            parameter.copy_(values)


def stream(seed: int, name: str) -> int:
    """The seed of one parameter's own stream."""
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
