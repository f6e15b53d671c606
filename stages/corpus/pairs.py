"""Instruction and preference pairs made from documentation.

This is not human feedback: an answer is the documentation's own first sentences, and a worse answer
is a true one damaged in a stated way. What a reward model learns from it is to tell the documented
answer from those.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest

from trainwright.stages.corpus.paragraphs import paragraphs, sentences
from trainwright.stages.corpus.python_docs import Docstring
from trainwright.stages.corpus.text import content_id

TEMPLATES = (
    "What does the function `{signature}` do?",
    "Describe `{signature}` in a sentence or two.",
    "What is `{name}` for? Its signature is `{signature}`.",
    "Explain what calling `{signature}` does.",
)

KINDS = ("other", "shuffled", "repeated", "spliced")
"""How a rejected answer is made:

other: the answer about another function of the same package, of the nearest length;
shuffled: the words of the true answer in another order;
repeated: a phrase of the true answer, over and over to the same length;
spliced: the first half of the true answer and the second half of another one.
"""

_PROSE = re.compile(r"^[A-Z][^\n]*[.!?]$", re.DOTALL)
_MARKUP = re.compile(r"::|>>>|\|_|\.\. |\\|\{\{")


@dataclass(frozen=True)
class Instruction:
    """A question about a function, and the documentation's answer."""

    id: str
    prompt: str
    response: str
    source: str
    module: str


@dataclass(frozen=True)
class Preference:
    """A question, its true answer and a worse one of known kind."""

    id: str
    prompt: str
    chosen: str
    rejected: str
    kind: str
    source: str


@dataclass(frozen=True)
class Limits:
    """Bounds for answers and signatures, in characters."""

    shortest: int = 30
    longest: int = 240
    longest_signature: int = 120


def answer(text: str, limits: Limits) -> str | None:
    """The first one or two sentences of a docstring, whole; None if they are not plain prose."""
    blocks = paragraphs(text)
    if not blocks or "\n" in blocks[0]:
        return None
    found = sentences(blocks[0])
    first = found[0] if found else ""
    both = " ".join(found[:2])
    for candidate in (both, first):
        if limits.shortest <= len(candidate) <= limits.longest and _is_prose(candidate):
            return candidate
    return None


def _is_prose(text: str) -> bool:
    words = text.split()
    plain = sum(word.strip("`'\"().,;:!?*-").isalpha() for word in words)
    return bool(_PROSE.match(text)) and not _MARKUP.search(text) and plain >= 0.75 * len(words)


def is_question(docstring: Docstring, limits: Limits) -> bool:
    """Whether a docstring is that of a public function whose signature is short enough to ask about."""
    public = not any(part.startswith("_") for part in docstring.name.split("."))
    return public and 0 < len(docstring.signature) <= limits.longest_signature


@dataclass(frozen=True, order=True)
class Answer:
    """A function of a package and the first sentences of its documentation."""

    source: str
    module: str
    name: str
    signature: str
    answer: str


def instructions(answers: Iterable[Answer]) -> list[Instruction]:
    """Instruction pairs, each distinct answer once: that of the first (package, module, name).

    In the order of their ids, which are hashes: any first few are a sample of every package.
    """
    return sorted(_instructions(sorted(answers)), key=lambda pair: pair.id)


def _instructions(rows: Iterable[Answer]) -> Iterator[Instruction]:
    seen: set[str] = set()
    for row in rows:
        content = content_id(row.answer)
        if content in seen:
            continue
        seen.add(content)
        key = _key(row.source, row.name, row.answer)
        template = TEMPLATES[int(key[:8], 16) % len(TEMPLATES)]
        prompt = template.format(signature=row.signature, name=row.name)
        yield Instruction(key, prompt, row.answer, row.source, row.module)


def _key(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def preferences(pairs: Sequence[Instruction]) -> list[Preference]:
    """One preference a pair, the kinds in turn, and of each kind as many as of the rarest.

    A pair whose answer cannot be damaged in its kind gives none.
    """
    mates = _Mates(pairs)
    made: dict[str, list[Preference]] = {kind: [] for kind in KINDS}
    for index, pair in enumerate(sorted(pairs, key=lambda pair: pair.id)):
        kind = KINDS[index % len(KINDS)]
        rejected = reject(pair, kind, mates.nearest(pair))
        if rejected is not None and rejected != pair.response:
            key = _key(pair.id, kind)
            made[kind].append(
                Preference(key, pair.prompt, pair.response, rejected, kind, pair.source)
            )
    share = min(map(len, made.values()))
    return sorted((p for rows in made.values() for p in rows[:share]), key=lambda p: p.id)


class _Mates:
    """Answers about other functions of the same module, else of the same package."""

    def __init__(self, pairs: Sequence[Instruction]) -> None:
        self._by_module: dict[str, list[Instruction]] = {}
        self._by_source: dict[str, list[Instruction]] = {}
        for pair in pairs:
            self._by_module.setdefault(pair.module, []).append(pair)
            self._by_source.setdefault(pair.source, []).append(pair)

    def nearest(self, pair: Instruction, count: int = 4) -> list[str]:
        """The answers nearest in length; answers of one length would make 'longer wins' say much."""
        group = self._by_module[pair.module]
        if len(group) <= count:
            group = self._by_source[pair.source]
        length = len(pair.response)
        others = (p for p in group if p.response != pair.response)
        near = nsmallest(count, others, key=lambda p: (abs(len(p.response) - length), p.id))
        return [p.response for p in near]


def reject(pair: Instruction, kind: str, mates: Sequence[str]) -> str | None:
    """A worse answer of the given kind, whole and of nearly the true answer's length; or None."""
    draw = random.Random(_key(pair.id, kind))
    words = pair.response.split()
    if kind == "shuffled":
        return _shuffled(words, draw)
    if kind == "repeated":
        return _repeated(words, draw)
    if not mates:
        return None
    if kind == "other":
        return draw.choice(mates)
    spliced = (_spliced(words, mate.split()) for mate in draw.sample(mates, len(mates)))
    return next((text for text in spliced if text and text != pair.response), None)


def _shuffled(words: list[str], draw: random.Random) -> str | None:
    if len(set(words)) < 4:
        return None
    order = list(words)
    while order == words:
        draw.shuffle(order)
    return " ".join(order)


def _repeated(words: list[str], draw: random.Random) -> str | None:
    if len(words) < 4:
        return None
    size = draw.randint(2, min(5, len(words) // 2))
    start = draw.randrange(len(words) - size)
    phrase = words[start : start + size]
    return " ".join((phrase * (len(words) // size + 1))[: len(words)])


def _spliced(words: list[str], other: list[str]) -> str | None:
    head, tail = words[: len(words) // 2], other[len(other) // 2 :]
    return " ".join([*head, *tail]) if head and tail else None
