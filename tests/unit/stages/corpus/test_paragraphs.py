"""Running text is joined into lines; code, lists and tables stay as they are."""

import pytest

from trainwright.stages.corpus.paragraphs import paragraphs, sentences


def test_paragraphs_are_blocks_between_blank_lines_without_their_indent() -> None:
    text = "First one\nruns on.\n\n    Indented\n    text.\n \t\n\n\nLast."
    assert paragraphs(text) == ["First one runs on.", "Indented text.", "Last."]


@pytest.mark.parametrize(
    "block",
    [
        ">>> f(1)\n2",
        "- one\n- two",
        "1. one\n2. two",
        "x : int\n    The number.",
        "name   size\nalpha  3",
        ".. note::\n   Beware.",
    ],
)
def test_blocks_that_are_no_running_text_keep_their_lines(block: str) -> None:
    assert paragraphs(block) == [block]


def test_sentences_end_before_a_beginning() -> None:
    text = "Return x, e.g. a number. Raises nothing! See `f`? (Or g.) v1.2 is old."
    assert sentences(text) == [
        *("Return x, e.g. a number.", "Raises nothing!", "See `f`?", "(Or g.) v1.2 is old.")
    ]


def test_text_without_a_word_has_no_paragraph() -> None:
    assert paragraphs(" \n\n\t\n") == []
