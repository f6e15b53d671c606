"""The filter's self-check: right areas, and a warning for a reference of the wrong kind."""

import base64
import itertools
import random

import duckdb
import pytest

from trainwright.stages.corpus.kneser_ney import KneserNey, replace_texts
from trainwright.stages.corpus.selfcheck import KINDS, auc, check, noise


def test_auc_is_the_share_of_pairs_in_order() -> None:
    draw = random.Random(0)
    clean = [draw.randint(0, 5) for _ in range(30)]
    noisy = [draw.randint(2, 7) for _ in range(40)]
    pairs = [(c < n) + 0.5 * (c == n) for c, n in itertools.product(clean, noisy)]
    assert auc(clean, noisy) == pytest.approx(sum(pairs) / len(pairs))


def sentences(seed: int, count: int) -> list[tuple[str, str]]:
    draw = random.Random(seed)
    subjects = ["the reader", "a window", "every process", "the old list", "this folder"]
    verbs = ["opens", "keeps", "is given", "waits for", "returns"]
    objects = ["the first name", "a closed file", "what was found", "its own copy", "an error"]
    return [
        (f"{seed}-{i}", " and ".join(
            f"{draw.choice(subjects)} {draw.choice(verbs)} {draw.choice(objects)}" for _ in range(4)
        ) + ".")
        for i in range(count)
    ]  # fmt: skip


def figures(reference: list[tuple[str, str]]) -> dict:
    clean = sentences(2, 60)
    database = duckdb.connect()
    replace_texts(database, "kn_reference", reference)
    model = KneserNey(database, 3, 1)
    model.train()
    replace_texts(database, "kn_texts", [*clean, *noise(clean)])
    model.score()
    rows = database.execute("SELECT id, perplexity FROM kn_scores").fetchall()
    return check(dict(rows), [key for key, _ in clean])


def test_a_clean_reference_prefers_clean_text() -> None:
    found = figures(sentences(1, 300))
    assert found["warnings"] == []
    assert set(found["auc"]) == set(KINDS)
    assert found["auc"]["shuffled"] > 0.95


def test_an_inverted_reference_is_reported() -> None:
    scrambled = [(key, base64.b64encode(text.encode()).decode()) for key, text in sentences(1, 300)]
    found = figures(scrambled)
    assert any("base64" in warning for warning in found["warnings"])


def test_too_few_texts_are_said() -> None:
    found = check({}, ["a"])
    assert found["auc"] == {} and "unchecked" in found["warnings"][0]


def test_noise_is_the_same_every_time_and_of_about_the_same_length() -> None:
    clean = sentences(3, 5)
    first = list(noise(clean))
    assert first == list(noise(clean))
    assert len(first) == len(KINDS) * len(clean)
    lengths = {key: len(text) for key, text in clean}
    for key, text in first:
        assert abs(len(text) - lengths[key.partition(":")[2]]) <= 0.5 * len(text)
