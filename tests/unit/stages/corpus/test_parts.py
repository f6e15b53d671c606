"""A part's rows: what they are a function of, and on which side of a split they come."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from trainwright.stages.corpus.params import CorpusParams
from trainwright.stages.corpus.parts import PartRules, write_part
from trainwright.stages.corpus.sources import resolve


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
