from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import tiny

from trainwright.stages.contract import DataError
from trainwright.stages.model.tokens import Split
from trainwright.stages.validate.heldout import (
    bits_per_byte,
    positions,
    text_bytes,
    token_bytes,
)


def test_positions_are_those_of_a_plain_loop(corpus):
    split = Split(corpus, "heldout")
    ids = split.read(0, len(split))
    found = positions(split, length=16, limit=100)
    count = (100 - 1) // 16 * 16
    np.testing.assert_array_equal(found.previous, ids[:count])
    np.testing.assert_array_equal(found.targets, ids[1 : count + 1])


def test_bytes_of_a_part_are_those_of_its_text(corpus):
    split, tokenizer = Split(corpus, "heldout"), tiny.make_tokenizer()
    texts = tiny.documents(40, 3)[:7]
    ids = [i for t in texts for i in [1, *tokenizer.encode(t, add_special_tokens=False), 2]]
    size = text_bytes(split, np.array(ids), corpus / "tokenizer")
    assert size == pytest.approx(sum(len(t.encode()) for t in texts), abs=1e-6)
    assert size > sum(map(len, texts)), "the text has characters of more than one byte"


def test_the_whole_split_has_the_bytes_that_corpus_json_says(corpus):
    split = Split(corpus, "heldout")
    whole = split.read(0, len(split))
    said = json.loads((corpus / "corpus.json").read_text())["splits"]["heldout"]["bytes"]
    assert text_bytes(split, whole, corpus / "tokenizer") == said
    spelled = token_bytes(
        json.loads((corpus / "tokenizer" / "tokenizer.json").read_text()), split.vocabulary
    )
    assert spelled[whole].sum() == said


def test_special_tokens_spell_nothing_and_other_tokenizers_count_tokens(corpus):
    tokenizer = json.loads((corpus / "tokenizer" / "tokenizer.json").read_text())
    assert token_bytes(tokenizer, 300)[:6].tolist() == [0] * 6
    plain = token_bytes({**tokenizer, "decoder": None}, 300)
    assert plain.tolist() == [0] * 6 + [1] * 294


def test_bits_per_byte_is_the_closed_form():
    # 1000 tokens at ln 2 nats each are 1000 bits; over 500 bytes that is 2 bits a byte.
    assert bits_per_byte(1000 * math.log(2), 500) == pytest.approx(2)


def test_a_corpus_that_does_not_know_its_bytes_is_refused(corpus, tmp_path: Path):
    copy = tiny.save_corpus(tmp_path / "corpus")
    meta = json.loads((copy / "corpus.json").read_text())
    del meta["splits"]["heldout"]["bytes"]
    (copy / "corpus.json").write_text(json.dumps(meta))
    with pytest.raises(DataError, match="how many bytes"):
        text_bytes(Split(copy, "heldout"), np.array([7]), copy / "tokenizer")
