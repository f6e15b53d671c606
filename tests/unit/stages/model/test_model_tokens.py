from __future__ import annotations

import json

import numpy as np
import pytest
import tiny

from trainwright.stages.contract import DataError
from trainwright.stages.model.tokens import Split


def test_shards_are_read_as_one_stream(corpus):
    files = sorted((corpus / "shards").glob("train-*.bin"))
    whole = np.concatenate([np.fromfile(path, "<u2") for path in files])
    split = Split(corpus, "train")
    first = np.fromfile(files[0], "<u2").size
    np.testing.assert_array_equal(split.read(0, len(split)), whole)
    np.testing.assert_array_equal(split.read(first - 3, first + 3), whole[first - 3 : first + 3])


def test_windows_predict_every_token_but_the_first_once(corpus):
    split = Split(corpus, "heldout")
    targets = [t for window in split.windows(16, 161, 3) for t in window[:, 1:].flatten().tolist()]
    assert targets == split.read(1, 161).tolist()


@pytest.fixture
def spoiled(tmp_path):
    return tiny.save_corpus(tmp_path / "corpus")


@pytest.mark.parametrize("cut", [1, 2])
def test_a_shard_that_was_cut_off_is_refused(spoiled, cut):
    path = spoiled / "shards" / "train-00001.bin"
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(DataError, match=r"train-00001.bin has .* tokens, corpus.json says"):
        Split(spoiled, "train")


def test_a_missing_shard_is_refused(spoiled):
    (spoiled / "shards" / "heldout-00000.bin").unlink()
    with pytest.raises(DataError, match=r"heldout-00000.bin is missing"):
        Split(spoiled, "heldout")


def test_a_split_without_documents_is_refused_though_its_shard_is_an_empty_file(spoiled):
    (spoiled / "shards" / "heldout-00000.bin").write_bytes(b"")
    meta = json.loads((spoiled / "corpus.json").read_text())
    meta["splits"]["heldout"]["shards"][0]["tokens"] = 0
    (spoiled / "corpus.json").write_text(json.dumps(meta))
    with pytest.raises(DataError, match="no tokens in its split 'heldout'"):
        Split(spoiled, "heldout")


@pytest.mark.parametrize("text", ["{", "{}", '{"dtype": "uint16", "vocab_size": 9, "splits": {}}'])
def test_a_corpus_json_that_is_none_is_refused(spoiled, text):
    (spoiled / "corpus.json").write_text(text)
    with pytest.raises(DataError, match=r"corpus\.json"):
        Split(spoiled, "train")
