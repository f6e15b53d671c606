import hashlib
import math

import pytest
import torch
from pydantic import ValidationError
from transformers import AutoModelForCausalLM, AutoTokenizer

from posttrain import make_context, make_model, make_tokenizer, save_corpus, save_model
from trainwright.stages.contract import DataError, UsageError
from trainwright.stages.instruct import loop
from trainwright.stages.instruct.main import run
from trainwright.stages.instruct.params import InstructParams, LoraParams
from trainwright.stages.model.schedule import warmup_cosine
from trainwright.stages.model.snapshot import Snapshots

PARAMS = InstructParams(
    steps=24,
    row_tokens=64,
    batch_rows=4,
    micro_rows=2,
    warmup_steps=3,
    samples=2,
    sample_tokens=8,
    snapshot_every=5,
    threads=1,
    lora=LoraParams(rank=4, dropout=0.1),
    learning_rate=1e-2,
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
    context = make_context(tmp_path_factory.mktemp("straight"), "instruct", PARAMS, inputs)
    return run(context), digests(context.out), context.out


def test_the_answer_loss_falls_and_both_outputs_load(straight):
    result, files, out = straight
    assert result.metrics["answer_loss_after"] < result.metrics["answer_loss_before"] - 0.5
    assert {"adapter/adapter_model.safetensors", "model/model.safetensors"} <= set(files)
    tokenizer = AutoTokenizer.from_pretrained(out / "model")
    model = AutoModelForCausalLM.from_pretrained(out / "model")
    assert tokenizer.chat_template
    assert model.dtype == torch.float32
    assert model.generation_config.eos_token_id == [2, 5]
    assert len(result.samples) == 2


class Stop(Exception):
    pass


def test_an_interrupted_run_ends_in_the_same_bytes(tmp_path, inputs, straight, monkeypatch):
    whole = loop.Tuner.step
    for attempt, last in enumerate((7, 17)):

        def step(self, number, batch, last=last):
            if number == last:
                raise Stop
            return whole(self, number, batch)

        monkeypatch.setattr(loop.Tuner, "step", step)
        with pytest.raises(Stop):
            run(make_context(tmp_path, "instruct", PARAMS, inputs, token=f"try{attempt}"))
        assert Snapshots(tmp_path / "work" / "instruct").newest()[0] == last // 5 * 5
    monkeypatch.setattr(loop.Tuner, "step", whole)
    context = make_context(tmp_path, "instruct", PARAMS, inputs, token="last")
    result = run(context)
    assert digests(context.out) == straight[1]
    assert result == straight[0]


def test_accumulation_over_micro_batches_gives_the_same_gradient(inputs):
    from trainwright.stages.instruct.chat import Rendered
    from trainwright.stages.instruct.packing import collate

    chats = [
        Rendered([1, *range(9, 9 + n), 5], [False] * 3 + [True] * (n - 1)) for n in range(3, 11)
    ]
    batch = collate([[chat] for chat in chats])
    gradients = []
    for micro in (1, 8):
        params = InstructParams(batch_rows=8, micro_rows=micro, clip_norm=1e9)
        tuner = loop.Tuner(make_model(64).double(), params, torch.device("cpu"))
        tuner.step(0, batch)
        gradients.append([p.grad.clone() for p in tuner.model.parameters()])
    for one, two in zip(*gradients, strict=True):
        assert torch.allclose(one, two, rtol=1e-6, atol=1e-9)


def test_a_loss_that_is_not_finite_ends_the_stage_with_its_step(tmp_path, inputs):
    broken = make_model(len(make_tokenizer()))
    with torch.no_grad():
        broken.model.norm.weight.fill_(torch.nan)
    model = save_model(tmp_path / "broken", model=broken)
    with pytest.raises(DataError, match="loss is nan at step 0"):
        run(make_context(tmp_path, "instruct", PARAMS, {**inputs, "model": model}))


def test_an_empty_pair_file_is_refused(tmp_path, inputs):
    corpus = save_corpus(tmp_path / "corpus")
    (corpus / "instructions" / "train.jsonl").write_text("")
    with pytest.raises(DataError, match=r"instructions/train\.jsonl is empty"):
        run(make_context(tmp_path, "instruct", PARAMS, {**inputs, "corpus": corpus}))


def test_a_broken_line_is_named(tmp_path, inputs):
    corpus = save_corpus(tmp_path / "corpus")
    path = corpus / "instructions" / "train.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:3], '{"id": "x", "prompt": "p"}', *lines[3:]]))
    with pytest.raises(DataError, match=r"instructions/train\.jsonl, line 4: response"):
        run(make_context(tmp_path, "instruct", PARAMS, {**inputs, "corpus": corpus}))


def test_a_tokenizer_of_another_model_is_refused(tmp_path, inputs):
    model = save_model(tmp_path / "small", model=make_model(100))
    with pytest.raises(DataError, match="tokens, the model's vocabulary 100"):
        run(make_context(tmp_path, "instruct", PARAMS, {**inputs, "model": model}))


def test_a_model_without_a_chat_template_is_refused(tmp_path, inputs):
    model = save_model(tmp_path / "plain", tokenizer=make_tokenizer(template=None))
    with pytest.raises(DataError, match="no chat template"):
        run(make_context(tmp_path, "instruct", PARAMS, {**inputs, "model": model}))


def test_rows_beyond_the_models_positions_are_refused(tmp_path, inputs):
    params = PARAMS.model_copy(update={"row_tokens": 256})
    with pytest.raises(UsageError, match="row_tokens is 256 tokens, the model has 128 positions"):
        run(make_context(tmp_path, "instruct", params, inputs))


def test_pairs_that_are_all_too_long_are_refused(tmp_path, inputs):
    params = PARAMS.model_copy(update={"row_tokens": 8})
    with pytest.raises(DataError, match="no instruction pair fits into 8 tokens"):
        run(make_context(tmp_path, "instruct", params, inputs))


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"batch_rows": 6, "micro_rows": 4}, "must be a multiple of micro_rows"),
        ({"steps": 5, "warmup_steps": 5}, "must be below steps"),
        ({"lora": {"rank": 0}}, "greater than or equal to 1"),
        ({"learning_rat": 1}, "Extra inputs"),
    ],
)
def test_contradictions_are_refused(values, reason):
    with pytest.raises(ValidationError, match=reason):
        InstructParams.model_validate(values)


def test_intervals_and_threads_do_not_bear_on_the_output():
    changed = PARAMS.model_copy(update={"threads": 7, "snapshot_every": 1})
    assert changed.identity() == PARAMS.identity()


def test_the_schedule_is_that_of_the_paper():
    rates = [warmup_cosine(s, steps=100, warmup=10, floor=0.1) for s in range(100)]
    assert rates[:10] == [pytest.approx((s + 1) / 10) for s in range(10)]
    for s in range(10, 100):
        assert rates[s] == pytest.approx(0.1 + 0.45 * (1 + math.cos(math.pi * (s - 10) / 90)))
