import hashlib

import pytest
import torch
from pydantic import ValidationError
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from posttrain import make_context, make_model, make_tokenizer, save_corpus, save_model
from trainwright.stages.align import ppo, reward_training
from trainwright.stages.align.main import run
from trainwright.stages.align.params import AlignParams, PpoParams, RewardParams
from trainwright.stages.contract import DataError, UsageError

PARAMS = AlignParams(
    reward=RewardParams(
        steps=40, batch_pairs=8, micro_pairs=4, max_tokens=100, learning_rate=5e-3, warmup_steps=3
    ),
    ppo=PpoParams(
        iterations=5,
        rollout_prompts=8,
        minibatch=8,
        micro_batch=4,
        prompt_tokens=64,
        answer_tokens=10,
        warmup_iterations=1,
        learning_rate=1e-3,
    ),
    heldout_prompts=12,
    samples=2,
    snapshot_every=7,
    snapshot_iterations=2,
    threads=1,
)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    return {"corpus": save_corpus(folder / "corpus"), "model": save_model(folder / "model")}


def digests(folder):
    return {
        p.relative_to(folder).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


@pytest.fixture(scope="module")
def straight(tmp_path_factory, inputs):
    torch.set_num_threads(1)
    context = make_context(tmp_path_factory.mktemp("straight"), "align", PARAMS, inputs)
    return run(context), digests(context.out), context.out


def test_both_models_load_elsewhere_and_all_figures_are_there(straight):
    result, _, out = straight
    assert set(result.metrics) == {
        "rm_accuracy",
        *(f"rm_accuracy_{kind}" for kind in ("other", "repeated", "shuffled", "spliced")),
        "baseline_word_overlap",
        "baseline_longer",
        "reward_before",
        "reward_after",
        "kl",
    }
    assert AutoTokenizer.from_pretrained(out / "model").chat_template
    assert AutoModelForCausalLM.from_pretrained(out / "model").dtype == torch.float32
    judge = AutoModelForSequenceClassification.from_pretrained(out / "reward_model")
    assert judge.config.num_labels == 1
    assert judge.config.pad_token_id == 0
    assert result.metrics["kl"] > 0
    assert len(result.summary["history"]) == 5
    assert {row["kind"] for row in result.summary["rm_accuracy_by_kind"]} == {
        "other",
        "shuffled",
        "repeated",
        "spliced",
    }


class Stop(Exception):
    pass


def test_runs_interrupted_in_either_half_end_in_the_same_bytes(
    tmp_path, inputs, straight, monkeypatch
):
    for attempt, (owner, name, last) in enumerate(
        [
            (reward_training.RewardTuner, "step", 17),
            (ppo.Trainer, "update", 0),
            (ppo.Trainer, "update", 3),
        ]
    ):
        whole = getattr(owner, name)

        def stopping(self, number, batch, whole=whole, last=last):
            if number == last:
                raise Stop
            return whole(self, number, batch)

        monkeypatch.setattr(owner, name, stopping)
        with pytest.raises(Stop):
            run(make_context(tmp_path, "align", PARAMS, inputs, token=f"try{attempt}"))
        monkeypatch.setattr(owner, name, whole)
    context = make_context(tmp_path, "align", PARAMS, inputs, token="last")
    result = run(context)
    assert digests(context.out) == straight[1]
    assert result == straight[0]


def test_dropout_in_the_reward_model_does_not_break_the_going_on(tmp_path, inputs, monkeypatch):
    params = PARAMS.model_copy(
        update={"ppo": PARAMS.ppo.model_copy(update={"iterations": 2}), "heldout_prompts": 2}
    )
    model = make_model(len(make_tokenizer()))
    model.config.attention_dropout = 0.3
    model = save_model(tmp_path / "dropout", model=model)
    whole, seen, stops = reward_training.RewardTuner.step, {}, [17]

    def step(self, number, pairs):
        if number in stops:
            raise Stop
        assert self.model.model.layers[0].self_attn.attention_dropout == 0.3
        seen.setdefault(number, []).append(whole(self, number, pairs))
        return seen[number][-1]

    monkeypatch.setattr(reward_training.RewardTuner, "step", step)
    used = {**inputs, "model": model}
    with pytest.raises(Stop):
        run(make_context(tmp_path, "align", params, used, token="first"))
    stops.clear()
    run(make_context(tmp_path, "align", params, used, token="second"))
    # Steps 14 to 16 were done twice: once straight on, once from the snapshot after 14 steps.
    assert [len(seen[n]) for n in (13, 14, 16, 17)] == [1, 2, 2, 1]
    assert all(one == other for one, other in (seen[n] for n in (14, 15, 16)))


def test_a_policy_that_is_not_finite_ends_the_stage_clearly(tmp_path, inputs):
    broken = make_model(len(make_tokenizer()))
    with torch.no_grad():
        broken.model.norm.weight.fill_(torch.nan)
    model = save_model(tmp_path / "broken", model=broken)
    with pytest.raises(DataError, match="reward model: loss is nan at step 0"):
        run(make_context(tmp_path, "align", PARAMS, {**inputs, "model": model}))


def test_an_empty_preference_file_is_refused(tmp_path, inputs):
    corpus = save_corpus(tmp_path / "corpus")
    (corpus / "preferences" / "train.jsonl").write_text("")
    with pytest.raises(DataError, match=r"preferences/train\.jsonl is empty"):
        run(make_context(tmp_path, "align", PARAMS, {**inputs, "corpus": corpus}))


def test_a_tokenizer_of_another_model_is_refused(tmp_path, inputs):
    model = save_model(tmp_path / "small", model=make_model(100))
    with pytest.raises(DataError, match="tokens, the model's vocabulary 100"):
        run(make_context(tmp_path, "align", PARAMS, {**inputs, "model": model}))


def test_a_model_without_a_chat_template_is_refused(tmp_path, inputs):
    model = save_model(tmp_path / "plain", tokenizer=make_tokenizer(template=None))
    with pytest.raises(DataError, match="no chat template"):
        run(make_context(tmp_path, "align", PARAMS, {**inputs, "model": model}))


def test_answers_beyond_the_models_positions_are_refused_before_any_training(tmp_path, inputs):
    params = PARAMS.model_copy(
        update={
            "ppo": PARAMS.ppo.model_copy(update={"prompt_tokens": 120}),
            "reward": PARAMS.reward.model_copy(update={"max_tokens": 500}),
        }
    )
    with pytest.raises(UsageError, match="the model has 128 positions"):
        run(make_context(tmp_path, "align", params, inputs))
    assert not list((tmp_path / "work").rglob("*.pt"))


def test_prompts_that_are_all_too_long_are_refused(tmp_path, inputs):
    params = PARAMS.model_copy(update={"ppo": PARAMS.ppo.model_copy(update={"prompt_tokens": 4})})
    with pytest.raises(DataError, match="no prompt of at most 4 tokens"):
        run(make_context(tmp_path, "align", params, inputs))


def test_intervals_and_threads_do_not_bear_on_the_output():
    changed = PARAMS.model_copy(
        update={"threads": 7, "snapshot_every": 1, "snapshot_iterations": 9}
    )
    assert changed.identity() == PARAMS.identity()


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"reward": {"batch_pairs": 6, "micro_pairs": 4}}, "multiple of reward.micro_pairs"),
        ({"reward": {"steps": 5, "warmup_steps": 5}}, "must be below reward.steps"),
        ({"ppo": {"rollout_prompts": 30, "minibatch": 16}}, "multiple of ppo.minibatch"),
        ({"ppo": {"minibatch": 16, "micro_batch": 3}}, "multiple of ppo.micro_batch"),
        ({"ppo": {"iterations": 2, "warmup_iterations": 2}}, "must be below ppo.iterations"),
        ({"ppo": {"prompt_tokens": 500}}, "above reward.max_tokens"),
        ({"ppo": {"kl": {"control": "none"}}}, "'fixed' or 'adaptive'"),
        ({"ppo": {"klip": 0.2}}, "Extra inputs"),
    ],
)
def test_contradictions_are_refused(values, reason):
    with pytest.raises(ValidationError, match=reason):
        AlignParams.model_validate(values)
