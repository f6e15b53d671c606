"""Contradictions are refused in a sentence; what does not bear on the output is no identity."""

import re

import pytest
from pydantic import ValidationError

from trainwright.stages.corpus.params import CorpusParams

TRAIN = {"name": "train", "kind": "files", "paths": ["a.jsonl"], "heldout_share": 0.1}
HELD = {"name": "held", "kind": "python-docs", "role": "heldout", "packages": ["click"]}
REFERENCE = {"name": "clean", "kind": "python-docs", "role": "reference", "packages": ["stdlib"]}


def build(**changes: object) -> CorpusParams:
    return CorpusParams.model_validate({"sources": [TRAIN, HELD, REFERENCE], **changes})


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"sources": [HELD, REFERENCE]}, "no source has the role corpus"),
        ({"sources": [TRAIN, HELD]}, "needs a reference apart"),
        ({"perplexity": {"enabled": False}}, "enabled is false"),
        ({"sources": [{**TRAIN, "heldout_share": 0}, REFERENCE]}, "nothing is held out"),
        ({"sources": [TRAIN, TRAIN, REFERENCE]}, "two sources have the name 'train'"),
        (
            {"sources": [TRAIN, HELD, {**REFERENCE, "packages": ["Click"]}]},
            "'Click' stands in the sources 'held' and 'clean'",
        ),
        ({"sources": [{**TRAIN, "packages": ["numpy"]}, REFERENCE]}, "takes paths, not packages"),
        ({"sources": [TRAIN, {**HELD, "packages": []}, REFERENCE]}, "needs packages"),
        (
            {"sources": [TRAIN, {**HELD, "heldout_share": 0.1}, REFERENCE]},
            "hold packages out whole",
        ),
        ({"dedup": {"num_hashes": 100, "bands": 16}}, "must be a multiple of bands"),
        ({"dedup": {"exact": False}}, "near deduplication needs exact"),
        ({"cleaning": {"min_chars": 100, "max_chars": 50}}, "min_chars must be below max_chars"),
        (
            {"perplexity": {"limits": {"min_percentile": 90, "max_percentile": 10}}},
            "min_percentile must be below max_percentile",
        ),
        (
            {"perplexity": {"limits": {"min_perplexity": 9, "max_perplexity": 9}}},
            "nothing would be kept",
        ),
        ({"sources": [{**TRAIN, "weigth": 2}, REFERENCE]}, "Extra inputs are not permitted"),
    ],
)
def test_a_contradiction_is_refused_in_a_sentence(changes: dict, sentence: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(sentence)):
        build(**changes)


def test_paths_workers_and_memory_are_not_identity() -> None:
    moved = [{**TRAIN, "paths": ["elsewhere/*.jsonl"]}, HELD, REFERENCE]
    other = build(sources=moved, workers=7, memory_mb=333)
    assert other.identity() == build().identity()


def test_a_threshold_is_identity() -> None:
    other = build(perplexity={"limits": {"max_percentile": 80}})
    assert other.identity() != build().identity()


def test_every_field_says_what_it_is() -> None:
    def missing(schema: dict) -> list[str]:
        models = [schema, *schema.get("$defs", {}).values()]
        return [
            f"{model['title']}.{name}"
            for model in models
            for name, field in model.get("properties", {}).items()
            if not field.get("description")
        ]

    assert missing(CorpusParams.model_json_schema()) == []
