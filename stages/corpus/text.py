"""Keys of a text: what is hashed and compared. The stored text itself is never changed."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]
Offsets = npt.NDArray[np.int64]

_UNSEGMENTED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
)
"""Thai, Lao, Burmese, Khmer, kana and Han: scripts that put no space between words."""

_WORD = re.compile(rf"[{_UNSEGMENTED}]|[^\W_{_UNSEGMENTED}]+")
_FORMAT = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")
_UNSEGMENTED_CHARACTER = re.compile(f"[{_UNSEGMENTED}]")


def key_text(text: str) -> str:
    """NFKC without format characters (soft hyphen, zero width, direction) and outer space."""
    if text.isascii():
        return text.strip()
    return _FORMAT.sub("", unicodedata.normalize("NFKC", text)).strip()


def content_id(text: str) -> str:
    """The first 128 bits of the sha256 of `key_text`, in hex: equal for equal content."""
    return hashlib.sha256(key_text(text).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def words(text: str) -> list[str]:
    """Words in lower case, without punctuation; each character of an unsegmented script is one."""
    return _WORD.findall(key_text(text).casefold())


def unsegmented_characters(text: str) -> int:
    """Characters of scripts without spaces between words."""
    return 0 if text.isascii() else len(_UNSEGMENTED_CHARACTER.findall(text))


class WordHasher:
    """64-bit hashes of words, the same in every process; remembers those it has seen."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def __call__(self, tokens: Sequence[str]) -> Hashes:
        """The hash of each word."""
        seen = self._seen
        for token in set(tokens).difference(seen):
            digest = hashlib.blake2b(token.encode("utf-8", "surrogatepass"), digest_size=8)
            seen[token] = int.from_bytes(digest.digest(), "little")
        return np.fromiter(map(seen.__getitem__, tokens), dtype=np.uint64, count=len(tokens))

    def ngrams(self, texts: Sequence[Sequence[str]], size: int) -> tuple[Hashes, Offsets]:
        """All n-grams of texts given as words, one after the other, and where each text's begin.

        A text of fewer than `size` words is one n-gram, filled up with nothing.
        """
        lengths = np.fromiter((max(size, len(t)) for t in texts), dtype=np.int64, count=len(texts))
        padding = ("",) * size
        flat = self([w for t in texts for w in (*t, *padding[len(t) :])])
        counts = lengths - size + 1
        starts = np.cumsum(lengths) - lengths
        # A window that runs from one text into the next is not an n-gram.
        inside = np.zeros(len(flat) + 1, dtype=np.int8)
        inside[starts] += 1
        inside[starts + counts] -= 1
        valid = np.cumsum(inside)[: max(0, len(flat) - size + 1)] > 0
        return _windows(flat, size)[valid], np.cumsum(counts) - counts

    def ngram_set(self, text: Sequence[str], size: int) -> Hashes:
        """The distinct n-grams of one text given as words, sorted."""
        return np.unique(self.ngrams([text], size)[0])


def _windows(hashed: Hashes, size: int) -> Hashes:
    out = np.zeros(max(0, len(hashed) - size + 1), dtype=np.uint64)
    for offset in range(size):
        out = mix(out * np.uint64(0x9E3779B97F4A7C15) + hashed[offset : offset + len(out)])
    return out


def mix(values: Hashes) -> Hashes:
    """The finalizer of splitmix64 (Steele, Lea and Flood 2014): spreads bits over the whole word."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
