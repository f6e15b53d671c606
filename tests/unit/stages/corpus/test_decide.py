"""The filter's cuts are ranks of the right distribution, and value limits and overrides hold."""

from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from trainwright.sql import load
from trainwright.stages.corpus.decide import open_database
from trainwright.stages.corpus.params import PerplexityLimits

TRAIN = [float(p) for p in range(101, 301)]
CHECK = [float(p) for p in range(51, 151)]


def thresholds(limits: PerplexityLimits, bucket: int = 5) -> tuple[float | None, float | None]:
    """The cuts for 200 documents of perplexity 101 to 300, and 100 of the reference, 51 to 150."""
    database = duckdb.connect()
    rows = [("web", "train", p) for p in TRAIN] + [("clean", "check", p) for p in CHECK]
    rows += [("web", "train", 1e9), ("web", "heldout", 1e9)]
    documents = [
        {"id": str(i), "source": source, "split": split}
        for i, (source, split, _) in enumerate(rows)
    ]
    dirty = str(len(TRAIN) + len(CHECK))
    reasons = [
        {"id": d["id"], "reasons": ["markup"] if d["id"] == dirty else []} for d in documents
    ]
    scores = [
        {"id": d["id"], "length_bucket": 5, "perplexity": row[2]}
        for d, row in zip(documents, rows, strict=True)
    ]
    scores.append({"id": "other", "length_bucket": 9, "perplexity": 1.0})
    database.register("documents", pa.Table.from_pylist(documents))
    reason_type = pa.schema([("id", pa.string()), ("reasons", pa.list_(pa.string()))])
    database.register("earlier_reasons", pa.Table.from_pylist(reasons, reason_type))
    database.register("kn_scores", pa.Table.from_pylist(scores))
    types = {name: pa.float64() for name in PerplexityLimits.model_fields}
    schema = pa.schema({"source": pa.string(), **types, "percentile_of": pa.string()})
    row = {"source": "web", **limits.model_dump()}
    database.register("limits", pa.Table.from_pylist([row], schema))
    database.execute(load("perplexity_thresholds"))
    found = database.execute(
        "SELECT low, high FROM thresholds WHERE length_bucket = ?", [bucket]
    ).fetchone()
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("limits", "dropped_low", "dropped_high"),
    [
        ({"min_percentile": 5, "max_percentile": 90}, 10, 20),
        ({"min_percentile": None, "max_percentile": 100}, 0, 0),
        ({"min_percentile": 0, "max_percentile": None}, 0, 0),
        ({"min_percentile": 0.5, "max_percentile": 99.5}, 1, 1),
        # The reference's 90th percentile is 140: all above that is dropped, four fifths of the source.
        ({"min_percentile": None, "max_percentile": 90, "percentile_of": "reference"}, 0, 160),
        ({"min_percentile": None, "max_percentile": None, "max_perplexity": 250}, 0, 50),
        ({"min_percentile": None, "max_percentile": None, "min_perplexity": 111}, 10, 0),
        (
            {
                "min_percentile": 5,
                "max_percentile": 90,
                "min_perplexity": 150,
                "max_perplexity": 200,
            },
            49,
            100,
        ),
    ],
)
def test_cuts_drop_the_share_they_are_asked_to(
    limits: dict, dropped_low: int, dropped_high: int
) -> None:
    low, high = thresholds(PerplexityLimits(**limits))
    assert (sum(p < low for p in TRAIN) if low is not None else 0) == dropped_low
    assert (sum(p > high for p in TRAIN) if high is not None else 0) == dropped_high


def test_a_length_without_documents_has_no_percentile_but_keeps_value_limits() -> None:
    assert thresholds(PerplexityLimits(), bucket=9) == (None, None)
    limits = PerplexityLimits(min_perplexity=2, max_perplexity=9)
    assert thresholds(limits, bucket=9) == (2, 9)


def test_the_database_is_new_bounded_and_below_the_work_folder(tmp_path: Path) -> None:
    first = open_database(tmp_path, 1, 200)
    first.execute("CREATE TABLE old (a INT)")
    first.close()
    database = open_database(tmp_path, 3, 256)
    assert database.execute("SELECT count(*) FROM duckdb_tables()").fetchone() == (0,)
    names = ("threads", "memory_limit", "temp_directory")
    settings = [database.execute(f"SELECT current_setting('{n}')").fetchone() for n in names]
    assert settings[0] == (3,) and settings[1] == ("244.1 MiB",)
    assert str(tmp_path) in settings[2][0]  # type: ignore[index]
