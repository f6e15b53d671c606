"""Whether two tokenizers give a text the same tokens; reads their files alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trainwright.stages.contract import DataError

_BEARING = ("normalizer", "pre_tokenizer")


def same_vocabulary(one: Path, other: Path) -> bool:
    """Whether two tokenizer.json files give a text the same tokens.

    Compared are what makes tokens of text (normalizer, pre-tokenizer, model, added tokens); how a
    model's merges are spelled, and what is put around a text, is not.
    """
    a, b = read_tokenizer(one), read_tokenizer(other)
    return (
        all(a.get(key) == b.get(key) for key in _BEARING)
        and _model(a) == _model(b)
        and _added(a) == _added(b)
    )


def read_tokenizer(path: Path) -> dict[str, Any]:
    """A tokenizer.json as values; `DataError` if it is none."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path.parent.name}: there is no {path.name}") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path.parent.name}/{path.name} cannot be read: {error}") from None
    if not isinstance(values, dict) or not isinstance(values.get("model"), dict):
        raise DataError(f"{path.parent.name}/{path.name} is not a tokenizer: it has no model")
    return values


def _model(tokenizer: dict[str, Any]) -> dict[str, Any]:
    model = dict(tokenizer["model"])
    # Written as "a b" by older versions of tokenizers, as ["a", "b"] by newer ones.
    model["merges"] = [
        merge.split(" ") if isinstance(merge, str) else list(merge)
        for merge in model.get("merges") or []
    ]
    return model


def _added(tokenizer: dict[str, Any]) -> set[tuple[int, str]]:
    return {(entry["id"], entry["content"]) for entry in tokenizer.get("added_tokens") or []}
