from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file

from trainwright.stages.contract import GateError, UsageError
from trainwright.stages.quantize.export import export
from trainwright.stages.quantize.fake import with_fake_quantization
from trainwright.stages.validate.main import run
from trainwright.stages.validate.params import ValidateParams

PROMPTS = ["file path", "list", "error index"]


def params(**fields) -> ValidateParams:
    given = {"sequence_length": 64, "heldout_tokens": 2000, "prompts": PROMPTS, "threads": 1}
    return ValidateParams(**{**given, "sample_tokens": 16, **fields})


def gate(tmp_path: Path, corpus: Path, model: Path, token: str = "try", **fields):
    reference = fields.pop("reference", None)
    inputs = {"corpus": corpus, "model": model} | ({"reference": reference} if reference else {})
    return run(tiny.make_context(tmp_path / "stage", "validate", params(**fields), inputs, token))


@pytest.fixture
def broken(trained: Path, tmp_path: Path) -> Path:
    """A copy of the trained model, to be broken."""
    return Path(shutil.copytree(trained, tmp_path / "broken"))


def change_weights(artifact: Path, change) -> None:
    path = artifact / "model" / "model.safetensors"
    weights = load_file(path)
    change(weights)
    save_file(weights, path, metadata={"format": "pt"})


def change_config(artifact: Path, **fields) -> None:
    path = artifact / "model" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.mark.slow
def test_a_trained_model_passes_with_every_figure_and_the_same_report_again(
    tmp_path, corpus, trained
):
    results = [gate(tmp_path, corpus, trained, token) for token in ("one", "two")]
    found = results[0].metrics
    assert found["heldout_loss"] < found["bigram_loss"] < found["unigram_loss"]
    assert set(found) == {
        "heldout_loss",
        "perplexity",
        "bits_per_byte",
        "unigram_loss",
        "bigram_loss",
    }
    assert all(check["passed"] for check in results[0].summary["checks"])
    assert [sample.prompt for sample in results[0].samples] == PROMPTS
    one, two = (tmp_path / "stage" / token / "report.json" for token in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()
    assert str(tmp_path) not in one.read_text()
    names = [check["name"] for check in json.loads(one.read_text())["checks"]]
    assert {"loads_elsewhere", "own_modules_elsewhere", "repeat_share"} <= set(names)


def test_a_weight_that_is_nan_is_refused_by_name(tmp_path, corpus, broken):
    change_weights(broken, lambda w: w["model.norm.weight"].__setitem__(3, torch.nan))
    with pytest.raises(GateError, match=r"tensors_not_finite is 1, must be 0 \(model.norm.weight"):
        gate(tmp_path, corpus, broken)


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_a_weight_file_that_was_cut_off_is_refused(tmp_path, corpus, broken, keep):
    path = broken / "model" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(GateError, match=r"model.safetensors is cut off"):
        gate(tmp_path, corpus, broken)


def test_pickled_weights_are_refused(tmp_path, corpus, broken):
    path = broken / "model" / "model.safetensors"
    torch.save(load_file(path), path.with_name("pytorch_model.bin"))
    path.unlink()
    with pytest.raises(GateError, match=r"pytorch_model.bin is pickled"):
        gate(tmp_path, corpus, broken)


def test_a_shard_that_the_index_names_must_be_there(tmp_path, corpus, broken):
    weights = {"model.norm.weight": "model-2.safetensors"}
    index = broken / "model" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weights}))
    with pytest.raises(GateError, match=r"model-2.safetensors is missing"):
        gate(tmp_path, corpus, broken)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"num_hidden_layers": 3}, "9 weights not in the weight files"),
        ({"num_hidden_layers": 1}, "9 weights unknown to the configuration"),
        ({"intermediate_size": 96}, "6 weights of another shape"),
        ({"tie_word_embeddings": False}, "1 weights not in the weight files"),
        ({"model_type": "nonsense"}, "the model cannot be loaded"),
        ({"model_type": ""}, "names no model_type"),
    ],
)
def test_a_config_of_another_model_is_refused(tmp_path, corpus, broken, fields, reason):
    change_config(broken, **fields)
    with pytest.raises(GateError, match=reason):
        gate(tmp_path, corpus, broken)


