"""Does the perplexity filter prefer clean text to noise? Asked of reference text it was not trained on."""

from __future__ import annotations

import base64
import hashlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

KINDS = {
    "shuffled": "the same words in another order",
    "base64": "the same text in base64",
    "code": "pieces of program source, of the same length",
    "repeated": "the first words over and over to the same length",
}
HIGH_CUT = ("shuffled", "base64", "code")
"""Kinds that the high threshold is to catch; repeated text is for the low one and repetition rules."""

LEAST_AUC = 0.6
MOST_TEXTS = 400
FEWEST_TEXTS = 20


def noise(clean: list[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """For every (id, text) a noisy text of each kind, with the id `kind:id`."""
    code = (Path(__file__).parent / "code_noise.txt").read_text(encoding="utf-8")
    for key, text in clean:
        draw = random.Random(f"{key}")
        words = text.split()
        shuffled = words[:]
        draw.shuffle(shuffled)
        yield f"shuffled:{key}", " ".join(shuffled)
        yield f"base64:{key}", base64.b64encode(text.encode())[: len(text)].decode()
        start = int(hashlib.sha256(key.encode()).hexdigest(), 16) % max(1, len(code) - len(text))
        yield f"code:{key}", code[start : start + len(text)]
        head = words[: max(1, min(8, len(words) // 4))]
        yield f"repeated:{key}", " ".join((head * len(words))[: len(words)])


def auc(clean: list[float], noisy: list[float]) -> float:
    """Probability that a noisy text is more surprising than a clean one (ties count half).

    The area under the ROC curve, from ranks (Mann and Whitney 1947).
    """
    order = np.sort(np.asarray(clean))
    values = np.asarray(noisy)
    below = np.searchsorted(order, values, side="left")
    upto = np.searchsorted(order, values, side="right")
    return float(np.mean(below + upto) / (2 * len(order)))


def check(scores: dict[str, float], clean: list[str]) -> dict[str, Any]:
    """Figures by kind of noise, and warnings, from perplexities by id."""
    if len(clean) < FEWEST_TEXTS:
        return {
            "texts": len(clean),
            "auc": {},
            "warnings": [
                f"the perplexity filter is unchecked: only {len(clean)} clean reference texts were "
                f"kept apart ({FEWEST_TEXTS} needed); give it a larger reference"
            ],
        }
    base = [scores[key] for key in clean]
    areas = {
        kind: round(auc(base, [scores[f"{kind}:{key}"] for key in clean]), 4) for kind in KINDS
    }
    warnings = [
        f"the perplexity filter can hardly tell clean text from {kind} text "
        f"({KINDS[kind]}; AUC {areas[kind]:.2f}, {LEAST_AUC} expected): its reference is of the "
        "wrong kind"
        for kind in HIGH_CUT
        if areas[kind] < LEAST_AUC
    ]
    return {
        "texts": len(clean),
        "median_perplexity": round(float(np.median(base)), 2),
        "auc": areas,
        "warnings": warnings,
    }
