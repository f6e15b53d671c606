"""Paragraphs of documentation text: what one document of a `python-docs` source is."""

from __future__ import annotations

import re

_BLANK = re.compile(r"\n[ \t]*\n")
_LISTLIKE = re.compile(r"\s*([-*+•|>#:.=~^]|\d+[.)]\s|@)")
_COLUMNS = re.compile(r"\S(  +|\t)\S")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`\"'(*])")


def paragraphs(text: str) -> list[str]:
    """The blocks between blank lines, without the indent their lines share.

    The lines of running text are joined by spaces; lines of lists, tables and code are left alone.
    """
    blocks = (_dedent(block) for block in _BLANK.split(text.expandtabs()))
    return [unwrap(block) for block in blocks if block.strip()]


def _dedent(block: str) -> str:
    lines = [line.rstrip() for line in block.splitlines() if line.strip()]
    indent = min((len(line) - len(line.lstrip()) for line in lines), default=0)
    return "\n".join(line[indent:] for line in lines)


def unwrap(block: str) -> str:
    """A block of running text as one line; any other block unchanged."""
    lines = block.split("\n")
    flowing = all(line[:1] != " " and not _LISTLIKE.match(line) for line in lines)
    if len(lines) < 2 or not flowing or any(_COLUMNS.search(line) for line in lines):
        return block
    return " ".join(lines)


def sentences(text: str) -> list[str]:
    """Sentences of a paragraph, split after `.`, `!` or `?` before what looks like a beginning."""
    return [part.strip() for part in _SENTENCE_END.split(text) if part.strip()]