def test_a_missing_tokenizer_and_a_nan_are_both_named(tmp_path, corpus, broken):
    (broken / "model" / "tokenizer.json").unlink()
    change_weights(broken, lambda w: w["model.norm.weight"].fill_(torch.inf))
    with pytest.raises(GateError, match=r"tokenizer is missing.*tensors_not_finite is 1"):
        gate(tmp_path, corpus, broken)


def test_another_tokenizer_than_the_corpus_s_is_refused(tmp_path, corpus, broken):
    other = tiny.make_tokenizer(280)
    other.save_pretrained(broken / "model")
    with pytest.raises(GateError, match=r"tokenizer is another than the corpus's"):
        gate(tmp_path, corpus, broken)


@pytest.mark.slow
def test_random_weights_do_not_beat_the_ngram_models_nor_a_bound(tmp_path, corpus):
    model = tiny.save_model(tmp_path / "random", tiny.make_model(300), corpus)
    with pytest.raises(GateError) as error:
        gate(tmp_path, corpus, model, max_perplexity=50)
    message = str(error.value)
    assert "the model fails 3 of" in message
    for name in ("against_unigram", "against_bigram", "perplexity is"):
        assert name in message


def stuck(corpus: Path, folder: Path, token: int) -> Path:
    """A model that says one token for ever: a constant residual stream, one hot output row."""
    model = tiny.make_model(300, tied=False)
    with torch.no_grad():
        model.model.embed_tokens.weight.fill_(1)
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.lm_head.weight.zero_()
        model.lm_head.weight[token] = 1
    return tiny.save_model(folder, model, corpus)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("token", "reason"),
    [(50, "repeat_share is 1, must be at most 0.9"), (2, "empty_sample_share is 1, must be")],
)
def test_degenerate_generation_is_refused(tmp_path, corpus, token, reason):
    model = stuck(corpus, tmp_path / "stuck", token)
    with pytest.raises(GateError, match=reason):
        gate(tmp_path, corpus, model, beat="none")


def test_windows_longer_than_the_model_s_positions_are_a_usage_error(tmp_path, corpus, trained):
    with pytest.raises(UsageError, match="sequence_length is 200 tokens, the model has 128"):
        gate(tmp_path, corpus, trained, sequence_length=200)


@pytest.fixture
def exported(trained: Path, tmp_path: Path) -> Path:
    """The trained model in int8."""
    from trainwright.stages.model.folder import load_causal

    model = load_causal(trained / "model", torch.device("cpu"))
    with_fake_quantization(model)
    export(model, trained / "model", tmp_path / "int8" / "model")
    return tmp_path / "int8"


@pytest.mark.slow
def test_an_export_passes_beside_its_float_model(tmp_path, corpus, trained, exported):
    bounds = {"kind": "export", "reference": trained, "max_size_ratio": 0.5}
    found = gate(tmp_path, corpus, exported, **bounds).metrics
    assert 0.98 < found["perplexity_ratio"] < 1.02
    size = (exported / "model" / "model.safetensors").stat().st_size
    count = sum(p.numel() for p in tiny.make_model(300).parameters())
    assert found["size_ratio"] == pytest.approx(size / (4 * count))
    assert 0 < found["max_logit_difference"] < 5


@pytest.mark.slow
def test_an_export_that_is_float_large_and_worse_is_refused_for_each(tmp_path, corpus, trained):
    worse = tiny.save_model(tmp_path / "random", tiny.make_model(300), corpus)
    with pytest.raises(GateError) as error:
        gate(tmp_path, corpus, worse, kind="export", reference=trained)
    for name in (
        "quantization is none, must be compressed-tensors",
        "int8_tensors is 0",
        "size_ratio is 1.0",
        "perplexity_ratio is",
    ):
        assert name in str(error.value)
