"""The corpus stage: sources to token shards, tokenizer, pairs and a catalogue of every document.

Read and score (a map over units), decide (DuckDB), write. Every step is a pure function of sources
and recipe: the number of workers, the order and the names of input files change no byte.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
from tokenizers import Tokenizer

from trainwright.stages.context import StageContext
from trainwright.stages.contract import DataError, Params, StageResult, UsageError
from trainwright.stages.corpus import export, summary
from trainwright.stages.corpus.cache import clear_drafts, once
from trainwright.stages.corpus.contamination import Contamination, measure_part
from trainwright.stages.corpus.decide import Decisions, database_folder, open_database
from trainwright.stages.corpus.params import CorpusParams
from trainwright.stages.corpus.parts import PartRules, part_key, write_part
from trainwright.stages.corpus.pool import each
from trainwright.stages.corpus.shards import Split, token_dtype
from trainwright.stages.corpus.sources import Unit, resolve
from trainwright.stages.corpus.tokenizer import save_tokenizer
from trainwright.stages.fingerprint import sha256_of


def identify(params: Params) -> dict[str, str]:
    """Digests of what the sources hold now, by source or source/package."""
    assert isinstance(params, CorpusParams)
    digests: dict[str, str] = resolve(params).digests
    return digests


def run(context: StageContext) -> StageResult:
    """Build the corpus artifact."""
    params = context.typed(CorpusParams)
    clear_drafts(context.work)
    units = resolve(params).units
    parts = _read(context, params, units)
    bad = _bad_records(params, units, parts)
    database = open_database(context.work, params.workers, params.memory_mb)
    try:
        decisions = _decide(context, params, database, parts)
        tokenizer, splits = _write_tokens(context, params, database)
        context.progress("pairs")
        pairs = export.write_pairs(parts, params.decontamination.ngram_words, context.out)
        decisions.write_catalogue(context.out / "catalogue.parquet")
        return _finish(context, decisions, tokenizer, splits, bad, pairs)
    except duckdb.OutOfMemoryException as error:
        first = str(error).splitlines()[0]
        raise UsageError(
            f"corpus.memory_mb is {params.memory_mb}, which DuckDB outgrew ({first}): raise it"
        ) from None
    finally:
        database.close()
        shutil.rmtree(database_folder(context.work), ignore_errors=True)


def _read(context: StageContext, params: CorpusParams, units: tuple[Unit, ...]) -> list[Path]:
    """Every unit's part, in the order of their keys; finished ones are taken as they are."""
    rules = PartRules.of(params)
    # Two files of the same bytes are one job; its part is then read twice.
    distinct = {part_key(unit, rules): unit for unit in units}
    jobs = [(unit, rules, context.work) for unit in distinct.values()]
    context.progress("read", 0, len(jobs))
    for done in each(_read_unit, jobs, params.workers):
        context.progress("read", done, len(jobs))
    return [_part_folder(unit, rules, context.work) for unit in units]


def _read_unit(job: tuple[Unit, PartRules, Path]) -> None:
    unit, rules, work = job
    once(work, _part_folder(unit, rules, work).name, partial(write_part, unit, rules))


def _part_folder(unit: Unit, rules: PartRules, work: Path) -> Path:
    return work / f"part-{part_key(unit, rules)}"


def _bad_records(
    params: CorpusParams, units: tuple[Unit, ...], parts: list[Path]
) -> summary.BadRecords:
    bad = summary.BadRecords()
    documents = sum(
        bad.add(unit.source.name, part) for unit, part in zip(units, parts, strict=True)
    )
    bad.refuse_too_many(params)
    if not documents:
        raise DataError("the corpus sources hold no document: check packages and paths")
    return bad


def _decide(
    context: StageContext, params: CorpusParams, db: duckdb.DuckDBPyConnection, parts: list[Path]
) -> Decisions:
    decisions = Decisions(db, params, context.work)
    context.progress("clean")
    decisions.load(parts)
    context.progress("near duplicates")
    decisions.find_near_duplicates()
    decisions.judge_contamination(_contamination(context, params, decisions, parts))
    context.progress("perplexity")
    decisions.score_perplexity(_perplexity_key(params, parts))
    decisions.decide()
    return decisions


def _perplexity_key(params: CorpusParams, parts: list[Path]) -> str:
    """All that bears on which reference text is clean, and on which texts are scored."""
    names = sorted(part.name for part in parts)
    return str(sha256_of([names, params.cleaning.model_dump(), params.dedup.exact]))


