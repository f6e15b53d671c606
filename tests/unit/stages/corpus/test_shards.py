"""Shards hold every document whole, in order, between its begin and end tokens."""

from pathlib import Path

import numpy as np
import pytest

from trainwright.stages.corpus.shards import ShardWriter, token_dtype

DOCUMENTS = [[10, 11, 12], [], [13], [14, 15, 16, 17, 18, 19], [20]]


def write(folder: Path, limit: int, vocab: int = 300) -> tuple:
    writer = ShardWriter(folder, "train", vocab, 1, 2, limit)
    places = [writer.add(ids, 5) for ids in DOCUMENTS]
    return writer.close(), places


@pytest.mark.parametrize("limit", [1, 6, 10, 1000])
@pytest.mark.parametrize("vocab", [300, 70_000])
def test_documents_come_back_from_where_they_were_put(
    tmp_path: Path, limit: int, vocab: int
) -> None:
    split, places = write(tmp_path, limit, vocab)
    for ids, (shard, first) in zip(DOCUMENTS, places, strict=True):
        tokens = np.fromfile(tmp_path / split.shards[shard]["file"], token_dtype(vocab))
        starts = np.fromfile(tmp_path / f"train-{shard:05d}.idx", "<i8")
        at = int(np.flatnonzero(starts == first)[0])
        assert tokens[starts[at] : starts[at + 1]].tolist() == [1, *ids, 2]


@pytest.mark.parametrize("limit", [1, 6, 10, 1000])
def test_counts_are_exact(tmp_path: Path, limit: int) -> None:
    split, _ = write(tmp_path, limit)
    assert split.documents == len(DOCUMENTS) and split.bytes == 5 * len(DOCUMENTS)
    assert split.tokens == sum(map(len, DOCUMENTS)) + 2 * len(DOCUMENTS)
    for number, shard in enumerate(split.shards):
        starts = np.fromfile(tmp_path / f"train-{number:05d}.idx", "<i8")
        assert (tmp_path / shard["file"]).stat().st_size == 2 * shard["tokens"]
        assert starts[0] == 0 and starts[-1] == shard["tokens"]
        assert len(starts) == shard["documents"] + 1
    assert sum(shard["tokens"] for shard in split.shards) == split.tokens


def test_a_shard_closes_with_the_document_that_fills_it(tmp_path: Path) -> None:
    split, _ = write(tmp_path, 6)
    assert [shard["tokens"] for shard in split.shards] == [7, 11, 3]


def test_a_split_without_documents_has_one_empty_shard(tmp_path: Path) -> None:
    split = ShardWriter(tmp_path, "heldout", 300, 1, 2, 10).close()
    assert split.shards == [{"file": "heldout-00000.bin", "tokens": 0, "documents": 0}]
    assert np.fromfile(tmp_path / "heldout-00000.idx", "<i8").tolist() == [0]


def test_small_vocabularies_take_two_bytes_a_token() -> None:
    assert token_dtype(65536) == np.dtype("<u2") and token_dtype(65537) == np.dtype("<u4")
