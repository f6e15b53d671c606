import copy

import pytest
import torch

from posttrain import make_model
from trainwright.stages.align import estimators, losses
from trainwright.stages.align.control import KlCoefficient, RewardScale
from trainwright.stages.align.heldout import distinct, distinct_within, kl_to_reference
from trainwright.stages.align.params import KlParams, PpoParams
from trainwright.stages.align.ppo import Models, Tokens, Trainer, prompts_of, score
from trainwright.stages.align.rollout import answer_logits, answer_values, lay_out, logprobs_of

CPU = torch.device("cpu")
PROMPTS = [
    [1, 7, 8],
    [1, 9, 10, 11, 12, 13],
    [1, 20],
    [1, 21, 22, 23],
    [1, 3],
    [1],
    [1, 4, 4],
    [1, 9],
]
ANSWERS = [
    [30, 31, 5],
    [5],
    [32, 33, 34, 35, 36],
    [40, 5],
    [41, 42, 43, 5],
    [44, 5],
    [5],
    [45, 46, 5],
]


def classifier(seed):
    from transformers import LlamaForSequenceClassification

    config = make_model(64).config
    config.num_labels = 1
    torch.manual_seed(seed)
    return LlamaForSequenceClassification(config).eval()


def trainer(pad=0, double=False, **values):
    policy, reward = make_model(64), classifier(1)
    if double:
        policy, reward = policy.double(), reward.double()
    reference = copy.deepcopy(policy)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in policy.parameters():
            p.add_(0.02 * torch.randn(p.shape, generator=generator))
    models = Models(policy, copy.deepcopy(reward), reference, reward)
    params = PpoParams(
        rollout_prompts=8,
        minibatch=8,
        answer_tokens=5,
        warmup_iterations=0,
        iterations=2,
        **{"micro_batch": 8, **values},
    )
    return Trainer(models, params, Tokens(end=5, pad=pad), seed=0)


def test_figures_in_a_padded_batch_are_those_of_each_answer_alone():
    policy, values = make_model(64), classifier(1)
    laid = lay_out(PROMPTS, ANSWERS, pad_id=5, device=CPU)
    with torch.no_grad():
        together = logprobs_of(answer_logits(policy, laid), laid.tokens)
        expected = answer_values(values, laid)
        for row, (prompt, answer) in enumerate(zip(PROMPTS, ANSWERS, strict=True)):
            ids = torch.tensor([prompt + answer])
            logprobs = policy(input_ids=ids).logits[0].log_softmax(-1)
            hidden = values.model(input_ids=ids).last_hidden_state[0]
            for t, token in enumerate(answer):
                at = len(prompt) + t - 1
                assert float(together[row, t]) == pytest.approx(
                    float(logprobs[at, token]), abs=1e-5
                )
                value = float(values.score(hidden[at]))
                assert float(expected[row, t]) == pytest.approx(value, abs=1e-5)


def test_the_padding_id_bears_on_nothing_even_where_it_ends_answers():
    one, two = (
        trainer(pad=0).experience(PROMPTS, ANSWERS),
        trainer(pad=5).experience(PROMPTS, ANSWERS),
    )
    for name in ("logprobs", "values", "advantages", "returns"):
        assert torch.allclose(getattr(one, name), getattr(two, name), atol=1e-6), name
    assert one.figures == pytest.approx(two.figures, abs=1e-6)
    assert torch.equal(one.answers.mask.sum(1), torch.tensor([len(a) for a in ANSWERS]))


def test_one_by_eight_equals_eight_by_one_in_float64():
    gradients = []
    for micro in (1, 8):
        ppo = trainer(double=True, micro_batch=micro)
        batch = trainer(double=True).experience(PROMPTS, ANSWERS)
        ppo.backward(batch)
        both = (ppo.models.policy, ppo.models.values)
        gradients.append([p.grad.clone() for model in both for p in model.parameters()])
    assert max(float(g.abs().max()) for g in gradients[0]) > 1e-4
    for one, two in zip(*gradients, strict=True):
        assert torch.allclose(one, two, rtol=0, atol=1e-12)


def test_the_first_updates_gradient_is_the_policy_gradient():
    ppo = trainer(double=True)
    batch = ppo.experience(PROMPTS, ANSWERS)
    ppo.backward(batch)
    found = [p.grad.clone() for p in ppo.models.policy.parameters()]
    ppo.models.policy.zero_grad()
    logprobs = logprobs_of(answer_logits(ppo.models.policy, batch.answers), batch.answers.tokens)
    mask = batch.answers.mask
    (-(batch.advantages * logprobs * mask).sum() / mask.sum()).backward()
    for one, two in zip(found, ppo.models.policy.parameters(), strict=True):
        assert torch.allclose(one, two.grad, atol=1e-12)


