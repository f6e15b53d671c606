"""A part's rows: what they are a function of, and on which side of a split they come."""

import hashlib
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from trainwright.stages.corpus.params import CorpusParams
from trainwright.stages.corpus.parts import PartRules, write_part
from trainwright.stages.corpus.python_docs import SourceFile
from trainwright.stages.corpus.sources import Unit, resolve


def text(number: int) -> str:
    return "\n\n".join(f"Paragraph {i} of text {number} is here." for i in range(4))


@pytest.mark.parametrize("role", ["corpus", "reference"])
def test_paragraphs_of_one_text_stay_on_one_side_of_the_split(tmp_path: Path, role: str) -> None:
    data = tmp_path / "a.jsonl"
    data.write_text("".join(json.dumps({"text": text(n)}) + "\n" for n in range(100)))
    split = {"corpus": {"heldout_share": 0.3}, "reference": {}}[role]
    source = {"name": "a", "kind": "files", "paths": [str(data)], "unit": "paragraph"}
    other = {"name": "b", "kind": "files", "paths": [str(data)], "heldout_share": 0.5}
    params = CorpusParams.model_validate(
        {
            "sources": [{**source, "role": role, **split}, other],
            "perplexity": {"enabled": role == "reference", "check_share": 0.3},
        }
    )
    unit = resolve(params).units[0]
    folder = tmp_path / "part"
    folder.mkdir()
    write_part(unit, PartRules.of(params), folder)
    rows = pq.read_table(folder / "documents.parquet").to_pylist()
    assert len(rows) == 400
    sides: dict[str, set[str]] = {}
    for row in rows:
        sides.setdefault(row["text"].split()[4], set()).add(row["split"])
    assert {len(found) for found in sides.values()} == {1}
    shares = [found.pop() for found in sides.values()]
    assert (
        {"corpus": 15, "reference": 15}[role]
        < shares.count({"corpus": "heldout", "reference": "check"}[role])
        < 45
    )


def test_a_docstring_that_is_no_unicode_text_is_set_aside_and_counted(tmp_path: Path) -> None:
    module = tmp_path / "m.py"
    module.write_text('def f():\n    "Half a \\ud800 character."\n\ndef g():\n    "A whole one."\n')
    params = CorpusParams.model_validate(
        {
            "sources": [
                {"name": "a", "kind": "python-docs", "packages": ["p"]},
                {"name": "b", "kind": "python-docs", "packages": ["q"], "role": "heldout"},
            ],
            "perplexity": {"enabled": False},
        }
    )
    digest = hashlib.sha256(module.read_bytes()).hexdigest()
    file = SourceFile("p", "m.py", str(module), digest)
    unit = Unit(params.sources[0], "p", "MIT", digest, modules=(file,))
    folder = tmp_path / "part"
    folder.mkdir()
    write_part(unit, PartRules.of(params), folder)
    rows = pq.read_table(folder / "documents.parquet").to_pylist()
    assert [row["text"] for row in rows] == ["A whole one."]
    report = json.loads((folder / "report.json").read_text())
    assert (report["records"], report["bad"]) == (2, {"a lone surrogate": 1})
    assert report["positions"][0]["where"] == "p: m.py"
