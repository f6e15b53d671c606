"""What a preference can be guessed from without a model: a reward model must beat both."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence

from trainwright.stages.instruct.pairs import Preference

_WORD = re.compile(r"[^\W_]+")
Scorer = Callable[[str, str], float]


def words(text: str) -> set[str]:
    """The lower-case words of a text; underscores part words, so that identifiers count by part."""
    return {word.lower() for word in _WORD.findall(text)}


def overlap(prompt: str, answer: str) -> float:
    """The part of the answer's words that the prompt has too."""
    said = words(answer)
    return len(said & words(prompt)) / len(said) if said else 0.0


def length(prompt: str, answer: str) -> float:
    """The answer's length, in characters."""
    return float(len(answer))


def outcomes(rows: Sequence[Preference], scorer: Scorer) -> list[float]:
    """Per pair: 1 if the better answer scores higher, 0 if lower, 1/2 if they tie."""
    return [
        outcome(scorer(row.prompt, row.chosen), scorer(row.prompt, row.rejected)) for row in rows
    ]


def outcome(chosen: float, rejected: float) -> float:
    """1, 0, or 1/2 for a tie."""
    return 0.5 if chosen == rejected else float(chosen > rejected)


def by_kind(rows: Sequence[Preference], right: Sequence[float]) -> dict[str, float]:
    """Accuracy for each kind, in the kinds' alphabetical order."""
    groups: dict[str, list[float]] = defaultdict(list)
    for row, value in zip(rows, right, strict=True):
        groups[row.kind].append(value)
    return {kind: sum(groups[kind]) / len(groups[kind]) for kind in sorted(groups)}
