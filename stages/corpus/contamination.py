"""How much of a document stands in held-out text, by n-grams of words.

After a random split a fifth of held-out paragraphs of documentation share half of their 8-grams with
training text; a loss on those says little.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trainwright.stages.corpus.text import Hashes, WordHasher, words

SHARES = pa.schema([("base", pa.string()), ("share", pa.float64())])


class Contamination:
    """The n-grams of held-out texts, and what share of another text's n-grams is among them."""

    def __init__(self, size: int, grams: Hashes) -> None:
        self._size, self.grams = size, grams
        self._hasher = WordHasher()

    @classmethod
    def of(cls, texts: Iterable[str], size: int) -> Contamination:
        """Collect the n-grams of the held-out texts. Texts shorter than `size` words have none."""
        found = cls(size, np.array([], dtype=np.uint64))
        long = [tokens for tokens in map(words, texts) if len(tokens) >= size]
        found.grams = np.unique(found._hasher.ngrams(long, size)[0])
        return found

    def shares(self, texts: Sequence[str]) -> list[float]:
        """Of each text, the share of its n-grams that stand in held-out text (0 to 1)."""
        tokens = [words(text) for text in texts]
        if not tokens or not len(self.grams):
            return [0.0] * len(tokens)
        grams, starts = self._hasher.ngrams(tokens, self._size)
        at = np.minimum(np.searchsorted(self.grams, grams), len(self.grams) - 1)
        found = np.add.reduceat((self.grams[at] == grams).astype(np.int64), starts)
        counts = np.diff(np.append(starts, len(grams)))
        return [float(share) for share in found / counts]


def measure_part(part: Path, grams: Path, size: int, folder: Path) -> None:
    """Write shares.parquet for the training documents of a part."""
    checker = Contamination(size, np.load(grams))
    table = pq.ParquetFile(part / "documents.parquet")
    with pq.ParquetWriter(folder / "shares.parquet", SHARES) as writer:
        for batch in table.iter_batches(batch_size=2048, columns=["base", "split", "text"]):
            rows = batch.filter(pc.field("split") == "train")
            shares = checker.shares(rows.column("text").to_pylist())
            writer.write_batch(
                pa.record_batch([rows.column("base"), pa.array(shares, pa.float64())], SHARES)
            )
