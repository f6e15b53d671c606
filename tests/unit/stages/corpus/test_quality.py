"""Scores say what they say they measure, and the rules tell prose from listings, in any script."""

import time
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from trainwright.sql import load
from trainwright.stages.corpus import quality
from trainwright.stages.corpus.params import Cleaning
from trainwright.stages.corpus.text import words

PROSE = (
    "The function returns a list of the names that were found in the folder. If the folder is empty, "
    "the list is empty as well, and no error is raised."
)


def score(text: str) -> dict[str, float]:
    return quality.score(text, words(text))


def reasons(text: str, language: str = "en") -> list[str]:
    """What the SQL rules say with the default limits."""
    database = duckdb.connect()
    limits = Cleaning().model_dump()
    columns = ", ".join(f"{float(value)}::DOUBLE AS {name}" for name, value in limits.items())
    database.execute(f"CREATE TABLE cleaning AS SELECT {columns}")
    rows = pa.Table.from_pylist([{"id": "a", "language": language, **score(text)}])
    database.register("documents", rows)
    database.execute(load("quality_reasons"))
    found = database.execute("SELECT reasons FROM quality_reasons").fetchone()
    assert found is not None
    return list(found[0])


def test_prose_breaks_no_rule() -> None:
    assert reasons(PROSE) == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Too short.", "too_short"),
        (PROSE * 200, "too_long"),
        (">>> numpy.array([1, 2, 3]).sum()\n6\n" * 5, "markup"),
        ("| a | b |\n|---|---|\n" * 10, "symbols"),
        ("The codes are 12345678 90123456 78901234 56789012 34567890 and of that 11.", "digits"),
        ("- one of the items is here\n- two of the items are there\n" * 3, "bullets"),
        (
            "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi",
            "few_stop_words",
        ),
        (PROSE + " " + PROSE, "repetition"),
        ("the thing the thing and " * 10, "top_bigram"),
        (PROSE.replace("e", "\ufffd"), "broken_characters"),
        (PROSE + " It is donâ€™t and isnâ€™t all over the place.", "broken_characters"),
        (f"{'a b c d ' * 12}the of.", "short_words"),
        ("internationalization characterization " * 4 + "of the", "long_words"),
    ],
)
def test_each_kind_of_dirt_breaks_its_rule(text: str, reason: str) -> None:
    assert reason in reasons(text)


def test_all_reasons_are_kept() -> None:
    assert len(reasons(">>> f(1)")) >= 3


@pytest.mark.parametrize(
    ("text", "language"),
    [
        (
            "東京は日本の首都であり、世界でも有数の大都市である。人口は約千四百万人で、多くの企業や大学が"
            "集まっている。春には桜が咲き、秋には紅葉を楽しむことができる街として知られており、毎年たくさんの旅行者が訪れる。",
            "ja",
        ),
        (
            "Die Funktion gibt eine Liste der Namen zurück, die in dem Ordner gefunden wurden. Ist der "
            "Ordner leer, so ist auch die Liste leer.",
            "de",
        ),
        (
            "यह फ़ंक्शन उन नामों की सूची लौटाता है जो फ़ोल्डर में मिले थे। यदि फ़ोल्डर खाली है तो सूची भी खाली "
            "होगी और कोई त्रुटि नहीं होगी।",
            "hi",
        ),
    ],
)
def test_prose_of_other_scripts_and_languages_is_kept(text: str, language: str) -> None:
    assert set(reasons(text, language)) <= ALLOWED.get(language, set())


ALLOWED: dict[str, set[str]] = {
    # Vowel signs are no letters to str.isalpha, so that rules on letters misjudge Devanagari.
    "hi": {"few_alphabetic_words", "symbols"},
}


def test_repetition_is_the_share_of_words_in_a_gram_seen_before() -> None:
    assert quality.repetition(["a", "b", "c", "d", "e", "f"]) == 0
    assert quality.repetition(["a", "b", "c", "d", "a", "b", "c", "d"]) == pytest.approx(4 / 8)
    assert quality.repetition(["a", "b", "c", "d", "x", "a", "b", "c", "d", "e"]) == pytest.approx(
        4 / 10
    )
    assert quality.repetition([]) == 0


def test_top_bigram_is_the_share_of_words_in_the_commonest_pair() -> None:
    assert quality.top_bigram(["a", "b", "c", "a", "b", "d"]) == pytest.approx(4 / 6)
    assert quality.top_bigram(["a", "b", "c"]) == 0


def test_scores_have_the_names_of_the_catalogue() -> None:
    assert tuple(score(PROSE)) == quality.SCORES


@pytest.mark.parametrize("text", ["", " ", "\n\n", "\u200b", "😀"])
def test_any_text_has_finite_scores(text: str) -> None:
    assert all(value == value and abs(value) < 1e9 for value in score(text).values())


def test_the_stage_imports_neither_torch_nor_transformers() -> None:
    folder = Path(quality.__file__).parent
    for path in folder.glob("*.py"):
        text = path.read_text()
        for banned in ("import torch", "from torch", "import transformers", "from transformers"):
            assert banned not in text, path.name


@pytest.mark.parametrize("run", ["a", "ACGT", "ab.", "a/", "\\", "_", "`", "{", "$", ":a", "é"])
def test_the_time_grows_with_the_length_of_a_run_and_not_with_its_square(run: str) -> None:
    # Base64 or genes as one word: 40,000 characters took a minute, a megabyte would have taken hours.
    started = time.process_time()
    score(f"see {run * (40_000 // len(run))} there")
    assert time.process_time() - started < 1


def test_markup_is_the_share_of_code_paths_and_dotted_names() -> None:
    for found in ("a/b.c", "./x", "/etc", "numpy.linalg.norm", "f(x, y)", "`x`", "\\frac"):
        text = f"see {found} there"
        assert score(text)["markup_share"] == pytest.approx(len(found) / len(text)), found
    assert score("see numpy.norm there. It is 1.5 or 2.")["markup_share"] == 0