def test_experience_is_put_together_as_the_paper_says():
    ppo = trainer(double=True)
    coefficient = ppo.params.kl.coefficient
    batch = ppo.experience(PROMPTS, ANSWERS)
    mask, lengths = batch.answers.mask, batch.answers.lengths
    with torch.no_grad():
        reference = logprobs_of(
            answer_logits(ppo.models.reference, batch.answers), batch.answers.tokens
        )
    raw, cut = score(ppo.models.reward, PROMPTS, ANSWERS, 5)
    assert cut.tolist() == [answer[-1] != 5 for answer in ANSWERS]
    shaped = ((raw - raw.mean()) / raw.std(correction=0)).clamp(-3, 3) - 1.0 * cut
    divergence = (batch.logprobs - reference) * mask
    rewards = estimators.token_rewards(shaped, divergence, lengths, coefficient)
    advantages, returns = estimators.gae(rewards, batch.values, lengths, gamma=1.0, lam=0.95)
    assert torch.allclose(batch.returns, returns, atol=1e-9)
    assert torch.allclose(batch.advantages, estimators.whiten(advantages, mask), atol=1e-9)


def test_a_cut_off_answer_is_judged_as_if_it_ended():
    reward = classifier(1)
    cut, _ = score(reward, [[1, 7]], [[30, 31]], 5)
    ended, _ = score(reward, [[1, 7]], [[30, 31, 5]], 5)
    assert torch.equal(cut, ended)


def test_values_learn_alone_while_warming_up():
    ppo = trainer()
    ppo.params = ppo.params.model_copy(update={"warmup_iterations": 1})
    before = copy.deepcopy(ppo.models)
    ppo.update(0, ppo.experience(PROMPTS, ANSWERS))
    weights = [m.state_dict()["model.norm.weight"] for m in (before.policy, ppo.models.policy)]
    assert torch.equal(*weights)
    heads = [m.score.weight for m in (before.values, ppo.models.values)]
    assert not torch.equal(*heads)
    ppo.update(1, ppo.experience(PROMPTS, ANSWERS))
    assert not torch.equal(weights[0], ppo.models.policy.model.norm.weight)


def test_an_update_raises_what_was_better_than_expected():
    ppo = trainer()
    batch = ppo.experience(PROMPTS, ANSWERS)
    before = losses.clipped_policy(
        batch.logprobs, batch.logprobs, batch.advantages, batch.answers.mask, 0.2
    )
    for _ in range(3):
        ppo.update(0, batch)
    with torch.no_grad():
        now = logprobs_of(answer_logits(ppo.models.policy, batch.answers), batch.answers.tokens)
    after = losses.clipped_policy(now, batch.logprobs, batch.advantages, batch.answers.mask, 0.2)
    assert after < before


def test_adaptive_coefficient_follows_the_controller_of_the_paper():
    params = KlParams(coefficient=0.2, target=6, horizon=1000)
    for kl, factor in ((12.0, 1.2), (6.6, 1.1), (6.0, 1.0), (0.0, 0.8)):
        found = KlCoefficient(0.2)
        found.update(kl, 1000, params)
        assert found.value == pytest.approx(0.2 * factor)
    fixed = KlCoefficient(0.2)
    fixed.update(60.0, 1000, params.model_copy(update={"control": "fixed"}))
    assert fixed.value == 0.2


def test_rewards_are_standardized_and_bounded():
    scale = RewardScale.of(torch.tensor([1.0, 3.0]))
    assert (scale.mean, scale.deviation) == (2.0, 1.0)
    found = scale.standardize(torch.tensor([2.5, 100.0, -100.0]), 3.0)
    assert found.tolist() == [0.5, 3.0, -3.0]
    assert RewardScale.of(torch.tensor([1.0, 1.0])).deviation > 0


def test_prompts_of_an_iteration_are_a_function_of_its_number():
    prompts = [[i] for i in range(10)]
    taken = [p for n in range(5) for p in prompts_of(prompts, n, 4, seed=3)]
    assert sorted(taken[:10]) == prompts
    assert sorted(taken[10:]) == prompts
    assert prompts_of(prompts, 2, 4, seed=3) == taken[8:12]


def test_kl_on_the_answers_is_the_sum_over_their_tokens_alone():
    ppo = trainer()
    policy, reference = ppo.models.policy, ppo.models.reference
    found = kl_to_reference(policy, reference, PROMPTS, ANSWERS, pad_id=0, batch=3)
    total = 0.0
    with torch.no_grad():
        for prompt, answer in zip(PROMPTS, ANSWERS, strict=True):
            ids = torch.tensor([prompt + answer])
            p, q = (m(input_ids=ids).logits[0].log_softmax(-1) for m in (policy, reference))
            steps = slice(len(prompt) - 1, len(prompt) + len(answer) - 1)
            total += float((p.exp() * (p - q)).sum(-1)[steps].sum())
    assert found["exact"] == pytest.approx(total / len(PROMPTS), rel=1e-4)
    assert found["k3"] > 0
    assert kl_to_reference(reference, reference, PROMPTS, ANSWERS, pad_id=0)["exact"] == 0


def test_distinct_counts_n_grams():
    assert distinct([[1, 2, 1, 2]], 2) == pytest.approx(2 / 3)
    assert distinct([[1, 2], [1, 2]], 1) == 0.5
    assert distinct_within([[1, 2], [1, 2]], 1) == 1.0
    assert distinct([[1]], 2) == 0.0
