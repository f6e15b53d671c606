"""Near duplicates: as many found as LSH theory says, none removed below the threshold, order decides."""

import numpy as np
import pytest

from trainwright.stages.corpus.minhash import MinHasher, jaccard, near_duplicates

NUM_HASHES, BANDS = 128, 16


def random_hashes(rng: np.random.Generator, size: int) -> np.ndarray:
    return rng.integers(0, 2**63, size=size, dtype=np.uint64) * np.uint64(2)


def pair(rng: np.random.Generator, shared: int, own: int) -> tuple[np.ndarray, np.ndarray]:
    """Two sets with Jaccard similarity shared / (shared + 2 own)."""
    common = random_hashes(rng, shared)
    return tuple(np.unique([*common, *random_hashes(rng, own)]) for _ in range(2))  # type: ignore


def bands(sets: list[np.ndarray]) -> np.ndarray:
    starts = np.cumsum([0, *map(len, sets)])[:-1]
    return MinHasher(NUM_HASHES, BANDS).bands(np.concatenate(sets), starts)


@pytest.mark.parametrize(("shared", "own"), [(60, 20), (70, 15), (80, 10), (90, 5)])
def test_candidates_are_as_many_as_theory_says(shared: int, own: int) -> None:
    rng = np.random.default_rng(shared)
    pairs = 800
    sets = [s for _ in range(pairs) for s in pair(rng, shared, own)]
    keys = bands(sets)
    hit = np.mean(np.any(keys[0::2] == keys[1::2], axis=1))
    similarity = shared / (shared + 2 * own)
    theory = 1 - (1 - similarity ** (NUM_HASHES // BANDS)) ** BANDS
    # Four standard deviations of a share of 800 pairs.
    assert abs(hit - theory) <= 4 * np.sqrt(theory * (1 - theory) / pairs) + 0.005


def test_a_candidate_below_the_threshold_is_not_removed() -> None:
    rng = np.random.default_rng(1)
    sets = [s for _ in range(300) for s in pair(rng, 66, 17)]
    keys = bands(sets)
    assert np.any(keys[0::2] == keys[1::2])
    found = near_duplicates(keys, sets.__getitem__, 0.7)
    assert found == {}
    assert near_duplicates(keys, sets.__getitem__, 0.6)


def test_the_preferred_of_a_cluster_survives_and_each_removed_one_is_close_to_its_survivor() -> (
    None
):
    rng = np.random.default_rng(2)
    first, second = pair(rng, 95, 2)
    sets = [first, random_hashes(rng, 100), second, first]
    found = near_duplicates(bands(sets), sets.__getitem__, 0.8)
    assert {row: other for row, (other, _) in found.items()} == {2: 0, 3: 0}
    assert found[2][1] == pytest.approx(jaccard(first, second))


def test_a_chain_keeps_what_is_close_to_a_removed_row_alone() -> None:
    rng = np.random.default_rng(3)
    core = random_hashes(rng, 140)
    sets = [np.sort(core[:100]), np.sort(core[15:115]), np.sort(core[30:130])]
    assert jaccard(sets[0], sets[1]) > 0.7 > jaccard(sets[0], sets[2])
    everywhere = np.zeros((3, 1), dtype=np.uint64)
    assert set(near_duplicates(everywhere, sets.__getitem__, 0.7)) == {1}


def test_repeated_elements_do_not_move_a_signature() -> None:
    rng = np.random.default_rng(4)
    values = random_hashes(rng, 50)
    assert np.array_equal(bands([values]), bands([np.concatenate([values, values[:20]])]))


def test_jaccard_is_shared_over_all() -> None:
    a, b = np.array([1, 2, 3], dtype=np.uint64), np.array([2, 3, 4, 5], dtype=np.uint64)
    assert jaccard(a, b) == pytest.approx(2 / 5)


def test_no_set_has_no_band() -> None:
    nothing = np.array([], dtype=np.uint64)
    assert MinHasher(NUM_HASHES, BANDS).bands(nothing, np.array([], dtype=np.int64)).shape == (
        0,
        BANDS,
    )
