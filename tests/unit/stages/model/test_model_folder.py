from __future__ import annotations

import json

import pytest
import tiny
import torch

from trainwright.stages.contract import DataError
from trainwright.stages.instruct.packing import PackedBatch
from trainwright.stages.model.folder import check_masks, load_causal, load_tokenizer
from trainwright.stages.model.vocabulary import same_vocabulary

CPU = torch.device("cpu")


@pytest.fixture
def model(corpus, tmp_path):
    return tiny.save_model(tmp_path, tiny.make_model(300), corpus) / "model"


def change(path, **fields):
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_equal_weights_give_equal_bytes_and_come_back(corpus, model, tmp_path):
    loaded = load_causal(model, CPU)
    again = tiny.save_model(tmp_path / "again", loaded, corpus) / "model"
    names = sorted(path.name for path in model.iterdir())
    assert names == sorted(path.name for path in again.iterdir())
    for name in names:
        assert (model / name).read_bytes() == (again / name).read_bytes(), name


@pytest.mark.parametrize("fields", [{"num_hidden_layers": 3}, {"intermediate_size": 96}])
def test_weights_that_would_be_random_are_refused(model, fields):
    change(model / "config.json", **fields)
    with pytest.raises(DataError, match=r"config.json and the weights do not belong together"):
        load_causal(model, CPU)


def test_a_cut_weight_file_is_a_data_error(model):
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(DataError, match="the model cannot be loaded"):
        load_causal(model, CPU)


def test_pickled_weights_are_not_loaded(model):
    torch.save(tiny.make_model(300).state_dict(), model / "pytorch_model.bin")
    (model / "model.safetensors").unlink()
    with pytest.raises(DataError, match="the model cannot be loaded"):
        load_causal(model, CPU)


def test_attention_that_does_not_obey_bool_masks_is_refused(model):
    """The sight of a later token, which the mask forbids, tells which attention obeys it."""

    def moved(loaded):
        ids, zeros = torch.arange(10, 18).view(1, 8), torch.zeros(1, 8, dtype=torch.int64)
        logits = []
        for last in (20, 21):
            ids[0, -1] = last
            mask = PackedBatch(ids, zeros, zeros, zeros).attention()
            with torch.no_grad():
                logits.append(loaded(input_ids=ids, attention_mask=mask).logits[0, :-1].clone())
        return not torch.equal(*logits)

    loaded = load_causal(model, CPU)
    check_masks(loaded)
    assert not moved(loaded)
    loaded.set_attn_implementation("eager")
    assert moved(loaded)
    with pytest.raises(DataError, match="'eager', which does not obey"):
        check_masks(loaded)


def test_a_broken_tokenizer_is_a_data_error(model):
    (model / "tokenizer.json").write_text('{"model": {"type": "BPE"}}')
    with pytest.raises(DataError, match="the tokenizer cannot be loaded"):
        load_tokenizer(model)


def test_a_vocabulary_is_the_same_however_its_merges_are_spelled(model, tmp_path):
    values = json.loads((model / "tokenizer.json").read_text())
    merges = [" ".join(merge) for merge in values["model"]["merges"]]
    other = tmp_path / "tokenizer.json"
    other.write_text(json.dumps({**values, "model": {**values["model"], "merges": merges}}))
    assert merges
    assert same_vocabulary(model / "tokenizer.json", other)
    fewer = {**values["model"], "merges": merges[:-1]}
    other.write_text(json.dumps({**values, "model": fewer}))
    assert not same_vocabulary(model / "tokenizer.json", other)
