"""Documents in local files: JSON lines, Parquet, text and Markdown, plain or compressed.

What cannot be read is counted with its reason and its position, and never stops the reading.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from trainwright.stages.contract import DataError

FORMATS = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet", ".txt": "text", ".md": "text",
}  # fmt: skip
LONE_SURROGATE = "a lone surrogate"
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}


@dataclass(frozen=True)
class DataFile:
    """A local file, its format and compression, and the sha256 of its bytes in hex."""

    path: str
    format: str
    compression: str | None
    sha256: str


@dataclass(frozen=True)
class Bad:
    """A record that could not be read: why, and where (line or row from 1; 0 for the whole file)."""

    reason: str
    position: int


def matching(source: str, patterns: list[str]) -> list[Path]:
    """The files that the patterns name, each once; `DataError` where a pattern names none."""
    found: set[Path] = set()
    for pattern in patterns:
        # pathlib's own glob takes no absolute pattern.
        hits = [Path(p) for p in glob(pattern, recursive=True) if Path(p).is_file()]  # noqa: PTH207
        if not hits:
            raise DataError(
                f"corpus source {source!r}: no file matches {pattern!r}; correct the path or take "
                "it out"
            )
        found.update(path.resolve() for path in hits)
    return sorted(found)


def format_of(source: str, path: Path) -> tuple[str, str | None]:
    """Format and compression by the file's name; `DataError` if it is none we read."""
    compression = COMPRESSIONS.get(path.suffix)
    suffix = Path(path.stem).suffix if compression else path.suffix
    if suffix not in FORMATS or (compression and FORMATS[suffix] == "parquet"):
        raise DataError(
            f"corpus source {source!r}: {path.name} is of no format that is read "
            f"({', '.join(FORMATS)}; all but .parquet also with {' or '.join(COMPRESSIONS)}); "
            "narrow the glob"
        )
    return FORMATS[suffix], compression


def read_texts(file: DataFile, text_field: str) -> Iterator[str | Bad]:
    """The texts of a file in its order, and in their place what could not be read."""
    if file.format == "parquet":
        yield from _parquet(file, text_field)
    elif file.format == "jsonl":
        yield from _json_lines(file, text_field)
    else:
        yield from _text(file)


def _open(file: DataFile) -> IO[bytes]:
    if file.compression == "gzip":
        unpacked: IO[bytes] = gzip.open(file.path, "rb")  # type: ignore[assignment]  # noqa: SIM115
        return unpacked
    stream: Any = pa.input_stream(file.path, compression=file.compression)
    return stream  # type: ignore[no-any-return]


_DAMAGE = (OSError, EOFError, zlib.error, pa.ArrowException)


def _lines(file: DataFile) -> Iterator[bytes]:
    """Lines without their end; an undamaged beginning of a damaged archive is still given."""
    rest = b""
    with _open(file) as stream:
        while chunk := stream.read(1 << 20):
            *whole, rest = (rest + chunk).split(b"\n")
            yield from whole
    if rest:
        yield rest


def _json_lines(file: DataFile, text_field: str) -> Iterator[str | Bad]:
    number = 0
    try:
        for number, line in enumerate(_lines(file), 1):
            if line.strip():
                yield _record(line, number, text_field)
    except _DAMAGE:
        yield Bad("damaged archive", number + 1)


def _record(line: bytes, number: int, text_field: str) -> str | Bad:
    try:
        value = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError:
        return Bad("not UTF-8", number)
    except (ValueError, RecursionError):
        return Bad("not JSON", number)
    if not isinstance(value, dict) or text_field not in value:
        return Bad(f"no field {text_field!r}", number)
    return _checked(value[text_field], number, text_field)


def _checked(text: object, number: int, text_field: str) -> str | Bad:
    if not isinstance(text, str):
        return Bad(f"{text_field!r} is not a string", number)
    return text if is_unicode(text) else Bad(LONE_SURROGATE, number)


def is_unicode(text: str) -> bool:
    """Whether a text can be written as UTF-8: a half of a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _text(file: DataFile) -> Iterator[str | Bad]:
    try:
        with _open(file) as stream:
            yield stream.read().decode("utf-8-sig")
    except UnicodeDecodeError:
        yield Bad("not UTF-8", 0)
    except _DAMAGE:
        yield Bad("damaged archive", 0)


def _parquet(file: DataFile, text_field: str) -> Iterator[str | Bad]:
    try:
        with pq.ParquetFile(file.path) as table:
            if text_field not in table.schema_arrow.names:
                yield Bad(f"no field {text_field!r}", 0)
                return
            number = 0
            for batch in table.iter_batches(batch_size=1024, columns=[text_field]):
                for value in batch.column(0).to_pylist():
                    number += 1
                    yield _checked(value, number, text_field)
    except _DAMAGE:
        yield Bad("damaged file", 0)
