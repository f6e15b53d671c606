from __future__ import annotations

import math

import pytest

from trainwright.stages.contract import GateError
from trainwright.stages.validate.checks import Checklist
from trainwright.stages.validate.generation import repeat_share, until_end


def test_every_failed_check_is_named_with_value_and_threshold():
    checks = Checklist(left_out=["generation"])
    checks.at_most("size_ratio", 0.5, 0.25)
    checks.below("heldout_loss", 3.0, 2.5, "the bigram's")
    checks.at_most("good", 0.1, 0.25)
    checks.none_of("broken", list("abcde"))
    with pytest.raises(GateError) as error:
        checks.raise_if_failed("Train longer.")
    assert str(error.value) == (
        "the model fails 3 of 4 checks: size_ratio is 0.5, must be at most 0.25; heldout_loss is 3, "
        "must be below 2.5, the bigram's; broken is 5, must be 0 (a, b, c and 2 more); "
        "not measured for that: generation. Train longer."
    )


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_passes_no_bound(value):
    checks = Checklist()
    assert not checks.at_most("a", value, 1.0)
    assert not checks.below("b", value, 1.0, "")


def test_a_bound_is_met_at_the_bound_and_a_loss_must_be_below():
    checks = Checklist()
    assert checks.at_most("a", 1.0, 1.0)
    assert not checks.below("b", 1.0, 1.0, "")


def test_repeat_share_counts_by_answer():
    assert repeat_share([[5] * 10, [6] * 10]) == 1.0
    assert repeat_share([[1, 2, 3, 3], [4, 5, 6, 7]]) == 3 / 8
    assert repeat_share([[], []]) == 0.0


def test_an_answer_ends_before_any_end_token():
    assert until_end([5, 6, 2, 7], {2, 9}) == [5, 6]
    assert until_end([5, 6], {2, 9}) == [5, 6]
