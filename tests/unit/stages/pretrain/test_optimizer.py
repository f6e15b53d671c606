import torch

from trainwright.stages.pretrain.optimizer import decay_groups, make_optimizer
from trainwright.stages.pretrain.params import Optimization


def small_model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.LayerNorm(3))


def test_matrices_decay_and_vectors_do_not() -> None:
    groups = decay_groups(small_model(), 0.1)
    assert [(len(g["params"]), g["weight_decay"]) for g in groups] == [(1, 0.1), (3, 0.0)]


def test_an_update_equals_the_closed_form_of_adamw() -> None:
    model = torch.nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(2.0)
    what = Optimization(learning_rate=0.1, weight_decay=0.5, beta1=0.9, beta2=0.95, epsilon=1e-8)
    optimizer = make_optimizer(model, what)
    model.weight.grad = torch.tensor([[3.0]])
    optimizer.step()
    # Step 1: the bias-corrected mean is g and the root of the corrected square is |g|.
    assert torch.allclose(model.weight, torch.tensor([[2.0 * (1 - 0.1 * 0.5) - 0.1]]))


def test_a_gradient_that_is_not_finite_touches_neither_weights_nor_moments() -> None:
    model = small_model()
    optimizer = make_optimizer(model, Optimization())
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    weights = [p.detach().clone() for p in model.parameters()]
    moments = [optimizer.state[p]["exp_avg"].clone() for p in model.parameters()]
    next(model.parameters()).grad[0, 0] = float("nan")  # type: ignore[index]
    optimizer.step()
    assert optimizer.skipped == 1
    for p, weight, moment in zip(model.parameters(), weights, moments, strict=True):
        assert torch.equal(p, weight)
        assert torch.equal(optimizer.state[p]["exp_avg"], moment)
