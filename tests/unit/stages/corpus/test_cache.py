"""A folder of the cache is whole or absent, and made once."""

from pathlib import Path

import pytest

from trainwright.stages.corpus.cache import clear_drafts, once


def test_a_result_is_made_once(tmp_path: Path) -> None:
    calls = []

    def make(folder: Path) -> None:
        calls.append(folder)
        (folder / "a").write_text("1")

    first, second = once(tmp_path, "x", make), once(tmp_path, "x", make)
    assert first == second == tmp_path / "x"
    assert (first / "a").read_text() == "1" and len(calls) == 1


def test_a_try_that_fails_leaves_no_result(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "a").write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        once(tmp_path, "x", fail)
    assert not (tmp_path / "x").exists()
    clear_drafts(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_rival_that_finished_first_is_taken(tmp_path: Path) -> None:
    def slow(folder: Path) -> None:
        (folder / "a").write_text("mine")
        once(tmp_path / ".", "y", lambda f: None)
        (tmp_path / "y").rename(tmp_path / "x")
        (tmp_path / "x" / "a").write_text("theirs")

    assert (once(tmp_path, "x", slow) / "a").read_text() == "theirs"


def test_an_orphan_cannot_finish_a_draft_that_was_cleared(tmp_path: Path) -> None:
    def orphan(folder: Path) -> None:
        (folder / "a").write_text("1")
        clear_drafts(tmp_path)
        (folder / "b").write_text("2")

    with pytest.raises(OSError):
        once(tmp_path, "x", orphan)
    assert not (tmp_path / "x").exists()
