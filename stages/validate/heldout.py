"""Held-out text: the positions a model predicts, their bytes, and n-gram models on the same ones."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trainwright.stages.contract import DataError
from trainwright.stages.model.tokens import Split
from trainwright.stages.model.vocabulary import read_tokenizer
from trainwright.stages.validate.ngrams import KneserNeyBigram, Unigram, count

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Positions:
    """The predicted tokens, and the token before each; int64 [n]."""

    previous: Ints
    targets: Ints


def positions(split: Split, *, length: int, limit: int) -> Positions:
    """What `likelihood` predicts with the same length and limit, in its order."""
    windows = [window.numpy() for window in split.windows(length, limit, rows=256)]
    found = Positions(
        previous=np.concatenate([window[:, :-1].ravel() for window in windows]),
        targets=np.concatenate([window[:, 1:].ravel() for window in windows]),
    )
    highest = max(int(found.previous.max()), int(found.targets.max()))
    if highest >= split.vocabulary:
        raise DataError(
            f"the held-out split has the token {highest}, its vocabulary ends at "
            f"{split.vocabulary - 1}: build the corpus again"
        )
    return found


def baseline_losses(train: Split, where: Positions) -> dict[str, float]:
    """Mean NLL (nats a token) of a unigram and a bigram model of the train split."""
    counts = count(train, train.vocabulary)
    bigram = KneserNeyBigram(counts)
    return {
        "unigram": -float(Unigram(counts).log_probability(where.targets).mean()),
        "bigram": -float(bigram.log_probability(where.previous, where.targets).mean()),
    }


def text_bytes(split: Split, targets: Ints, tokenizer: Path) -> float:
    """UTF-8 bytes of text that the predicted tokens stand for.

    The split's bytes (corpus.json) times the share of them that the targets spell. With a byte-level
    tokenizer each token's bytes are known, so the share is exact; with another each token of text
    counts the same.
    """
    if split.bytes <= 0:
        raise DataError(
            "corpus.json does not say how many bytes its held-out text has: build the corpus again"
        )
    spelled = token_bytes(read_tokenizer(tokenizer / "tokenizer.json"), split.vocabulary)
    everything = sum(
        int(spelled[split.read(start, min(start + _READ, len(split)))].sum())
        for start in range(0, len(split), _READ)
    )
    if not everything:
        raise DataError("the held-out split has no text, only special tokens")
    return float(split.bytes * int(spelled[targets].sum()) / everything)


_READ = 1 << 22


def token_bytes(tokenizer: dict[str, Any], vocabulary: int) -> Ints:
    """Bytes that each token spells, [vocabulary]; special tokens spell none.

    A byte-level token has a character a byte. Of other tokenizers each token counts 1.
    """
    byte_level = "ByteLevel" in _kinds(tokenizer.get("decoder"))
    sizes = np.ones(vocabulary, np.int64)
    known = tokenizer["model"].get("vocab")
    if byte_level and isinstance(known, dict):
        for token, number in known.items():
            if number < vocabulary:
                sizes[number] = len(token)
    else:
        byte_level = False
    for entry in tokenizer.get("added_tokens") or []:
        if entry["id"] < vocabulary and (entry["special"] or byte_level):
            sizes[entry["id"]] = 0 if entry["special"] else len(entry["content"].encode())
    return sizes


def _kinds(decoder: dict[str, Any] | None) -> set[str]:
    if decoder is None:
        return set()
    return {decoder["type"]} | {
        kind for inner in decoder.get("decoders", []) for kind in _kinds(inner)
    }


def bits_per_byte(nats: float, size: float) -> float:
    """Nats over `size` bytes of text as bits a byte: comparable between tokenizers."""
    return nats / math.log(2.0) / size
