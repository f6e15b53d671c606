import pytest
import torch

from trainwright.stages.model.snapshot import Snapshots


def test_the_newest_snapshot_comes_back_bitwise(tmp_path):
    snapshots = Snapshots(tmp_path)
    for step in (1, 2, 3):
        snapshots.save(step, {"w": torch.full((3,), step / 7), "n": step, "history": [{"a": 0.1}]})
    step, state = Snapshots(tmp_path).newest()
    assert step == 3
    assert torch.equal(state["w"], torch.full((3,), 3 / 7))
    assert state["history"] == [{"a": 0.1}]


def test_two_are_kept(tmp_path):
    snapshots = Snapshots(tmp_path)
    for step in range(5):
        snapshots.save(step, {"n": step})
    assert sorted(p.name for p in tmp_path.glob("*.pt")) == [
        "step-000000003.pt",
        "step-000000004.pt",
    ]


@pytest.mark.parametrize("harm", ["truncate", "flip", "no data", "no mark", "broken mark"])
def test_a_harmed_snapshot_gives_way_to_the_one_before(tmp_path, harm):
    snapshots = Snapshots(tmp_path)
    snapshots.save(1, {"n": 1})
    snapshots.save(2, {"n": 2})
    data, mark = tmp_path / "step-000000002.pt", tmp_path / "step-000000002.json"
    whole = data.read_bytes()
    if harm == "truncate":
        data.write_bytes(whole[:-1])
    elif harm == "flip":
        data.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    elif harm == "no data":
        data.unlink()
    elif harm == "no mark":
        mark.unlink()
    else:
        mark.write_text("{")
    assert Snapshots(tmp_path).newest() == (1, {"n": 1})


def test_an_empty_folder_has_none(tmp_path):
    assert Snapshots(tmp_path).newest() is None
