"""Instruction pairs and preferences as the corpus writes them: JSON lines."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from trainwright.stages.contract import DataError
from trainwright.stages.instruct.chat import ChatFormat, Rendered


class Instruction(BaseModel):
    """A question and the answer to learn."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    id: str
    prompt: str
    response: str


class Preference(BaseModel):
    """Two answers to a question, the better one first; `kind` says how the worse one was made."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    id: str
    prompt: str
    chosen: str
    rejected: str
    kind: str


Row = TypeVar("Row", Instruction, Preference)


def read_rows(path: Path, row: type[Row]) -> list[Row]:
    """The rows of a JSON lines file, in file order; `DataError` if there are none or one is broken."""
    if not path.is_file():
        raise DataError(f"the corpus has no file {path.parent.name}/{path.name}: build it again")
    with path.open(encoding="utf-8", newline="\n") as file:
        rows = [_parse(path, n, line, row) for n, line in enumerate(file, 1) if line.strip()]
    if not rows:
        raise DataError(
            f"{path.parent.name}/{path.name} is empty: there is nothing to learn from; "
            "give the corpus more sources"
        )
    return rows


def _parse(path: Path, number: int, line: str, row: type[Row]) -> Row:
    try:
        return row.model_validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "JSON"
        raise DataError(
            f"{path.parent.name}/{path.name}, line {number}: {where}: {first['msg']}"
        ) from None


def render(
    chat: ChatFormat, rows: Iterable[Instruction], longest: int
) -> tuple[list[Rendered], int]:
    """The pairs as chats of at most `longest` tokens, and how many were longer and so left out."""
    rendered = [chat.pair(row.prompt, row.response) for row in rows]
    kept = [chat for chat in rendered if len(chat.ids) <= longest]
    if not kept:
        shortest = min(len(chat.ids) for chat in rendered)
        raise DataError(
            f"no instruction pair fits into {longest} tokens (the shortest has {shortest}): "
            "raise row_tokens or shorten the pairs"
        )
    return kept, len(rendered) - len(kept)
