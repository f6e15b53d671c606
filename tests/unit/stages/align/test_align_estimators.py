import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainwright.stages.align import estimators as est


def random(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


LENGTHS = torch.tensor([5, 1, 3, 7])


def plain_gae(rewards, values, gamma, lam):
    """The definition, forwards: A_t is the sum of (gamma lam)^l delta_{t+l}."""
    n = len(rewards)
    following = [*values[1:], 0.0]
    delta = [rewards[t] + gamma * following[t] - values[t] for t in range(n)]
    return [sum((gamma * lam) ** k * delta[t + k] for k in range(n - t)) for t in range(n)]


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 0.95), (0.9, 0.8), (1.0, 1.0), (0.99, 0.0)])
def test_gae_is_its_definition_for_every_length(gamma, lam):
    rewards, values = random(4, 7), random(4, 7, seed=1)
    advantages, returns = est.gae(rewards, values, LENGTHS, gamma=gamma, lam=lam)
    for row, n in enumerate(LENGTHS.tolist()):
        expected = plain_gae(rewards[row, :n].tolist(), values[row, :n].tolist(), gamma, lam)
        assert advantages[row, :n].tolist() == pytest.approx(expected, abs=1e-12)
        both = [a + v for a, v in zip(expected, values[row, :n].tolist(), strict=True)]
        assert returns[row, :n].tolist() == pytest.approx(both, abs=1e-12)
        assert not advantages[row, n:].any() and not returns[row, n:].any()


def test_gae_does_not_see_what_is_behind_an_answer():
    rewards, values = random(4, 7), random(4, 7, seed=1)
    before = est.gae(rewards, values, LENGTHS, gamma=1.0, lam=0.95)
    beyond = ~est.length_mask(LENGTHS, 7)
    after = est.gae(
        rewards.masked_fill(beyond, 1e9),
        values.masked_fill(beyond, -1e9),
        LENGTHS,
        gamma=1.0,
        lam=0.95,
    )
    assert torch.equal(before[0], after[0]) and torch.equal(before[1], after[1])


def test_with_lambda_one_returns_are_the_rewards_to_come():
    rewards, values = random(4, 7), random(4, 7, seed=1)
    _, returns = est.gae(rewards, values, LENGTHS, gamma=1.0, lam=1.0)
    for row, n in enumerate(LENGTHS.tolist()):
        expected = [float(rewards[row, t:n].sum()) for t in range(n)]
        assert returns[row, :n].tolist() == pytest.approx(expected, abs=1e-12)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(-30, 30), min_size=2, max_size=2))
def test_k3_is_never_negative_and_k1_is_the_log_ratio(pair):
    p, q = (torch.tensor([x], dtype=torch.float64) for x in pair)
    assert float(est.kl_k3(p, q)) >= 0
    assert float(est.kl_k1(p, q)) == pair[0] - pair[1]


def test_all_three_estimates_agree_in_the_mean():
    p = random(1, 16).log_softmax(-1)
    q = random(1, 16, seed=1).log_softmax(-1)
    weights = p.exp()
    exact = float(est.kl_exact(p, q))
    assert exact == pytest.approx(float((weights * (p - q)).sum()), abs=1e-12)
    assert float((weights * est.kl_k1(p, q)).sum()) == pytest.approx(exact, abs=1e-12)
    assert float((weights * est.kl_k3(p, q)).sum()) == pytest.approx(exact, abs=1e-12)
    assert float(est.kl_k1(p, q).min()) < 0


def test_the_score_lands_on_the_last_token_by_length():
    kl = random(4, 7)
    scores = torch.tensor([10.0, 20.0, 30.0, 40.0], dtype=torch.float64)
    rewards = est.token_rewards(scores, kl, LENGTHS, 0.5)
    for row, n in enumerate(LENGTHS.tolist()):
        expected = [-0.5 * float(kl[row, t]) for t in range(n)]
        expected[-1] += float(scores[row])
        assert rewards[row, :n].tolist() == pytest.approx(expected, abs=1e-12)
        assert not rewards[row, n:].any()


def test_whitening_counts_valid_tokens_alone():
    values = random(4, 7)
    mask = est.length_mask(LENGTHS, 7)
    white = est.whiten(values.masked_fill(~mask, 1e6), mask)
    kept = white[mask]
    assert float(kept.mean()) == pytest.approx(0, abs=1e-12)
    assert float(kept.std(correction=0)) == pytest.approx(1, abs=1e-6)
    assert not white[~mask].any()


def test_length_mask_is_a_count():
    assert est.length_mask(torch.tensor([0, 2, 3]), 3).tolist() == [
        [False, False, False],
        [True, True, False],
        [True, True, True],
    ]


def test_kl_of_equal_models_is_zero():
    logits = random(2, 3, 9)
    assert float(est.kl_exact(logits, logits).abs().max()) == 0
    assert math.isclose(float(est.kl_k3(logits, logits).abs().max()), 0)
