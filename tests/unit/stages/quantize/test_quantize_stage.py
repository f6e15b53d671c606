import hashlib

import pytest
import torch
from pydantic import ValidationError
from torch.nn import functional
from transformers import GPT2Config, GPT2LMHeadModel

from posttrain import make_context, make_model, make_tokenizer, save_corpus, save_model
from trainwright.stages.contract import DataError, UsageError
from trainwright.stages.instruct.packing import PackedBatch
from trainwright.stages.model.snapshot import Snapshots
from trainwright.stages.quantize import main, training
from trainwright.stages.quantize.fake import with_fake_quantization
from trainwright.stages.quantize.params import QuantizeParams
from trainwright.stages.quantize.training import Distiller, as_text, divergence

PARAMS = QuantizeParams(
    steps=24,
    row_tokens=64,
    batch_rows=4,
    micro_rows=2,
    warmup_steps=3,
    learning_rate=1e-3,
    heldout_tokens=1000,
    samples=2,
    sample_tokens=8,
    snapshot_every=5,
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
    context = make_context(tmp_path_factory.mktemp("straight"), "quantize", PARAMS, inputs)
    return main.run(context), digests(context.out)


def test_the_export_is_what_was_trained_and_its_figures_are_measured(straight):
    metrics = straight[0].metrics
    assert straight[0].summary["export_logit_difference"] == 0.0
    assert metrics["perplexity_ratio"] == metrics["perplexity_int8"] / metrics["perplexity_float"]
    assert metrics["perplexity_ratio"] == pytest.approx(1, abs=0.02)
    assert metrics["size_ratio"] == metrics["bytes_int8"] / metrics["bytes_float32"] < 0.5


class Stop(Exception):
    pass


def test_an_interrupted_run_ends_in_the_same_bytes(tmp_path, inputs, straight, monkeypatch):
    whole = training.Distiller.step
    for attempt, last in enumerate((7, 17)):

        def step(self, number, batches, last=last):
            if number == last:
                raise Stop
            return whole(self, number, batches)

        monkeypatch.setattr(training.Distiller, "step", step)
        with pytest.raises(Stop):
            main.run(make_context(tmp_path, "quantize", PARAMS, inputs, token=f"try{attempt}"))
        assert Snapshots(tmp_path / "work" / "quantize").newest()[0] == last // 5 * 5
    monkeypatch.setattr(training.Distiller, "step", whole)
    context = make_context(tmp_path, "quantize", PARAMS, inputs, token="last")
    result = main.run(context)
    assert digests(context.out) == straight[1]
    assert result == straight[0]


def test_divergence_is_the_sum_over_the_vocabulary():
    student, teacher = torch.randn(2, 3, 5), torch.randn(2, 3, 5)
    p, q = teacher.softmax(-1), student.softmax(-1)
    assert torch.allclose(divergence(student, teacher), (p * (p / q).log()).sum(-1), atol=1e-6)
    assert float(divergence(teacher, teacher).abs().max()) < 1e-6


def test_distillation_brings_the_quantized_model_back_to_its_teacher():
    teacher = make_model(64).requires_grad_(False)
    with torch.no_grad():
        for p in teacher.parameters():
            p.mul_(3)
    student = make_model(64)
    student.load_state_dict(teacher.state_dict())
    with_fake_quantization(student)
    noise = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in student.parameters():
            if p.requires_grad:
                p.add_(0.05 * torch.randn(p.shape, generator=noise))
    params = PARAMS.model_copy(update={"steps": 60, "learning_rate": 3e-3})
    distiller = Distiller(student, teacher, params, torch.device("cpu"))
    ids = torch.randint(0, 64, (4, 32), generator=noise)
    losses = [distiller.step(n, [as_text(ids)]) for n in range(60)]
    assert losses[-1] < losses[0] / 3


def test_accumulation_over_micro_batches_gives_the_same_gradient():
    ids = torch.arange(0, 64).view(8, 8)
    gradients = []
    for micro in (1, 8):
        teacher = make_model(64).double()
        student = make_model(64, seed=1).double()
        params = PARAMS.model_copy(update={"batch_rows": 8, "micro_rows": micro, "clip_norm": 1e9})
        distiller = Distiller(student, teacher, params, torch.device("cpu"))
        distiller.step(0, [as_text(ids)])
        gradients.append([p.grad.clone() for p in student.parameters()])
    for one, two in zip(*gradients, strict=True):
        assert torch.allclose(one, two, rtol=0, atol=1e-12)


def test_padding_bears_no_loss():
    teacher, student = make_model(64), make_model(64, seed=1)
    distiller = Distiller(student, teacher, PARAMS, torch.device("cpu"))
    ids = torch.arange(8, 16).view(1, 8)
    padded = torch.cat([ids, torch.full((1, 4), 63)], 1)
    chats = torch.tensor([[0] * 8 + [-1] * 4])
    positions = torch.tensor([[*range(8), 0, 0, 0, 0]])
    wide = PackedBatch(padded, positions, chats, torch.full_like(padded, -100))
    with torch.no_grad():
        assert torch.allclose(distiller._loss(wide), distiller._loss(as_text(ids)), atol=1e-5)


def test_a_model_that_is_not_finite_ends_the_stage_clearly(tmp_path, inputs):
    broken = make_model(len(make_tokenizer()))
    with torch.no_grad():
        broken.model.norm.weight.fill_(torch.nan)
    model = save_model(tmp_path / "broken", model=broken)
    with pytest.raises(DataError, match="quantize: loss is nan at step 0"):
        main.run(make_context(tmp_path, "quantize", PARAMS, {**inputs, "model": model}))


def test_a_model_without_linear_layers_is_refused_before_any_training(tmp_path, inputs):
    size = len(make_tokenizer())
    other = GPT2LMHeadModel(
        GPT2Config(vocab_size=size, n_positions=128, n_embd=32, n_layer=1, n_head=2)
    )
    model = save_model(tmp_path / "gpt2", model=other)
    with pytest.raises(DataError, match=r"\(gpt2\) has no linear layer beside its output"):
        main.run(make_context(tmp_path, "quantize", PARAMS, {**inputs, "model": model}))


def test_a_corpus_of_another_vocabulary_is_refused(tmp_path, inputs):
    corpus = save_corpus(tmp_path / "corpus")
    path = corpus / "corpus.json"
    path.write_text(path.read_text().replace('"vocab_size": ', '"vocab_size": 9'))
    with pytest.raises(DataError, match="the corpus has a vocabulary of"):
        main.run(make_context(tmp_path, "quantize", PARAMS, {**inputs, "corpus": corpus}))


def test_rows_beyond_the_models_positions_are_refused(tmp_path, inputs):
    params = PARAMS.model_copy(update={"row_tokens": 256})
    with pytest.raises(UsageError, match="the model has 128 positions"):
        main.run(make_context(tmp_path, "quantize", params, inputs))


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"batch_rows": 6, "micro_rows": 4}, "multiple of micro_rows"),
        ({"steps": 5, "warmup_steps": 5}, "must be below steps"),
        ({"chat_share": 1.5}, "less than or equal to 1"),
        ({"bits": 4}, "Extra inputs"),
    ],
)
def test_contradictions_are_refused(values, reason):
    with pytest.raises(ValidationError, match=reason):
        QuantizeParams.model_validate(values)


def test_teacher_targets_are_those_of_cross_entropy_when_it_is_certain():
    teacher = torch.tensor([[[0.0, 60.0, 0.0]]])
    student = torch.randn(1, 1, 3)
    expected = functional.cross_entropy(student[0], torch.tensor([1]))
    assert torch.allclose(divergence(student, teacher)[0, 0], expected, atol=1e-6)