def _contamination(
    context: StageContext, params: CorpusParams, decisions: Decisions, parts: list[Path]
) -> list[Path]:
    size = params.decontamination.ngram_words
    grams = Contamination.of(decisions.heldout_texts(), size).grams
    key = hashlib.sha256(f"{size}".encode() + grams.tobytes()).hexdigest()[:16]
    folder = once(context.work, f"heldout-{key}", lambda f: np.save(f / "grams.npy", grams))
    jobs = [(part, folder / "grams.npy", size, context.work, key) for part in dict.fromkeys(parts)]
    context.progress("contamination", 0, len(jobs))
    for done in each(_measure, jobs, params.workers):
        context.progress("contamination", done, len(jobs))
    return [_shares_folder(*job) for job in jobs]


def _measure(job: tuple[Path, Path, int, Path, str]) -> None:
    part, grams, size, work, _ = job
    once(work, _shares_folder(*job).name, partial(measure_part, part, grams, size))


def _shares_folder(part: Path, grams: Path, size: int, work: Path, key: str) -> Path:
    return work / f"shares-{key}-{part.name}"


def _write_tokens(
    context: StageContext, params: CorpusParams, db: duckdb.DuckDBPyConnection
) -> tuple[Tokenizer, dict[str, Split]]:
    context.progress("tokenizer")
    tokenizer = export.make_tokenizer(db, params)
    save_tokenizer(tokenizer, context.out / "tokenizer")
    splits = {
        split: export.write_shards(
            db, tokenizer, params, split, context.out, partial(context.progress, f"shards {split}")
        )
        for split in export.SPLITS
    }
    for split, result in splits.items():
        if not result.documents:
            raise DataError(
                f"not one document is left in the split {split!r}: see the reasons with a larger "
                "source, wider cleaning limits or wider perplexity limits"
            )
    return tokenizer, splits


def _finish(
    context: StageContext,
    decisions: Decisions,
    tokenizer: Tokenizer,
    splits: dict[str, Split],
    bad: summary.BadRecords,
    pairs: dict[str, dict[str, int]],
) -> StageResult:
    params, db = decisions.params, decisions.db
    table = summary.rows(db, "counts_by_source")
    reasons = summary.rows(db, "counts_by_reason")
    totals = summary.by_source(table).values()
    came, kept = (sum(t[n] for t in totals) for n in ("documents_in", "documents_kept"))
    shown: dict[str, Any] = {
        "sources": table,
        "keep_rate": summary.keep_rates(table),
        "dropped": {row["reason"]: row["first"] for row in reasons if row["first"]},
        "dropped_any": {row["reason"]: row["any"] for row in reasons},
        "bad": bad.as_json(),
        "perplexity": decisions.perplexity,
        "pairs": pairs,
        "licences": summary.rows(db, "licences"),
        "warnings": summary.warnings(params, table, decisions.perplexity),
        "notes": [summary.TEXT_ORIGIN, summary.NOT_HUMAN_FEEDBACK],
    }
    _write_corpus_json(context.out, params, tokenizer, splits, shown, context.external)
    metrics = {
        "documents_in": float(came),
        "documents_kept": float(kept),
        "documents_dropped": float(came - kept),
        "tokens_train": float(splits["train"].tokens),
        "tokens_heldout": float(splits["heldout"].tokens),
        "keep_rate": round(kept / max(1, came), 6),
    }
    report = {
        **shown,
        "bad_positions": bad.shown,
        "histogram": summary.histogram(db),
        "examples": summary.rows(db, "threshold_examples"),
    }
    return StageResult(metrics=metrics, summary=report)


def _write_corpus_json(
    out: Path,
    params: CorpusParams,
    tokenizer: Tokenizer,
    splits: dict[str, Split],
    shown: dict[str, Any],
    digests: dict[str, str],
) -> None:
    size = tokenizer.get_vocab_size()
    content = {
        "dtype": token_dtype(size).name,
        "vocab_size": size,
        "splits": {name: split.as_json() for name, split in splits.items()},
        "weights": {s.name: s.weight for s in params.sources if s.role == "corpus"},
        "digests": digests,
        **shown,
    }
    text = json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False)
    (out / "corpus.json").write_text(text + "\n", encoding="utf-8")
