import subprocess
import sys
from pathlib import Path

import pytest

from trainwright.flows.chain import StepName, UnknownNameError
from trainwright.flows.runs import DamagedRecordError, Owner, RunRecord, Runs, RunState, new_run_id
from trainwright.stages.contract import StageRecord, StageState, utcnow
from trainwright.stages.store.file import FileStore


def make_run(runs: Runs, run_id: str, owner: Owner | None = None) -> RunRecord:
    run = RunRecord(
        id=run_id,
        recipe_name="demo",
        recipe={},
        state=RunState.RUNNING,
        owner=owner or Owner.me(),
        started_at=utcnow(),
    )
    runs.save(run)
    return run


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(FileStore(tmp_path))


def test_runs_are_listed_newest_first_whatever_their_recipe(runs: Runs) -> None:
    for name in ("zebra-20260101-000000-aaaa", "ant-20260301-000000-bbbb"):
        make_run(runs, name)
    make_run(runs, "my-long-name-20260201-000000-cccc")
    assert [name[-4:] for name in runs.names()] == ["bbbb", "cccc", "aaaa"]


def test_a_run_is_found_by_latest_by_beginning_and_by_ending(runs: Runs) -> None:
    make_run(runs, "demo-20260101-000000-aaaa")
    make_run(runs, "demo-20260102-000000-bbbb")
    assert runs.load("latest").id.endswith("bbbb")
    assert runs.load("aaaa").id.endswith("aaaa")
    assert runs.load("demo-20260101").id.endswith("aaaa")
    with pytest.raises(UnknownNameError, match="aaaa"):
        runs.load("demo")
    with pytest.raises(UnknownNameError, match="demo-20260102-000000-bbbb"):
        runs.load("nothing-like-it")


def test_a_run_whose_process_was_killed_is_dead_and_buried_with_its_running_step(
    runs: Runs,
) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    from trainwright.stages.lease import boot_id, process_started

    owner = Owner(
        host="here", boot=boot_id(), pid=child.pid, started=process_started(child.pid) or 0
    )
    run = make_run(runs, new_run_id("demo"), owner)
    runs.save_step(
        StageRecord(
            run_id=run.id,
            step=StepName.CORPUS,
            program="corpus",
            state=StageState.RUNNING,
            started_at=utcnow(),
        )
    )
    assert not run.dead
    child.kill()
    child.wait()
    assert run.dead
    buried = runs.bury(run, "killed")
    step = runs.step(run.id, StepName.CORPUS)
    assert buried.state is RunState.CRASHED
    assert step is not None and step.state is StageState.CRASHED and step.error == "killed"


def test_a_process_of_another_boot_is_never_declared_dead(runs: Runs) -> None:
    owner = Owner(host="elsewhere", boot="another", pid=1, started=0.0)
    assert not make_run(runs, new_run_id("demo"), owner).dead


def test_a_reboot_ends_all_runs_of_the_machine(runs: Runs) -> None:
    from trainwright.stages.lease import boot_id

    _, namespace, host = boot_id().split("/")
    old = f"00000000-0000-0000-0000-000000000000/{namespace}/{host}"
    owner = Owner.me().model_copy(update={"boot": old})
    assert make_run(runs, new_run_id("demo"), owner).dead


def test_prefects_retry_finds_the_run_of_its_flow_run(runs: Runs) -> None:
    run = make_run(runs, new_run_id("demo"))
    runs.bind_flow_run("0000-1111", run.id)
    found = runs.of_flow_run("0000-1111")
    assert found is not None and found.id == run.id
    assert runs.of_flow_run("unknown") is None


def save_step(runs: Runs, run_id: str, step: StepName) -> str:
    record = StageRecord(
        run_id=run_id,
        step=step,
        program="corpus",
        state=StageState.COMPLETED,
        started_at=utcnow(),
    )
    runs.save_step(record)
    return f"runs/{run_id}/steps/{step}.json"


DAMAGE = [
    b"", b"{", b"[]", b"\xff\xfe\0", b"{}",
]  # fmt: skip


@pytest.mark.parametrize("data", DAMAGE)
def test_a_damaged_step_record_hides_no_other(
    runs: Runs, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    run = make_run(runs, new_run_id("demo"))
    save_step(runs, run.id, StepName.CORPUS)
    runs.store.put(save_step(runs, run.id, StepName.INITIALIZE), data)
    assert list(runs.steps(run.id)) == [StepName.CORPUS]
    assert "initialize.json is damaged" in caplog.text
    with pytest.raises(DamagedRecordError, match=run.id):
        runs.step(run.id, StepName.INITIALIZE)
    assert runs.bury(run, "gone").state is RunState.CRASHED


@pytest.mark.parametrize("data", DAMAGE)
def test_a_damaged_run_record_hides_no_other_run(runs: Runs, data: bytes) -> None:
    make_run(runs, "demo-20260101-000000-aaaa")
    make_run(runs, "demo-20260102-000000-bbbb")
    runs.store.put("runs/demo-20260102-000000-bbbb/run.json", data)
    assert [run.id[-4:] for run in runs.all()] == ["aaaa"]
    with pytest.raises(DamagedRecordError, match=r"bbbb.*run its recipe again"):
        runs.load("bbbb")


def test_a_record_of_another_run_or_step_is_damaged(runs: Runs) -> None:
    run = make_run(runs, "demo-20260101-000000-aaaa")
    data = run.model_copy(update={"id": "../../x"}).model_dump_json().encode()
    runs.store.put(f"runs/{run.id}/run.json", data)
    with pytest.raises(DamagedRecordError, match="names the run"):
        runs.load("aaaa")
    data, _ = runs.store.get(save_step(runs, run.id, StepName.CORPUS))
    runs.store.put(f"runs/{run.id}/steps/pretrain.json", data)
    with pytest.raises(DamagedRecordError, match="names 'corpus'"):
        runs.step(run.id, StepName.PRETRAIN)


def test_a_time_without_its_zone_is_damage(runs: Runs) -> None:
    run = make_run(runs, "demo-20260101-000000-aaaa")
    naive = run.model_copy(update={"started_at": run.started_at.replace(tzinfo=None)})
    runs.store.put(f"runs/{run.id}/run.json", naive.model_dump_json().encode())
    with pytest.raises(DamagedRecordError, match="started_at"):
        runs.load("aaaa")
