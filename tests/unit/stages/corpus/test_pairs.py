"""Pairs are documentation's own answers; worse ones are whole, of the same length, in equal shares."""

import random
from collections import Counter

import pytest

from trainwright.stages.corpus.pairs import (
    KINDS,
    Answer,
    Instruction,
    Limits,
    answer,
    instructions,
    is_question,
    preferences,
    reject,
)
from trainwright.stages.corpus.python_docs import Docstring

WORDS = (
    "return write open count remove split merge check name file window key table number row word "
    "text order error folder value list type path line state group level index event"
)


def made() -> list[Instruction]:
    draw = random.Random(0)
    rows = [
        Answer("pkg", f"pkg.m{i % 3}", f"pkg.m{i % 3}.f{i}", f"pkg.m{i % 3}.f{i}(x)",
               " ".join(draw.choices(WORDS.split(), k=draw.randint(6, 20))).capitalize() + ".")
        for i in range(120)
    ]  # fmt: skip
    return instructions(rows)


def test_a_pair_asks_about_the_signature_and_answers_with_the_documentation() -> None:
    (pair,) = instructions(
        [
            Answer(
                "json", "json", "json.dumps", "json.dumps(obj, *, skipkeys=False)", "Serialize it."
            )
        ]
    )
    assert "`json.dumps(obj, *, skipkeys=False)`" in pair.prompt
    assert (pair.response, pair.source) == ("Serialize it.", "json")


def test_each_answer_is_used_once() -> None:
    rows = [Answer("p", "m", f"m.f{i}", f"m.f{i}()", "The same answer to all.") for i in range(5)]
    assert len(instructions(rows)) == 1


def test_pairs_do_not_depend_on_the_order_of_answers() -> None:
    rows = [Answer("p", "m", f"m.f{i}", f"m.f{i}()", f"Answer {i % 7}.") for i in range(20)]
    assert instructions(rows) == instructions(reversed(rows))


def test_the_first_pairs_are_a_sample_of_every_package() -> None:
    # The stages after measure on the first pairs of a file: they must not all be of one package.
    rows = [
        Answer(package, "m", f"m.f{i}", f"m.f{i}()", f"Answer {i} of {package}.")
        for package in ("aa", "bb", "cc")
        for i in range(200)
    ]
    first = Counter(pair.source for pair in instructions(rows)[:120])
    assert min(first.values()) > 20
    assert len(first) == 3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "Return the names of all files. Raise an error if there is none.\n\nMore.",
            "Return the names of all files. Raise an error if there is none.",
        ),
        ("Return the names of all the files found. " + "Then go on " * 30 + ".",
         "Return the names of all the files found."),
        (">>> f(1)\n2", None),
        ("x : int\n    A number.", None),
        ("Too short.", None),
        ("no sentence at the beginning of this text", None),
        ("Return f(x) [1]_ <y> a.b.c *args **kw {z} %s -- e.g. x=1.", None),
    ],
)  # fmt: skip
def test_an_answer_is_whole_sentences_of_prose(text: str, expected: str | None) -> None:
    assert answer(text, Limits()) == expected


def test_only_public_functions_with_a_short_signature_are_asked_about() -> None:
    def ask(name: str, signature: str) -> bool:
        return is_question(Docstring("p", "m", name, "function", signature, "t"), Limits())

    assert ask("m.f", "m.f(x)")
    assert not ask("m._f", "m._f(x)")
    assert not ask("m.C", "")
    assert not ask("m.f", f"m.f({'x' * 200})")


def test_kinds_come_in_equal_shares_and_longer_does_not_win() -> None:
    found = preferences(made())
    counts = Counter(p.kind for p in found)
    assert set(counts) == set(KINDS) and len(set(counts.values())) == 1
    assert len(found) >= 80
    longer = [
        (len(p.chosen) > len(p.rejected)) + 0.5 * (len(p.chosen) == len(p.rejected)) for p in found
    ]
    assert 0.35 < sum(longer) / len(longer) < 0.65


def test_a_rejected_answer_is_what_its_kind_says() -> None:
    answers = {p.response for p in made()}
    for p in preferences(made()):
        words, worse = p.chosen.split(), p.rejected.split()
        assert p.rejected != p.chosen
        if p.kind == "other":
            assert p.rejected in answers
        elif p.kind == "shuffled":
            assert sorted(words) == sorted(worse)
        elif p.kind == "repeated":
            assert len(worse) == len(words) and len(set(worse)) <= 5 and set(worse) <= set(words)
        else:
            half = len(words) // 2
            assert worse[:half] == words[:half]
            assert any(worse[half:] == a.split()[len(a.split()) // 2 :] for a in answers)


def test_what_cannot_be_damaged_gives_no_pair() -> None:
    short = Instruction("1", "q", "Two words", "p", "m")
    assert [reject(short, kind, []) for kind in KINDS] == [None] * 4
