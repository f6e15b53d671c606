"""The model in SQL against interpolated Kneser-Ney written out in Python, and against its own sums."""

import math
import random
import re
from collections import Counter, defaultdict

import duckdb
import pytest

from trainwright.stages.contract import DataError
from trainwright.stages.corpus.kneser_ney import KneserNey, replace_texts

BEGIN, END, UNKNOWN = "<begin>", "<end>", "<unknown>"


class Plain:
    """Interpolated Kneser-Ney from its definition, with dictionaries."""

    def __init__(self, texts: list[str], order: int, min_count: int) -> None:
        self.order = order
        split = [re.findall(r"[^\W_]+|\S", text.lower()) for text in texts]
        counts = Counter(word for words in split for word in words)
        self.known = {word for word, count in counts.items() if count >= min_count}
        self.vocabulary = [*sorted(self.known), END, UNKNOWN]
        raw: Counter[tuple[str, ...]] = Counter()
        for words in split:
            sequence = self.padded(words)
            raw.update(zip(*(sequence[i:] for i in range(order)), strict=False))
        self.counts = {order: raw}
        for n in range(order - 1, 0, -1):
            self.counts[n] = Counter(gram[1:] for gram in self.counts[n + 1])
        self.discounts = {n: self._discount(c) for n, c in self.counts.items()}
        self.total: dict[tuple[str, ...], int] = defaultdict(int)
        self.followers: dict[tuple[str, ...], int] = defaultdict(int)
        for grams in self.counts.values():
            for gram, count in grams.items():
                self.total[gram[:-1]] += count
                self.followers[gram[:-1]] += 1

    def padded(self, words: list[str]) -> list[str]:
        known = [word if word in self.known else UNKNOWN for word in words]
        return [BEGIN] * (self.order - 1) + known + [END]

    @staticmethod
    def _discount(counts: Counter) -> float:
        ones = sum(c == 1 for c in counts.values())
        twos = sum(c == 2 for c in counts.values())
        return ones / (ones + 2 * twos) if ones and twos else 0.5

    def probability(self, history: tuple[str, ...], word: str) -> float:
        n = len(history) + 1
        shorter = self.probability(history[1:], word) if history else 1 / len(self.vocabulary)
        total = self.total.get(history, 0)
        if not total:
            return shorter
        discount = self.discounts[n]
        seen = max(self.counts[n].get((*history, word), 0) - discount, 0) / total
        return seen + discount * self.followers[history] / total * shorter

    def nll(self, text: str) -> float:
        sequence = self.padded(re.findall(r"[^\W_]+|\S", text.lower()))
        width = self.order - 1
        return -sum(
            math.log(self.probability(tuple(sequence[i - width : i]), sequence[i]))
            for i in range(width, len(sequence))
        )


def toy(seed: int, texts: int = 60) -> list[str]:
    draw = random.Random(seed)
    nouns, verbs = ["cat", "dog", "list", "file", "key"], ["sees", "opens", "sorts", "is"]
    return [
        " ".join(
            f"the {draw.choice(nouns)} {draw.choice(verbs)} a {draw.choice(nouns)}"
            + draw.choice([".", ", and", " !"])
            for _ in range(draw.randint(1, 4))
        )
        for _ in range(texts)
    ]


def trained(reference: list[str], order: int, min_count: int = 1) -> tuple:
    database = duckdb.connect()
    replace_texts(database, "kn_reference", [(str(i), t) for i, t in enumerate(reference)])
    model = KneserNey(database, order, min_count)
    model.train()
    return database, model


def scores(database: duckdb.DuckDBPyConnection, model: KneserNey, texts: list[str]) -> dict:
    replace_texts(database, "kn_texts", [(str(i), t) for i, t in enumerate(texts)])
    model.score()
    rows = database.execute("SELECT id, lm_words, nll, perplexity FROM kn_scores").fetchall()
    return {key: rest for key, *rest in rows}


@pytest.mark.parametrize("order", [2, 3])
@pytest.mark.parametrize("min_count", [1, 4])
def test_scores_are_those_of_the_definition(order: int, min_count: int) -> None:
    reference = [*toy(1), "rare words stand here once: zebra quagga"]
    texts = [*toy(2, 20), "a wholly unknown zebra!", "file", "dog dog dog the the"]
    database, model = trained(reference, order, min_count)
    plain = Plain(reference, order, min_count)
    found = scores(database, model, texts)
    for i, text in enumerate(texts):
        words, nll, perplexity = found[str(i)]
        assert words == len(plain.padded(re.findall(r"[^\W_]+|\S", text.lower()))) - order + 1
        assert nll == pytest.approx(plain.nll(text), abs=1e-6 * words)
        assert perplexity == pytest.approx(math.exp(nll / words))


@pytest.mark.parametrize("order", [2, 3])
def test_probabilities_after_any_history_sum_to_one(order: int) -> None:
    database, _ = trained(toy(3), order, 2)
    unigrams = dict(database.execute("SELECT w, p FROM kn_p1").fetchall())
    assert sum(unigrams.values()) == pytest.approx(1)
    lower = unigrams
    for n in range(2, order + 1):
        seen = dict(database.execute(f"SELECT gram, p FROM kn_p{n}").fetchall())
        backoff = dict(
            database.execute("SELECT context, backoff FROM kn_contexts WHERE n = ?", [n]).fetchall()
        )
        assert backoff
        if n == 3:
            lower = _bigrams(unigrams, database)
        for context, weight in backoff.items():
            total = sum(
                seen.get((context << 20) | w, weight * _lower(lower, context, w, n))
                for w in unigrams
            )
            assert total == pytest.approx(1)


def _bigrams(unigrams: dict, database: duckdb.DuckDBPyConnection) -> dict:
    seen = dict(database.execute("SELECT gram, p FROM kn_p2").fetchall())
    rows = database.execute("SELECT context, backoff FROM kn_contexts WHERE n = 2").fetchall()
    return {
        (context, w): seen.get((context << 20) | w, weight * p)
        for context, weight in rows
        for w, p in unigrams.items()
    } | {(None, w): p for w, p in unigrams.items()}


def _lower(lower: dict, context: int, w: int, n: int) -> float:
    if n == 2:
        return lower[w]
    last = context & (2**20 - 1)
    return lower.get((last, w), lower[(None, w)])


def test_the_seen_is_likelier_than_the_shuffled() -> None:
    database, model = trained(toy(5), 3)
    found = scores(database, model, ["the cat sees a dog.", "dog a the. sees cat"])
    assert found["0"][2] < found["1"][2] / 3


def test_scores_do_not_depend_on_threads_or_order() -> None:
    texts = toy(6, 300)
    results = []
    for threads, rows in ((1, texts), (4, list(reversed(texts)))):
        database = duckdb.connect(config={"threads": threads})
        replace_texts(database, "kn_reference", [(t, t) for t in set(rows)])
        model = KneserNey(database, 3, 2)
        model.train()
        replace_texts(database, "kn_texts", [(t, t) for t in set(rows)])
        model.score()
        results.append(database.execute("SELECT * FROM kn_scores ORDER BY id").fetchall())
    assert results[0] == results[1]


def test_a_reference_without_a_frequent_word_is_refused() -> None:
    with pytest.raises(DataError, match="no word as often"):
        trained(["one two three"], 3, 2)


def test_characters_of_a_script_without_spaces_are_words() -> None:
    database, model = trained(["東京は大きい", "東京は"], 2, 1)
    assert scores(database, model, ["東京"])["0"][0] == 3
