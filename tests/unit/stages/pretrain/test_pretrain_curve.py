import json
import math
import random

import numpy as np
import pytest
import torch

from trainwright.stages.pretrain.loop import Curve, seed_generators


def draws() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_the_generators_are_a_function_of_seed_step_and_rank_alone() -> None:
    seed_generators(3, 7, 1)
    first = draws()
    draws()
    seed_generators(3, 7, 1)
    assert draws() == first
    for other in ((4, 7, 1), (3, 8, 1), (3, 7, 0)):
        seed_generators(*other)
        assert all(a != b for a, b in zip(draws(), first, strict=True))


def test_a_loss_that_is_not_finite_is_null_in_the_curve_and_left_out_of_the_mean() -> None:
    curve = Curve(train=[5.0] * 18 + [math.nan, 3.0], heldout={20: math.inf, 10: 4.0})
    table = json.loads(json.dumps(curve.table(), allow_nan=False))
    assert table["train"][-2:] == [None, 3.0]
    assert table["heldout"] == [[10, 4.0], [20, None]]
    assert curve.final_loss() == 3.0
    assert math.isnan(Curve(train=[math.nan]).final_loss())


def test_a_curve_goes_back_to_its_state() -> None:
    curve = Curve(train=[5.0, math.nan], heldout={2: 4.5}, bad_in_a_row=1)
    other = Curve()
    other.load_state_dict(json.loads(json.dumps(curve.state_dict())))
    assert other.heldout == {2: 4.5} and other.bad_in_a_row == 1
    assert other.train == pytest.approx(curve.train, nan_ok=True)
