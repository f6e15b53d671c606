import math

import pytest
import torch

from trainwright.stages.align import losses


def random(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


MASK = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1]], dtype=torch.bool)


def naive_policy(new, old, advantages, clip):
    total = 0.0
    for row in range(3):
        for t in range(4):
            if not MASK[row, t]:
                continue
            ratio = math.exp(new[row, t] - old[row, t])
            a = float(advantages[row, t])
            total -= min(ratio * a, max(1 - clip, min(1 + clip, ratio)) * a)
    return total


def test_clipped_policy_loss_is_that_of_a_naive_loop():
    new, old, advantages = random(3, 4), random(3, 4, seed=1), random(3, 4, seed=2)
    found = losses.clipped_policy(new, old, advantages, MASK, 0.2)
    assert float(found) == pytest.approx(naive_policy(new, old, advantages, 0.2), abs=1e-12)


def test_policy_gradient_is_closed_form_within_the_bounds_and_zero_where_clipped():
    old = torch.zeros(1, 4, dtype=torch.float64)
    ratio = torch.tensor([[1.1, 1.5, 1.5, 0.5]], dtype=torch.float64)
    advantages = torch.tensor([[2.0, 3.0, -3.0, -1.0]], dtype=torch.float64)
    new = ratio.log().requires_grad_(True)
    mask = torch.ones(1, 4, dtype=torch.bool)
    losses.clipped_policy(new, old, advantages, mask, 0.2).backward()
    # d(-A r)/d log p = -A r; 0 where a gain is beyond the bound.
    assert new.grad[0].tolist() == pytest.approx([-2.2, 0.0, 4.5, 0.0], abs=1e-12)


def test_what_is_beyond_the_mask_bears_no_gradient_however_wild():
    new = torch.full((3, 4), 1e6, dtype=torch.float64)
    new[MASK] = 0.1
    new.requires_grad_(True)
    old, advantages = torch.zeros(3, 4, dtype=torch.float64), random(3, 4)
    losses.clipped_policy(new, old, advantages, MASK, 0.2).backward()
    assert torch.isfinite(new.grad).all()
    assert not new.grad[~MASK].any()


def test_clipped_value_loss_is_that_of_a_naive_loop():
    new, old, returns = random(3, 4), random(3, 4, seed=1), random(3, 4, seed=2)
    total = 0.0
    for row in range(3):
        for t in range(4):
            if MASK[row, t]:
                v, o, r = (float(x[row, t]) for x in (new, old, returns))
                near = o + max(-0.3, min(0.3, v - o))
                total += 0.5 * max((v - r) ** 2, (near - r) ** 2)
    found = losses.clipped_value(new, old, returns, MASK, 0.3)
    assert float(found) == pytest.approx(total, abs=1e-12)


def test_value_gradient_vanishes_where_the_clipped_error_is_the_larger():
    old = torch.zeros(1, 2, dtype=torch.float64)
    returns = torch.tensor([[1.0, 1.0]], dtype=torch.float64)
    new = torch.tensor([[0.5, 0.1]], dtype=torch.float64, requires_grad=True)
    mask = torch.ones(1, 2, dtype=torch.bool)
    losses.clipped_value(new, old, returns, mask, 0.2).backward()
    assert new.grad[0].tolist() == pytest.approx([0.0, -0.9], abs=1e-12)


def test_bradley_terry_is_its_closed_form():
    chosen, rejected = random(6), random(6, seed=1)
    expected = sum(
        math.log1p(math.exp(-(c - r)))
        for c, r in zip(chosen.tolist(), rejected.tolist(), strict=True)
    )
    assert float(losses.bradley_terry(chosen, rejected)) == pytest.approx(expected, abs=1e-12)
    same = losses.bradley_terry(chosen, chosen)
    assert float(same) == pytest.approx(6 * math.log(2), abs=1e-12)
    shifted = losses.bradley_terry(chosen + 5, rejected + 5)
    assert float(shifted) == pytest.approx(expected, abs=1e-9)


def test_centering_punishes_a_common_shift_alone():
    chosen, rejected = torch.tensor([1.0, -2.0]), torch.tensor([-1.0, 2.0])
    assert float(losses.centering(chosen, rejected)) == 0
    assert float(losses.centering(chosen + 1, rejected + 1)) == 8


def test_clip_fraction_counts_valid_tokens_beyond_the_bounds():
    old = torch.zeros(1, 4)
    new = torch.tensor([[0.0, 0.5, -0.5, 9.0]])
    mask = torch.tensor([[True, True, True, False]])
    assert float(losses.clip_fraction(new, old, mask, 0.2)) == pytest.approx(2 / 3)
