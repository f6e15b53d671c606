"""Fake int8 quantization: what int8 would compute, in float, with gradients that pass straight through.

The arithmetic is that of compressed-tensors, operation for operation, so that an export computes the
same bits: divide by the scale (never multiply by its inverse), clamp, round half to even, multiply.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

Tensor = torch.Tensor

WEIGHT_RANGE = 127.0
"""A weight's scale is absmax / 127: it is stored, so it may leave -128 unused and clip nothing."""
ACTIVATION_RANGE = 127.5
"""An activation's scale is absmax / 127.5: compressed-tensors works it out so at run time."""


def scale_of(values: Tensor, half_range: float) -> Tensor:
    """Symmetric scales over the last dimension, kept as one: absmax / half_range; [..., 1].

    A row of zeros gets the smallest step of its type, so that nothing is divided by 0.
    """
    scale = values.detach().abs().amax(-1, keepdim=True) / half_range
    return torch.where(scale == 0, torch.finfo(scale.dtype).eps, scale)


def quantize(values: Tensor, scale: Tensor) -> Tensor:
    """The integers, still in float: round(clamp(values / scale, -128, 127))."""
    return torch.round(torch.clamp(values / scale, -128, 127))


class _StraightThrough(torch.autograd.Function):
    """Quantize and dequantize; the gradient is that of the identity (Bengio et al. 2013, arXiv:1308.3432)."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, scale: Tensor) -> Tensor:
        return quantize(values, scale) * scale

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0], None


def fake_quantize(values: Tensor, half_range: float) -> Tensor:
    """Values as int8 with one scale a row would hold them."""
    return _StraightThrough.apply(values, scale_of(values, half_range))


class FakeQuantLinear(nn.Module):
    """A linear layer through int8: weights per output channel, activations per token."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, inputs: Tensor) -> Tensor:
        """`inputs` [..., in] to [..., out]."""
        weight = fake_quantize(self.weight, WEIGHT_RANGE)
        return functional.linear(fake_quantize(inputs, ACTIVATION_RANGE), weight, self.bias)

    @torch.no_grad()
    def stored(self) -> tuple[Tensor, Tensor]:
        """What the export holds: weight int8 [out, in] and its scale float [out, 1]."""
        scale = scale_of(self.weight, WEIGHT_RANGE)
        return quantize(self.weight, scale).to(torch.int8), scale


def with_fake_quantization(model: nn.Module) -> list[str]:
    """Replace every linear layer but the output by its fake-quantized self; their names.

    Embeddings (and the output layer, where it is tied to them) are rounded to bfloat16, as the export
    stores them, and frozen.
    """
    output = model.get_output_embeddings()  # type: ignore[operator]
    names = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and module is not output
    ]
    for name in names:
        parent, _, leaf = name.rpartition(".")
        setattr(
            model.get_submodule(parent),
            leaf,
            FakeQuantLinear(model.get_submodule(name)),  # type: ignore[arg-type]
        )
    for layer in (model.get_input_embeddings(), output):  # type: ignore[operator]
        with torch.no_grad():
            layer.weight.copy_(layer.weight.to(torch.bfloat16))
        layer.weight.requires_grad_(False)
    return names
