from __future__ import annotations

import math

import pytest
import tiny
import torch

from trainwright.stages.model.perplexity import Likelihood, likelihood, perplexity
from trainwright.stages.model.tokens import Split


def test_perplexity_is_exp_of_the_mean_nll_of_a_plain_loop(corpus):
    model, split = tiny.make_model(300), Split(corpus, "heldout")
    ids = torch.from_numpy(split.read(0, 100))
    total, count = 0.0, 0
    for start in range(0, 96, 16):
        for end in range(start + 1, start + 17):
            with torch.no_grad():
                logits = model(input_ids=ids[None, start:end]).logits[0, -1].double()
            total -= float(torch.log_softmax(logits, -1)[ids[end]])
            count += 1
    found = likelihood(model, split, length=16, limit=100, rows=4)
    assert found.tokens == count
    assert found.nats == pytest.approx(total, rel=1e-5)
    expected = math.exp(total / count)
    assert perplexity(model, split, length=16, limit=100) == pytest.approx(expected, rel=1e-5)


def test_a_perplexity_beyond_a_float_is_infinite_and_a_nan_stays_one():
    assert Likelihood(nats=8000.0, tokens=10).perplexity == math.inf
    assert math.isnan(Likelihood(nats=math.nan, tokens=10).perplexity)
