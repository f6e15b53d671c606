from pathlib import Path

import pytest

from trainwright.stages.pretrain.snapshots import COMPLETE, Snapshots

META = {"ranks": 2, "zero_stage": 1}


def take(snapshots: Snapshots, step: int, text: str = "weights") -> Path:
    place = snapshots.begin(step)
    (place / "state").mkdir()
    (place / "state" / "rank0.pt").write_text(f"{text} {step}")
    snapshots.complete(step, META)
    return place


def test_the_newest_complete_snapshot_is_found_and_two_are_kept(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path, keep=2)
    for step in (10, 20, 30):
        take(snapshots, step)
    assert snapshots.newest(META) == (30, snapshots.place(30))
    assert sorted(p.name[-2:] for p in tmp_path.iterdir()) == ["20", "30"]


def test_a_snapshot_that_was_killed_before_its_mark_is_passed_over(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path, keep=2)
    take(snapshots, 10)
    place = snapshots.begin(20)
    (place / "rank0.pt").write_text("half")
    assert snapshots.newest(META) == (10, snapshots.place(10))
    take(snapshots, 20)
    assert snapshots.newest(META) == (20, snapshots.place(20))


@pytest.mark.parametrize("fault", ["truncated", "flipped", "missing", "mark", "mark-shape"])
def test_a_damaged_newest_snapshot_is_passed_over_and_the_one_before_used(
    tmp_path: Path, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    snapshots = Snapshots(tmp_path, keep=2)
    take(snapshots, 10)
    place = take(snapshots, 20)
    data = place / "state" / "rank0.pt"
    match fault:
        case "truncated":
            data.write_text("w")
        case "flipped":
            data.write_text(data.read_text().replace("w", "v"))
        case "missing":
            data.unlink()
        case "mark":
            (place / COMPLETE).write_text("{")
        case "mark-shape":
            (place / COMPLETE).write_text("[]")
    assert snapshots.newest(META) == (10, snapshots.place(10))
    assert "step-000000020 is passed over" in caplog.text


def test_a_snapshot_of_another_layout_is_passed_over_with_what_differs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    snapshots = Snapshots(tmp_path, keep=2)
    take(snapshots, 10)
    assert snapshots.newest({**META, "ranks": 4}) is None
    assert "'ranks': 2" in caplog.text and "'ranks': 4" in caplog.text
