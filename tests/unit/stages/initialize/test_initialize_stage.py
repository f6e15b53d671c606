from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
from pydantic import ValidationError
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from trainwright.stages.contract import DataError, UsageError
from trainwright.stages.initialize.main import identify, run
from trainwright.stages.initialize.params import InitializeParams

SHAPE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
HERE = Path(__file__).parents[1]


def initialize(folder: Path, corpus: Path, **fields):
    params = InitializeParams(**fields)
    result = run(tiny.make_context(folder, "initialize", params, {"corpus": corpus}))
    return result, folder / "try" / "model"


def digest(folder: Path) -> str:
    found = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        found.update(path.name.encode() + path.read_bytes())
    return found.hexdigest()


def test_the_folder_loads_with_transformers_and_has_the_given_shape(corpus, tmp_path):
    shape = {**SHAPE, "rope_theta": 5000.0}
    result, folder = initialize(tmp_path, corpus, architecture=shape)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert result.metrics["parameters"] == sum(p.numel() for p in model.parameters())
    assert model.config.hidden_size == 32
    assert model.config.rope_parameters["rope_theta"] == 5000.0
    assert model.config.vocab_size == len(AutoTokenizer.from_pretrained(folder)) == 300
    assert (model.config.bos_token_id, model.config.eos_token_id) == (1, 2)


@pytest.mark.slow
def test_two_processes_give_the_same_bytes(corpus, tmp_path):
    _, folder = initialize(tmp_path / "here", corpus, architecture=SHAPE)
    code = (
        "import sys; from pathlib import Path; import test_initialize_stage as t;"
        f"t.initialize(Path(sys.argv[1]), Path(sys.argv[2]), architecture={SHAPE})"
    )
    there = tmp_path / "there"
    command = [sys.executable, "-c", code, str(there), str(corpus)]
    paths = f"{HERE}:{HERE / 'initialize'}"
    env = {"PYTHONPATH": paths, "PYTHONHASHSEED": "7", "OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, env=env, timeout=300)
    assert digest(folder) == digest(there / "try" / "model")


def test_a_given_folder_keeps_its_weights(corpus, tmp_path):
    given = tiny.save_model(tmp_path / "given", tiny.make_model(300), corpus) / "model"
    _, folder = initialize(tmp_path / "stage", corpus, from_folder=str(given))
    before, after = (load_file(path / "model.safetensors") for path in (given, folder))
    assert before.keys() == after.keys()
    assert all(before[name].equal(after[name]) for name in before)


def test_a_folder_with_another_tokenizer_is_refused_with_the_way_out(corpus, tmp_path):
    other = tiny.save_corpus(tmp_path / "other", vocabulary=280)
    given = tiny.save_model(tmp_path / "given", tiny.make_model(280), other) / "model"
    with pytest.raises(DataError, match=r"set\s+corpus.tokenizer.folder to"):
        initialize(tmp_path / "stage", corpus, from_folder=str(given))


def test_the_identity_of_a_folder_is_its_content_not_its_place(corpus, tmp_path):
    one = tiny.save_model(tmp_path / "one", tiny.make_model(300), corpus) / "model"
    two = tiny.save_model(tmp_path / "two", tiny.make_model(300), corpus) / "model"
    ids = [identify(InitializeParams(from_folder=str(folder))) for folder in (one, two)]
    assert ids[0] == ids[1]
    config = json.loads((two / "config.json").read_text())
    (two / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-5}))
    assert identify(InitializeParams(from_folder=str(two))) != ids[0]


def test_a_folder_without_safetensors_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(DataError, match=r"no .safetensors weights"):
        identify(InitializeParams(from_folder=str(tmp_path)))


def test_a_type_that_transformers_does_not_know_is_a_usage_error(corpus, tmp_path):
    shape = {**SHAPE, "model_type": "nonsense"}
    with pytest.raises(UsageError, match="no causal language model of the type 'nonsense'"):
        initialize(tmp_path, corpus, architecture=shape)


def test_a_folder_and_an_architecture_contradict_each_other():
    with pytest.raises(ValidationError, match="both from_folder and architecture"):
        InitializeParams(from_folder="x", architecture=SHAPE)
