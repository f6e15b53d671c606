import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwright.stages.pretrain.order import permute, samples_of, share_of


@given(count=st.integers(1, 3000), key=st.integers(0, 2**63))
def test_an_epoch_visits_every_window_exactly_once(count: int, key: int) -> None:
    out = permute(np.arange(count, dtype=np.uint64), count, key)
    assert sorted(out.tolist()) == list(range(count))


def test_the_order_of_an_epoch_is_not_the_order_of_the_text() -> None:
    out = permute(np.arange(10_000, dtype=np.uint64), 10_000, 7).astype(float)
    correlation = np.corrcoef(out, np.arange(10_000))[0, 1]
    assert abs(correlation) < 0.05
    neighbours = np.abs(np.diff(out))
    assert (neighbours < 10).mean() < 0.01


def test_two_epochs_and_two_seeds_have_different_orders() -> None:
    def epoch(number: int, seed: int) -> list[int]:
        return samples_of(number, batch=500, count=500, seed=seed).tolist()

    assert sorted(epoch(0, 1)) == sorted(epoch(1, 1)) == list(range(500))
    assert epoch(0, 1) != epoch(1, 1)
    assert epoch(0, 1) != epoch(0, 2)


def test_a_step_across_the_end_of_an_epoch_loses_and_repeats_nothing() -> None:
    steps = [samples_of(step, batch=7, count=20, seed=3).tolist() for step in range(20)]
    flat = [sample for step in steps for sample in step]
    for epoch in range(7):
        assert sorted(flat[epoch * 20 : (epoch + 1) * 20]) == list(range(20))


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_the_global_order_is_the_same_for_any_number_of_ranks(ranks: int) -> None:
    for step in range(5):
        whole = samples_of(step, batch=16, count=1000, seed=0)
        shares = [share_of(whole, rank, ranks) for rank in range(ranks)]
        assert all(len(share) == 16 // ranks for share in shares)
        interleaved = np.stack(shares, axis=1).reshape(-1)
        assert interleaved.tolist() == whole.tolist()
