"""An interpolated Kneser-Ney language model over words, trained and asked in DuckDB."""

from __future__ import annotations

from collections.abc import Iterable

import duckdb
import pyarrow as pa

from trainwright.sql import load as load_sql
from trainwright.stages.contract import DataError

MOST_WORDS = 2**20 - 3
"""Words a packed trigram has room for."""


_PART_CHARS = 2_000_000
"""Characters scored in one statement."""


class KneserNey:
    """The tables `kn_*` of a DuckDB connection. Probabilities are of words, the end of a text one of them."""

    def __init__(self, database: duckdb.DuckDBPyConnection, order: int, min_count: int) -> None:
        self._db, self._order = database, order
        self._db.execute("CREATE OR REPLACE TABLE kn_settings (model_order INT, min_count INT)")
        self._db.execute("INSERT INTO kn_settings VALUES (?, ?)", [order, min_count])

    def train(self) -> None:
        """Train on the table or view `kn_reference (id, text)`."""
        self._db.execute("CREATE TABLE IF NOT EXISTS kn_vocabulary (word VARCHAR, w BIGINT)")
        for name in ("word_ngrams", "word_vocabulary", "ngram_counts", "kneser_ney"):
            self._db.execute(load_sql(name))
            if name == "word_vocabulary":
                self._check_size()

    def _check_size(self) -> None:
        size = self._one("SELECT count(*) FROM kn_vocabulary")
        if size == 0:
            raise DataError(
                "the reference of the perplexity filter has no word as often as "
                "perplexity.min_count: give it more clean text (a source of the role reference)"
            )
        if size > MOST_WORDS:
            raise DataError(
                f"the reference of the perplexity filter has {size} words, {MOST_WORDS} at most are "
                "possible: raise perplexity.min_count"
            )

    def score(self) -> None:
        """Fill `kn_scores (id, lm_words, nll, perplexity, length_bucket)` for `kn_texts (id, text)`.

        `nll` is in nats, summed over a text; perplexity is exp(nll / lm_words). Texts are scored a part
        at a time: the joins of all words at once would stand in memory together.
        """
        self._db.execute(
            "CREATE OR REPLACE TABLE kn_scores (id VARCHAR, lm_words BIGINT, nll DOUBLE, "
            "perplexity DOUBLE, length_bucket INTEGER)"
        )
        parts = 1 + self._one("SELECT coalesce(sum(length(text)), 0) FROM kn_texts") // _PART_CHARS
        for part in range(parts):
            self._db.execute(
                "CREATE OR REPLACE TEMP TABLE kn_texts_part AS SELECT id, text FROM kn_texts "
                f"WHERE hash(id) % {parts} = {part}"
            )
            self._db.execute(load_sql("perplexity_scores"))
        self._db.execute("DROP TABLE kn_texts_part")

    def figures(self) -> dict[str, float]:
        """Size of the model: order, words, n-grams by order."""
        counts = self._db.execute(
            "SELECT n, count(*) FROM kn_counts GROUP BY n ORDER BY n"
        ).fetchall()
        known = {"order": self._order, "words": self._one("SELECT count(*) FROM kn_vocabulary")}
        return {**known, **{f"{n}-grams": count for n, count in counts}}

    def _one(self, query: str) -> int:
        ((value,),) = self._db.execute(query).fetchall()
        return int(value)


def replace_texts(
    database: duckdb.DuckDBPyConnection, table: str, rows: Iterable[tuple[str, str]]
) -> None:
    """Make the table (id, text) of these rows."""
    pairs = list(rows)
    columns = {
        "id": pa.array([i for i, _ in pairs], pa.string()),
        "text": pa.array([t for _, t in pairs], pa.string()),
    }
    database.register("new_texts", pa.table(columns))
    database.execute(f"CREATE OR REPLACE TABLE {table} AS SELECT id, text FROM new_texts")
    database.unregister("new_texts")
