"""Scores of a text's quality: pure functions of the text; what to drop is decided elsewhere."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise

from trainwright.stages.corpus.text import unsegmented_characters

STOP_WORDS = frozenset(
    (
        "a", "an", "and", "are", "as", "at", "be", "by", "can", "for",
        "from", "has", "have", "if", "in", "is", "it", "may", "must", "not",
        "of", "on", "or", "should", "that", "the", "this", "to", "use", "used",
        "when", "which", "will", "with",
    )
)  # fmt: skip
"""English function words; a text in sentences has several, a table or a listing few."""

# A path or a dotted name is looked for where a run of its characters begins, and nothing of the run is
# given back: else a run of n characters (base64, a sequence of genes) would take n * n steps.
_MARKUP = re.compile(
    r">>>[^\n]*|``[^`\n]*``|`[^`\n]*`|:[a-z:]{1,40}:`|<[^<>\n]{1,80}>|\.\. [a-z:-]+::|\{[^{}\n]*\}"
    r"|\$[^$\n]+\$|\\[a-zA-Z]+|[=\-~^*+_#]{4,}|\b\w++\([^()\n]*\)"
    r"|(?<![\w.])[\w.]*+[/\\][\w./\\]+|(?<!\w)\w++(?:\.\w++){2,}"
)
_BULLET = re.compile(r"\s*(?:[-*+•]|\d+[.)])\s")
_BROKEN = re.compile("[\ufffd\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|Ã[\x80-\xbf]|â€|Â[\xa0-\xbf]")
_EDGES = "`'\"“”‘’().,;:!?*[]{}<>-–—"

SCORES = (
    "chars", "words", "word_length", "alphabetic_words", "symbol_share", "digit_share",
    "markup_share", "bullet_lines", "stop_words", "repetition", "top_bigram", "broken_share",
    "unsegmented_share",
)  # fmt: skip
"""Names of the scores, in the order of the catalogue's columns."""


def score(text: str, tokens: list[str]) -> dict[str, float]:
    """All quality scores of a text and its words. Shares are 0 to 1; `word_length` in characters."""
    size = max(1, len(text))
    spaced = text.split()
    stripped = [word.strip(_EDGES) for word in spaced]
    letters = sum(map(str.isalpha, stripped))
    lines = [line for line in text.split("\n") if line.strip()]
    visible = max(1, sum(map(len, spaced)))
    alnum = sum(map(str.isalnum, text))
    return {
        "chars": float(len(text)),
        "words": float(len(tokens)),
        "word_length": sum(map(len, stripped)) / max(1, len(stripped)),
        "alphabetic_words": letters / max(1, len(stripped)),
        "symbol_share": (visible - alnum) / visible,
        "digit_share": sum(map(str.isdigit, text)) / visible,
        "markup_share": sum(map(len, _MARKUP.findall(text))) / size,
        "bullet_lines": sum(bool(_BULLET.match(line)) for line in lines) / max(1, len(lines)),
        "stop_words": float(len(STOP_WORDS.intersection(tokens))),
        "repetition": repetition(tokens),
        "top_bigram": top_bigram(tokens),
        "broken_share": sum(map(len, _BROKEN.findall(text))) / size,
        "unsegmented_share": unsegmented_characters(text) / size,
    }


def repetition(tokens: list[str], size: int = 4) -> float:
    """Share of words inside a `size`-gram that stood before in the text (Rae et al. 2021, A.1.1)."""
    seen: set[tuple[str, ...]] = set()
    covered_to = repeated = 0
    for start, gram in enumerate(zip(*(tokens[i:] for i in range(size)), strict=False)):
        if gram in seen:
            repeated += start + size - max(start, covered_to)
            covered_to = start + size
        seen.add(gram)
    return repeated / max(1, len(tokens))


def top_bigram(tokens: list[str]) -> float:
    """Share of words in the commonest pair of words, if it occurs more than once."""
    pairs = Counter(pairwise(tokens))
    most = max(pairs.values(), default=0)
    return min(1.0, 2 * most / len(tokens)) if most > 1 else 0.0
