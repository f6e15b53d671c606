import pytest
import torch

from posttrain import make_model
from trainwright.stages.model.sampler import Sampling, choose, generate, uniforms

PROMPTS = [[1, 7, 8], [1, 9, 10, 11, 12, 13, 14, 15], [1], [1, 60, 61, 62, 63]]


@pytest.fixture(scope="module")
def model():
    model = make_model(64)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(6)  # spread the logits, so that a wrong position or mask changes a choice
    return model


def alone(model, prompt, new_tokens):
    """Greedy, without a cache, one prompt at a time."""
    ids = list(prompt)
    for _ in range(new_tokens):
        logits = model(input_ids=torch.tensor([ids])).logits[0, -1]
        ids.append(int(logits.argmax()))
        if ids[-1] == 5:
            break
    return ids[len(prompt) :]


@pytest.mark.parametrize("pad_id", [0, 5])
def test_greedy_in_a_padded_batch_with_a_cache_equals_one_by_one_without(model, pad_id):
    found = generate(model, PROMPTS, Sampling(12, temperature=0), end_id=5, pad_id=pad_id)
    assert found == [alone(model, prompt, 12) for prompt in PROMPTS]
    assert len({tuple(answer) for answer in found}) > 1


def test_sampling_repeats_with_its_seed_and_differs_with_another(model):
    def drawn(seed):
        return generate(model, PROMPTS, Sampling(10, seed=seed), end_id=5, pad_id=0)

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_a_rows_draws_do_not_hang_on_its_neighbours(model):
    sampling = Sampling(10, seed=4)
    full = generate(model, PROMPTS, sampling, end_id=5, pad_id=0)
    fewer = generate(model, PROMPTS[:2], sampling, end_id=5, pad_id=0)
    assert fewer == full[:2]


def test_choose_follows_the_distribution():
    logits = torch.tensor([0.2, 0.5, 0.3]).log().expand(20_000, 3)
    drawn = choose(logits, uniforms(20_000, 1, 0)[:, 0], 1.0)
    share = drawn.bincount(minlength=3) / 20_000
    assert torch.allclose(share, torch.tensor([0.2, 0.5, 0.3]), atol=0.015)


def test_choose_never_takes_what_is_impossible():
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]])
    for u in (0.0, 0.25, 0.5, 0.75, 1 - 2**-53):
        assert int(choose(logits, torch.tensor([u], dtype=torch.float64), 1.0)) in (1, 3)
