"""Every format is read; what cannot be read is counted with its place, and the rest is still read."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainwright.stages.artifact import file_sha256
from trainwright.stages.contract import DataError
from trainwright.stages.corpus.files import Bad, DataFile, format_of, matching, read_texts

TEXTS = ["plain", "zwei Zeilen\nund ein ü", "東京", ""]


def data_file(path: Path) -> DataFile:
    return DataFile(str(path), *format_of("s", path), file_sha256(path))


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue())


PACKERS = {"": bytes, ".gz": gzip.compress, ".zst": zstd}


@pytest.mark.parametrize("suffix", PACKERS)
def test_json_lines_are_read(tmp_path: Path, suffix: str) -> None:
    lines = "\n".join(json.dumps({"text": text}) for text in TEXTS) + "\n\n"
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(PACKERS[suffix](lines.encode()))
    assert list(read_texts(data_file(path), "text")) == TEXTS


@pytest.mark.parametrize("suffix", PACKERS)
def test_a_text_file_is_one_text(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.md{suffix}"
    path.write_bytes(PACKERS[suffix]("\ufeff# Title\n\nText ü\n".encode()))
    assert list(read_texts(data_file(path), "text")) == ["# Title\n\nText ü\n"]


def test_parquet_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"body": [*TEXTS, None]}), path)
    *texts, last = read_texts(data_file(path), "body")
    assert texts == TEXTS
    assert last == Bad("'body' is not a string", 5)


def test_bad_lines_are_counted_with_their_place_and_the_rest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(
        b'{"text": "good"}\n{"text": \n{"texts": "x"}\n{"text": 3}\n"text"\n'
        b'{"text": "\xff"}\n{"text": "\\ud800"}\n{"text": "end"}'
    )
    assert list(read_texts(data_file(path), "text")) == [
        "good",
        Bad("not JSON", 2),
        Bad("no field 'text'", 3),
        Bad("'text' is not a string", 4),
        Bad("no field 'text'", 5),
        Bad("not UTF-8", 6),
        Bad("a lone surrogate", 7),
        "end",
    ]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_truncated_archive_gives_its_beginning_and_a_reason(tmp_path: Path, suffix: str) -> None:
    import random

    draw = random.Random(0)
    lines = [json.dumps({"text": f"{draw.random()}" * 10}) for _ in range(20_000)]
    packed = PACKERS[suffix]("\n".join(lines).encode())
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(packed[: len(packed) * 2 // 3])
    *texts, last = read_texts(data_file(path), "text")
    assert isinstance(last, Bad) and last.reason == "damaged archive"
    assert last.position == len(texts) + 1
    assert 1000 < len(texts) < 20_000
    assert texts == [json.loads(line)["text"] for line in lines[: len(texts)]]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.jsonl.gz", b"no archive", "damaged archive"),
        ("a.txt.zst", b"no archive", "damaged archive"),
        ("a.txt", b"\xff\xfe", "not UTF-8"),
        ("a.parquet", b"no parquet", "damaged file"),
    ],
)
def test_a_file_that_is_not_its_format_is_one_bad_record(
    tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    (found,) = read_texts(data_file(path), "text")
    assert isinstance(found, Bad) and found.reason == reason


def test_a_glob_without_a_match_is_refused_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no file matches .*; correct the path or take it out"):
        matching("s", [str(tmp_path / "*.jsonl")])


def test_globs_that_overlap_name_each_file_once(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("a.txt", "deep/b.txt"):
        (tmp_path / name).write_text("x")
    patterns = [str(tmp_path / "**/*.txt"), str(tmp_path / "a.txt")]
    assert [p.name for p in matching("s", patterns)] == ["a.txt", "b.txt"]


@pytest.mark.parametrize("name", ["a.html", "a.parquet.gz", "a", "a.gz"])
def test_a_format_that_is_not_read_is_refused(name: str) -> None:
    with pytest.raises(DataError, match="of no format that is read"):
        format_of("s", Path(name))
