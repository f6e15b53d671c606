"""The work of one worker on one unit: read, split into documents, score; one folder of Parquet files.

Every value in a row is a pure function of the document, so how units are cut and in what order
they are read changes nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from trainwright.stages.artifact import file_sha256
from trainwright.stages.contract import DataError
from trainwright.stages.corpus import quality
from trainwright.stages.corpus.files import LONE_SURROGATE, Bad, is_unicode, read_texts
from trainwright.stages.corpus.minhash import MinHasher
from trainwright.stages.corpus.pairs import Limits, answer, is_question
from trainwright.stages.corpus.paragraphs import paragraphs
from trainwright.stages.corpus.params import CorpusParams
from trainwright.stages.corpus.python_docs import Docstring, harvest
from trainwright.stages.corpus.sources import Unit
from trainwright.stages.corpus.text import WordHasher, content_id, words
from trainwright.stages.fingerprint import sha256_of

VERSION = 3
"""Raised when this file makes other rows from the same unit."""

BATCH = 2000
SHOWN_BAD = 20

SCHEMA = pa.schema(
    [(name, pa.string()) for name in (
        "base", "content", "source", "part", "split", "origin", "licence", "language", "text",
    )]
    + [("bytes", pa.int64())]
    + [(name, pa.float64()) for name in quality.SCORES]
    + [("bands", pa.list_(pa.uint64()))]
)  # fmt: skip

ANSWERS = pa.schema(
    [(n, pa.string()) for n in ("source", "split", "module", "name", "signature", "answer")]
)


@dataclass(frozen=True)
class PartRules:
    """The parameters that bear on a part."""

    num_hashes: int
    bands: int
    shingle_words: int
    near: bool
    check_share: float
    answers: Limits

    @classmethod
    def of(cls, params: CorpusParams) -> PartRules:
        """Those of the stage."""
        return cls(
            params.dedup.num_hashes,
            params.dedup.bands,
            params.dedup.shingle_words,
            params.dedup.near,
            params.perplexity.check_share,
            Limits(
                params.pairs.min_answer_chars,
                params.pairs.max_answer_chars,
                params.pairs.max_signature_chars,
            ),
        )


@dataclass
class PartReport:
    """What a unit gave beside rows."""

    documents: int = 0
    records: int = 0
    bad: Counter[str] = field(default_factory=Counter)
    positions: list[dict[str, Any]] = field(default_factory=list)

    def count_bad(self, reason: str, where: str, position: int) -> None:
        """Count a record that could not be read."""
        self.bad[reason] += 1
        if len(self.positions) < SHOWN_BAD:
            self.positions.append({"where": where, "position": position, "reason": reason})


def part_key(unit: Unit, rules: PartRules) -> str:
    """What the part is a function of, as a name."""
    source = unit.source
    described = [
        VERSION, unit.digest, unit.part, unit.licence, source.name, source.kind, source.role,
        source.text_field, source.unit, source.language, source.heldout_share, repr(rules),
    ]  # fmt: skip
    if unit.data is not None:
        described += [unit.data.format, unit.data.compression]
    return str(sha256_of(described))[:32]


def write_part(unit: Unit, rules: PartRules, folder: Path) -> None:
    """Fill `folder` with documents.parquet, answers.parquet and report.json."""
    report = PartReport()
    answers: list[dict[str, str]] = []
    hasher = _Hasher(rules)
    with pq.ParquetWriter(folder / "documents.parquet", SCHEMA, compression="zstd") as writer:
        batch: list[dict[str, Any]] = []
        for row in _rows(unit, rules, report, answers):
            batch.append(row)
            if len(batch) == BATCH:
                writer.write_table(hasher.table(batch))
                batch = []
        writer.write_table(hasher.table(batch))
    pq.write_table(pa.Table.from_pylist(answers, ANSWERS), folder / "answers.parquet")
    (folder / "report.json").write_text(json.dumps(vars(report), sort_keys=True))


class _Hasher:
    """Adds band keys to rows, a batch at a time."""

    def __init__(self, rules: PartRules) -> None:
        self._words = WordHasher()
        self._size = rules.shingle_words
        self._minhash = MinHasher(rules.num_hashes, rules.bands) if rules.near else None

    def table(self, rows: list[dict[str, Any]]) -> pa.Table:
        """The rows as a table of `SCHEMA`."""
        tokens = [row.pop("tokens") for row in rows]
        keys: list[list[int]] = [[] for _ in rows]
        if self._minhash is not None:
            keys = self._minhash.bands(*self._words.ngrams(tokens, self._size)).tolist()
        for row, key in zip(rows, keys, strict=True):
            row["bands"] = key
        return pa.Table.from_pylist(rows, SCHEMA)


def _rows(
    unit: Unit, rules: PartRules, report: PartReport, answers: list[dict[str, str]]
) -> Iterator[dict[str, Any]]:
    for origin, text in _texts(unit, rules, report, answers):
        blocks = paragraphs(text) if unit.source.unit == "paragraph" else [text]
        # By the whole text: its paragraphs stay together, or one would tell of the next.
        split = _split(unit, rules, content_id(text))
        for index, block in enumerate(blocks):
            report.documents += 1
            place = f"{origin}#{index}" if origin and len(blocks) > 1 else origin
            yield _row(unit, split, place, block)


def _texts(
    unit: Unit, rules: PartRules, report: PartReport, answers: list[dict[str, str]]
) -> Iterator[tuple[str, str]]:
    """Pairs of (origin, text). Files' documents have no origin: a path is not identity."""
    if unit.data is not None:
        yield from _file_texts(unit, report)
        return
    for module in unit.modules:
        found = harvest(module)
        report.records += max(1, len(found.docstrings))
        if found.error is not None:
            report.count_bad(found.error, f"{unit.part}: {module.relative}", 0)
        for docstring in found.docstrings:
            if not is_unicode(docstring.text):
                report.count_bad(LONE_SURROGATE, f"{unit.part}: {module.relative}", 0)
                continue
            _add_answer(unit, rules, docstring, answers)
            yield docstring.name, docstring.text


