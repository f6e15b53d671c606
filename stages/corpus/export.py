"""What leaves the stage: tokenizer, shards, pairs, corpus.json, catalogue."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer

from trainwright.sql import load as load_sql
from trainwright.stages.contract import DataError
from trainwright.stages.corpus.contamination import Contamination
from trainwright.stages.corpus.decide import batches, stream
from trainwright.stages.corpus.pairs import Answer, Instruction, instructions, preferences
from trainwright.stages.corpus.params import CorpusParams
from trainwright.stages.corpus.shards import ShardWriter, Split
from trainwright.stages.corpus.sources import tokenizer_file
from trainwright.stages.corpus.text import content_id
from trainwright.stages.corpus.tokenizer import (
    BOS,
    EOS,
    SPECIAL_TOKENS,
    encode_batches,
    train_tokenizer,
)

SPLITS = ("train", "heldout")


def make_tokenizer(db: duckdb.DuckDBPyConnection, params: CorpusParams) -> Tokenizer:
    """The given tokenizer, or one trained on a sample of the kept training documents."""
    if params.tokenizer.folder is not None:
        return given_tokenizer(params.tokenizer.folder)
    sample = stream(
        db, load_sql("tokenizer_sample"), {"sample_bytes": params.tokenizer.sample_bytes}
    )
    return train_tokenizer((text for (text,) in sample), params.tokenizer.vocab_size)


def given_tokenizer(folder: str) -> Tokenizer:
    """The tokenizer of a folder; `DataError` if it lacks the special tokens of chats."""
    path = tokenizer_file(folder)
    try:
        tokenizer: Tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise DataError(f"tokenizer.folder: {path} is not a tokenizer ({error})") from None
    missing = [t for t in SPECIAL_TOKENS if tokenizer.token_to_id(t) is None]
    if missing:
        raise DataError(
            f"tokenizer.folder: {path} lacks {', '.join(missing)}; add them as special tokens, or "
            "leave tokenizer.folder empty to train one"
        )
    return tokenizer


def write_shards(
    db: duckdb.DuckDBPyConnection,
    tokenizer: Tokenizer,
    params: CorpusParams,
    split: str,
    out: Path,
    report: Callable[[int, int], None],
) -> Split:
    """Encode the kept documents of a split into shards; note in the catalogue where each lies.

    `report` is told how many documents are done, and of how many.
    """
    bos, eos = (tokenizer.token_to_id(token) for token in (BOS, EOS))
    size = tokenizer.get_vocab_size()
    writer = ShardWriter(out / "shards", split, size, bos, eos, params.shard_tokens)
    kept = "SELECT count(*) FROM catalogue WHERE kept AND split = ?"
    ((total,),) = db.execute(kept, [split]).fetchall()
    values = {"split": split, "seed": str(params.seed)}
    places: list[dict[str, Any]] = []
    for rows in batches(db, load_sql("documents_of_split"), values):
        places.extend(_encode(tokenizer, writer, split, rows))
        report(len(places), total)
    result = writer.close()
    _note_places(db, places)
    return result


def _encode(
    tokenizer: Tokenizer, writer: ShardWriter, split: str, rows: list[tuple[Any, ...]]
) -> list[dict[str, Any]]:
    places = []
    encoded = encode_batches(tokenizer, (text for _, text, _ in rows))
    for (key, _, size), ids in zip(rows, encoded, strict=True):
        shard, first = writer.add(ids, size)
        name = f"{split}-{shard:05d}.bin"
        places.append({"id": key, "shard": name, "first_token": first, "tokens": len(ids) + 2})
    return places


def _note_places(db: duckdb.DuckDBPyConnection, places: list[dict[str, Any]]) -> None:
    schema = pa.schema(
        {
            "id": pa.string(),
            "shard": pa.string(),
            "first_token": pa.int64(),
            "tokens": pa.int64(),
        }
    )
    db.register("places", pa.Table.from_pylist(places, schema))
    db.execute(load_sql("note_places"))
    db.unregister("places")


def write_pairs(parts: list[Path], ngram_words: int, out: Path) -> dict[str, dict[str, int]]:
    """Write instructions and preferences of both splits; counts by file and split.

    A training pair is left out if its answer is a held-out one or shares an n-gram with one.
    """
    answers = _answers(parts)
    heldout = instructions(answers["heldout"])
    known = {content_id(pair.response) for pair in heldout}
    checker = Contamination.of((pair.response for pair in heldout), ngram_words)
    offered = instructions(answers["train"])
    shares = checker.shares([pair.response for pair in offered])
    train = [
        pair
        for pair, share in zip(offered, shares, strict=True)
        if not share and content_id(pair.response) not in known
    ]
    counts: dict[str, dict[str, int]] = {"instructions": {}, "preferences": {}}
    for split, pairs in (("train", train), ("heldout", heldout)):
        counts["instructions"][split] = _write_lines(
            out / "instructions" / f"{split}.jsonl", map(_instruction, pairs)
        )
        counts["preferences"][split] = _write_lines(
            out / "preferences" / f"{split}.jsonl", (asdict(p) for p in preferences(pairs))
        )
    return counts


def _answers(parts: list[Path]) -> dict[str, list[Answer]]:
    found: dict[str, list[Answer]] = {split: [] for split in SPLITS}
    for part in parts:
        for row in pq.read_table(part / "answers.parquet").to_pylist():
            found[row.pop("split")].append(Answer(**row))
    return found


def _instruction(pair: Instruction) -> dict[str, str]:
    row = asdict(pair)
    del row["module"]
    return row


def _write_lines(path: Path, rows: Iterable[dict[str, str]]) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            count += 1
    return count
