"""The progress file: few lines, the last one always whole, and never a reason to fail."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from trainwright.stages.progress import Progress, last_progress


def lines(path: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_is_written_at_most_once_an_interval_and_at_the_end(tmp_path: Path) -> None:
    progress = Progress(tmp_path / "p", interval=3600)
    for step in range(1, 101):
        progress("train", step, 100, loss=1.0)
    assert [line["step"] for line in lines(tmp_path / "p")] == [1, 100]


def test_a_phase_without_steps_is_written_at_most_once_an_interval_too(tmp_path: Path) -> None:
    progress = Progress(tmp_path / "p", interval=3600)
    for _ in range(100):
        progress("inputs")
    assert len(lines(tmp_path / "p")) == 1


def test_a_new_phase_is_written_at_once(tmp_path: Path) -> None:
    progress = Progress(tmp_path / "p", interval=3600)
    for phase in ("inputs", "train", "train", "upload"):
        progress(phase)
    assert [line["phase"] for line in lines(tmp_path / "p")] == ["inputs", "train", "upload"]


def test_the_time_left_is_the_pace_of_this_phase(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter([100.0, 110.0, 130.0])
    monkeypatch.setattr("trainwright.stages.progress.time.monotonic", lambda: next(now))
    progress = Progress(tmp_path / "p", interval=0)
    for step in (40, 50, 70):  # It went on from a snapshot at step 40.
        progress("train", step, 100)
    assert [line.get("eta") for line in lines(tmp_path / "p")] == [None, 50.0, 30.0]


def test_a_step_back_begins_the_pace_anew(tmp_path: Path) -> None:
    progress = Progress(tmp_path / "p", interval=0)
    for step in (50, 60, 20, 21):
        progress("train", step, 100)
    assert [("eta" in line) for line in lines(tmp_path / "p")] == [False, True, False, True]


def test_the_last_whole_line_is_found_behind_a_torn_one(tmp_path: Path) -> None:
    path = tmp_path / "p"
    progress = Progress(path, interval=0)
    for step in range(500):
        progress("train", step, 1000, loss=float(step))
    with path.open("a") as file:
        file.write('{"time": 1, "phase": "tr')
    last = last_progress(path)
    assert last is not None
    assert (last["step"], last["loss"]) == (499, 499.0)


def test_a_loss_that_is_not_finite_can_be_read_back(tmp_path: Path) -> None:
    Progress(tmp_path / "p")("train", 1, 2, loss=math.nan)
    last = last_progress(tmp_path / "p")
    assert last is not None
    assert math.isnan(last["loss"])


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe\n", b"[1]\n", b"7\n"])
def test_where_there_is_no_line_there_is_no_progress(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "p").write_bytes(content)
    assert last_progress(tmp_path / "p") is None


def test_a_full_disk_or_a_late_call_ends_no_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    full = Progress(Path("/dev/full"), interval=0)
    closed = Progress(tmp_path / "p", interval=0)
    closed.close()
    for step in range(3):
        full("train", step)
        closed("train", step)
    assert caplog.text.count("progress cannot be written") == 2
    full.close()