def _file_texts(unit: Unit, report: PartReport) -> Iterator[tuple[str, str]]:
    assert unit.data is not None
    for text in read_texts(unit.data, unit.source.text_field):
        report.records += 1
        if isinstance(text, Bad):
            report.count_bad(text.reason, Path(unit.data.path).name, text.position)
        else:
            yield "", text
    if file_sha256(Path(unit.data.path)) != unit.data.sha256:
        raise DataError(
            f"corpus source {unit.source.name!r}: {unit.data.path} changed while it was read; "
            "run again when nothing writes to it"
        )


def _row(unit: Unit, split: str, origin: str, text: str) -> dict[str, Any]:
    content, tokens = content_id(text), words(text)
    described = "\0".join((unit.source.name, unit.part, origin, content, text))
    return {
        "base": hashlib.sha256(described.encode("utf-8", "surrogatepass")).hexdigest()[:32],
        "content": content,
        "source": unit.source.name,
        "part": unit.part,
        "split": split,
        "origin": origin,
        "licence": unit.licence,
        "language": unit.source.language,
        "text": text,
        "bytes": len(text.encode()),
        **quality.score(text, tokens),
        "tokens": tokens,
    }


def _split(unit: Unit, rules: PartRules, content: str) -> str:
    role = unit.source.role
    if role == "reference":
        return "check" if share_of(content, "check") < rules.check_share else "reference"
    if role == "heldout" or share_of(content, "heldout") < unit.source.heldout_share:
        return "heldout"
    return "train"


def share_of(content: str, purpose: str) -> float:
    """A number in [0, 1) that depends on the content and the purpose alone, evenly spread."""
    digest = hashlib.sha256(f"{purpose}\0{content}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def _add_answer(
    unit: Unit, rules: PartRules, docstring: Docstring, answers: list[dict[str, str]]
) -> None:
    if unit.source.role == "reference" or not is_question(docstring, rules.answers):
        return
    text = answer(docstring.text, rules.answers)
    if text is not None:
        answers.append(
            {
                "source": unit.part,
                "split": "heldout" if unit.source.role == "heldout" else "train",
                "module": docstring.module,
                "name": docstring.name,
                "signature": docstring.signature,
                "answer": text,
            }
        )
