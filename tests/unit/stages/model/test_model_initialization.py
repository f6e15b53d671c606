from __future__ import annotations

import math
from collections import OrderedDict

import pytest
import tiny
import torch
from torch import nn

from trainwright.stages.contract import UsageError
from trainwright.stages.model.initialization import initialize, xavier_bound


class Tied(nn.Module):
    """An embedding and an output layer of one matrix, made in either order."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        made = {
            "tokens": lambda: nn.Embedding(50, 8),
            "head": lambda: nn.Linear(8, 50, bias=False),
            "inner": lambda: nn.Linear(8, 8),
        }
        for name in names:
            self.add_module(name, made[name]())
        self.head.weight = self.tokens.weight


def filled(model: nn.Module, **fields) -> dict[str, torch.Tensor]:
    initialize(model, **{"method": "xavier_uniform", "std": 0.02, "seed": 3, **fields})
    return dict(model.state_dict())


def test_values_hang_on_names_not_on_the_order_of_modules():
    one = filled(Tied("tokens", "inner", "head"))
    other = filled(Tied("head", "inner", "tokens"))
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=0, atol=0)


def test_a_layer_more_leaves_the_others_as_they_were():
    small, large = filled(tiny.make_model(300)), filled(tiny.make_model(300, layers=3))
    assert all(torch.equal(value, large[name]) for name, value in small.items())


def test_another_seed_or_another_name_gives_other_values():
    layers = nn.Sequential(OrderedDict(a=nn.Linear(8, 8), b=nn.Linear(8, 8)))
    one = filled(layers)
    assert not torch.equal(one["a.weight"], one["b.weight"])
    before = one["a.weight"].clone()
    assert not torch.equal(before, filled(layers, seed=4)["a.weight"])


def test_xavier_stays_within_its_bound_and_has_its_variance():
    weight = filled(nn.Sequential(nn.Linear(300, 500)))["0.weight"]
    bound = math.sqrt(6 / 800)
    assert xavier_bound(weight.shape) == bound
    assert 0.999 * bound < weight.abs().max() <= bound
    assert float(weight.var()) == pytest.approx(2 / 800, rel=0.02)
    assert abs(float(weight.mean())) < 4 * math.sqrt(2 / 800 / weight.numel())


def test_embeddings_are_normal_even_tied_norms_one_biases_zero():
    values = filled(Tied("head", "tokens", "inner"), std=0.5)
    assert float(values["tokens.weight"].std()) == pytest.approx(0.5, rel=0.15)
    assert values["tokens.weight"].abs().max() > xavier_bound(values["tokens.weight"].shape)
    assert values["inner.bias"].abs().max() == 0
    assert filled(nn.Sequential(nn.LayerNorm(8)))["0.weight"].tolist() == [1.0] * 8


def test_normal_fills_matrices_with_the_given_deviation():
    weight = filled(nn.Sequential(nn.Linear(300, 500)), method="normal", std=0.05)["0.weight"]
    assert float(weight.std()) == pytest.approx(0.05, rel=0.02)


def test_what_has_no_rule_is_refused():
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.zeros(3))

    with pytest.raises(UsageError, match="no rule for the parameter 'scale'"):
        filled(Odd())
    with pytest.raises(UsageError, match="use xavier_uniform or normal"):
        filled(nn.Linear(2, 2), method="zeros")
