"""The decisions: every document's scores and reasons, in one DuckDB catalogue."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from trainwright.sql import load as load_sql
from trainwright.stages.corpus import selfcheck
from trainwright.stages.corpus.cache import once
from trainwright.stages.corpus.kneser_ney import KneserNey, replace_texts
from trainwright.stages.corpus.minhash import crowded_bands, near_duplicates
from trainwright.stages.corpus.params import CorpusParams, PerplexityLimits
from trainwright.stages.corpus.text import WordHasher, words
from trainwright.stages.fingerprint import sha256_of

KN_FILES = ("word_ngrams", "word_vocabulary", "ngram_counts", "kneser_ney", "perplexity_scores")


def database_folder(work: Path) -> Path:
    """Where the database and what it spills lie while the stage runs."""
    return work / "duckdb"


def open_database(work: Path, workers: int, memory_mb: int) -> duckdb.DuckDBPyConnection:
    """A new database below `work`; that of an earlier try is never read."""
    folder = database_folder(work)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    database = duckdb.connect(str(folder / "catalogue.duckdb"))
    database.execute(f"SET memory_limit = '{memory_mb}MB'")
    database.execute(f"SET threads = {workers}")
    database.execute(f"SET temp_directory = {_quoted(folder / 'spill')}")
    return database


def _quoted(path: Path) -> str:
    """A path as a string in SQL, where a statement takes no parameter."""
    return "'" + str(path).replace("'", "''") + "'"


@dataclass
class Decisions:
    """Decides step by step; each step fills tables of the database."""

    db: duckdb.DuckDBPyConnection
    params: CorpusParams
    work: Path
    perplexity: dict[str, Any] = field(default_factory=dict)
    """Figures of the model and its self-check; empty if the filter is off."""

    def load(self, parts: list[Path]) -> None:
        """Read the workers' rows, and apply the quality rules and exact deduplication."""
        files = [str(part / "documents.parquet") for part in parts]
        self.db.execute("CREATE OR REPLACE TABLE sources (name VARCHAR, rank INT)")
        for rank, source in enumerate(self.params.sources):
            self.db.execute("INSERT INTO sources VALUES (?, ?)", [source.name, rank])
        self.db.from_parquet(files).create_view("parts")
        self.db.execute(load_sql("documents"))
        self._constants("cleaning", self.params.cleaning.model_dump())
        self.db.execute(load_sql("quality_reasons"))
        self.db.execute(load_sql("exact_duplicates"))
        if not self.params.dedup.exact:
            self.db.execute("DELETE FROM exact_duplicates")

    def _constants(self, table: str, values: dict[str, float]) -> None:
        columns = ", ".join(f"{float(value)!r}::DOUBLE AS {name}" for name, value in values.items())
        self.db.execute(f"CREATE OR REPLACE TABLE {table} AS SELECT {columns}")

    def find_near_duplicates(self) -> None:
        """Fill `near_duplicates (id, survivor, jaccard)`."""
        rows = self._near_rows() if self.params.dedup.near else []
        schema = pa.schema(
            [("id", pa.string()), ("survivor", pa.string()), ("jaccard", pa.float64())]
        )
        self._table("near_duplicates", pa.Table.from_pylist(rows, schema))

    def _near_rows(self) -> list[dict[str, Any]]:
        found = self.db.sql(load_sql("near_duplicate_candidates")).to_arrow_table()
        if not found.num_rows:
            return []
        ids = found.column("id").to_pylist()
        flat = found.column("bands").combine_chunks().flatten().to_numpy(zero_copy_only=False)
        keys = flat.astype(np.uint64).reshape(len(ids), -1)
        texts = self._texts([ids[row] for row in crowded_bands(keys)])
        hasher, size = WordHasher(), self.params.dedup.shingle_words

        @lru_cache(maxsize=100_000)
        def shingles(row: int) -> Any:
            return hasher.ngram_set(words(texts[ids[row]]), size)

        found_pairs = near_duplicates(keys, shingles, self.params.dedup.jaccard)
        return [
            {"id": ids[row], "survivor": ids[other], "jaccard": round(similarity, 6)}
            for row, (other, similarity) in sorted(found_pairs.items())
        ]

    def _texts(self, ids: list[str]) -> dict[str, str]:
        self.db.register("wanted", pa.table({"id": pa.array(ids, pa.string())}))
        rows = self.db.execute(
            "SELECT id, text FROM documents SEMI JOIN wanted USING (id)"
        ).fetchall()
        self.db.unregister("wanted")
        return dict(rows)

    def _table(self, name: str, table: pa.Table) -> None:
        self.db.register("new_rows", table)
        self.db.execute(f"CREATE OR REPLACE TABLE {name} AS SELECT * FROM new_rows")
        self.db.unregister("new_rows")

    def heldout_texts(self) -> Iterator[str]:
        """The held-out texts that are kept, in a fixed order."""
        yield from (text for (text,) in stream(self.db, load_sql("heldout_texts")))

    def judge_contamination(self, shares: list[Path]) -> None:
        """Read the workers' shares, and close the list of reasons that perplexity does not touch."""
        files = [str(path / "shares.parquet") for path in shares]
        self.db.from_parquet(files).create_view("all_shares")
        self.db.execute(
            "CREATE OR REPLACE TABLE contamination AS SELECT DISTINCT base, share FROM all_shares"
        )
        self._constants("settings", {"max_contamination": self.params.decontamination.max_share})
        self.db.execute(load_sql("earlier_reasons"))

    def score_perplexity(self, key: str) -> None:
        """Fill `kn_scores`: from the work folder if this very scoring was finished before."""
        if not self.params.perplexity.enabled:
            self.db.execute(load_sql("no_perplexity"))
            return
        model = self.params.perplexity
        described = [key, model.order, model.min_count, *map(load_sql, KN_FILES)]
        folder = once(self.work, f"perplexity-{sha256_of(described)[:32]}", self._score_into)
        self.db.execute(
            "CREATE OR REPLACE TABLE kn_scores AS SELECT * FROM read_parquet(?)",
            [str(folder / "scores.parquet")],
        )
        self.perplexity = json.loads((folder / "figures.json").read_text())

    def _score_into(self, folder: Path) -> None:
        model = KneserNey(self.db, self.params.perplexity.order, self.params.perplexity.min_count)
        reference = self._clean_reference("kn_reference", "reference")
        model.train()
        clean = self._clean_reference("kn_check", "check")[: selfcheck.MOST_TEXTS]
        replace_texts(self.db, "kn_noise", selfcheck.noise(clean))
        self.db.execute(load_sql("texts_to_score"))
        model.score()
        scores = dict(self.db.execute(load_sql("self_check_scores")).fetchall())
        figures = {
            "model": model.figures(),
            "reference_documents": len(reference),
            "self_check": selfcheck.check(scores, [key for key, _ in clean]),
        }
        (folder / "figures.json").write_text(json.dumps(figures, sort_keys=True))
        self.db.execute("DELETE FROM kn_scores WHERE id IN (SELECT id FROM kn_noise)")
        self._write("SELECT * FROM kn_scores ORDER BY id", folder / "scores.parquet")

    def _clean_reference(self, table: str, split: str) -> list[tuple[str, str]]:
        rows = self.db.execute(load_sql("clean_reference"), {"split": split}).fetchall()
        replace_texts(self.db, table, rows)
        return rows

    def _write(self, query: str, path: Path) -> None:
        self.db.execute(f"COPY ({query}) TO {_quoted(path)} (FORMAT parquet, COMPRESSION zstd)")

    def decide(self) -> None:
        """Fill `catalogue`: scores, reasons, first reason, kept or not."""
        columns = ("min_percentile", "max_percentile", "min_perplexity", "max_perplexity")
        schema = pa.schema(
            [("source", pa.string()), ("percentile_of", pa.string())]
            + [(column, pa.float64()) for column in columns]
        )
        default = self.params.perplexity.limits
        rows = [
            _limits_row(source.name, source.perplexity or default)
            for source in self.params.sources
            if source.role == "corpus"
        ]
        self._table("limits", pa.Table.from_pylist(rows, schema))
        self.db.execute(load_sql("perplexity_thresholds"))
        self.db.execute(load_sql("catalogue"))
        for column, kind in (("shard", "VARCHAR"), ("first_token", "BIGINT"), ("tokens", "BIGINT")):
            self.db.execute(f"ALTER TABLE catalogue ADD COLUMN {column} {kind}")

    def write_catalogue(self, path: Path) -> None:
        """The catalogue in the order of ids, with the beginning of each text."""
        self._write(
            "SELECT * EXCLUDE (text), left(text, 200) AS excerpt FROM catalogue ORDER BY id", path
        )


def _limits_row(source: str, limits: PerplexityLimits) -> dict[str, Any]:
    return {"source": source, **limits.model_dump()}


def batches(
    database: duckdb.DuckDBPyConnection, query: str, values: dict[str, Any] | None = None
) -> Iterator[list[tuple[Any, ...]]]:
    """The rows of a query in batches, over a cursor of its own."""
    cursor = database.cursor().execute(query, values)
    while rows := cursor.fetchmany(2048):
        yield rows


def stream(
    database: duckdb.DuckDBPyConnection, query: str, values: dict[str, Any] | None = None
) -> Iterator[tuple[Any, ...]]:
    """The rows of a query one by one, over a cursor of its own."""
    for rows in batches(database, query, values):
        yield from rows
