"""What the report shows of a corpus: tables, histogram, self-check, examples, licences, warnings."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb

from trainwright.sql import load as load_sql
from trainwright.stages.contract import DataError
from trainwright.stages.corpus.params import CorpusParams

NOT_HUMAN_FEEDBACK = (
    "Instruction and preference pairs are made from signatures and first sentences of documentation. "
    "They are not human feedback: a rejected answer is another function's answer or a damaged true one."
)
TEXT_ORIGIN = (
    "Text was read from packages and files on this machine; each keeps the licence stated for it."
)


@dataclass
class BadRecords:
    """Records that could not be read, by source and reason."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    records: Counter[str] = field(default_factory=Counter)
    shown: list[dict[str, Any]] = field(default_factory=list)

    def add(self, source: str, part: Path) -> int:
        """Read a part's report; returns its number of documents."""
        report = json.loads((part / "report.json").read_text())
        self.counts.setdefault(source, Counter()).update(report["bad"])
        self.records[source] += report["records"]
        room = 20 - len(self.shown)
        self.shown += [{"source": source, **where} for where in report["positions"][:room]]
        return int(report["documents"])

    def refuse_too_many(self, params: CorpusParams) -> None:
        """`DataError` if a source has more unreadable records than it may."""
        for source in params.sources:
            bad = self.counts.get(source.name, Counter())
            share = bad.total() / max(1, self.records[source.name])
            if share > source.max_bad_share:
                reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(bad.items()))
                raise DataError(
                    f"corpus source {source.name!r}: {share:.1%} of its records cannot be read "
                    f"({reasons}), {source.max_bad_share:.1%} are allowed; mend the source or raise "
                    "max_bad_share"
                )

    def as_json(self) -> dict[str, dict[str, int]]:
        """Counts of sources that have any."""
        return {s: dict(sorted(c.items())) for s, c in sorted(self.counts.items()) if c}


def rows(db: duckdb.DuckDBPyConnection, name: str) -> list[dict[str, Any]]:
    """The rows of `sql/<name>.sql`, as dictionaries."""
    result = db.execute(load_sql(name))
    columns = [column[0] for column in result.description or []]
    return [dict(zip(columns, row, strict=True)) for row in result.fetchall()]


def by_source(table: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Documents in and kept by source, reference sources left out."""
    totals: dict[str, dict[str, int]] = {}
    for row in table:
        if row["split"] in ("train", "heldout"):
            into = totals.setdefault(row["source"], {"documents_in": 0, "documents_kept": 0})
            for name in into:
                into[name] += row[name]
    return totals


def keep_rates(table: list[dict[str, Any]]) -> dict[str, float]:
    """Share of documents kept, by source."""
    return {
        source: round(counts["documents_kept"] / counts["documents_in"], 6)
        for source, counts in sorted(by_source(table).items())
    }


def warnings(
    params: CorpusParams, table: list[dict[str, Any]], perplexity: dict[str, Any]
) -> list[str]:
    """What a person should look at: sources deleted whole, a filter that prefers noise."""
    found = list(perplexity.get("self_check", {}).get("warnings", []))
    totals = by_source(table)
    for source in params.sources:
        if source.role == "reference":
            continue
        if not totals.get(source.name, {}).get("documents_kept"):
            found.append(f"source {source.name!r}: not one document was kept")
    for row in table:
        if row["part"] and row["split"] == "train" and not row["documents_kept"]:
            found.append(f"package {row['part']!r}: not one document was kept")
    return found


def histogram(db: duckdb.DuckDBPyConnection) -> dict[str, Any]:
    """Perplexities of otherwise clean training documents, and the thresholds by source and length."""
    table = rows(db, "perplexity_histogram")
    found = {row["bin"]: row for row in table}
    bins = range(min(found, default=0), max(found, default=-1) + 1)
    return {
        "edges": [round(2 ** (b / 4), 3) for b in (*bins, bins.stop)] if table else [],
        **{name: [found.get(b, {}).get(name, 0) for b in bins] for name in ("kept", "low", "high")},
        "thresholds": rows(db, "thresholds_used"),
    }
