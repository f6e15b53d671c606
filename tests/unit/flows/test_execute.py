"""How a step of a run ends, and what its record says, with a launcher that pretends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainwright.flows import session
from trainwright.flows.chain import Selection, StepName
from trainwright.flows.execute import Engine, Silent, StepFailedError
from trainwright.flows.launchers import Job
from trainwright.flows.mlflow_runs import MlflowRuns
from trainwright.flows.recipe import load_recipe
from trainwright.flows.runs import Owner, RunRecord, Runs, RunState
from trainwright.stages.artifact import Manifest, open_artifact
from trainwright.stages.contract import (
    ExitCode,
    StageRecord,
    StageState,
    TransientError,
    utcnow,
)
from trainwright.stages.settings import Settings
from trainwright.stages.store import StoreError
from trainwright.stages.store.file import FileStore

TINY = str(Path(__file__).parents[2] / "recipes" / "tiny.yaml")


class Ended:
    """A stage that ended at once."""

    def __init__(self, code: int) -> None:
        self._code = code

    def poll(self) -> int:
        return self._code

    def cancel(self, grace: float = 10.0) -> None:
        pass


class Pretender:
    """Ends each stage as the next of `ends` says; one that ends well leaves an artifact."""

    name = "pretend"

    def __init__(self, make: Callable[[Job], None], *ends: int | Exception) -> None:
        self.make, self.ends, self.started = make, list(ends), 0

    def start(self, job: Job) -> Ended:
        self.started += 1
        end = self.ends.pop(0)
        if isinstance(end, Exception):
            raise end
        if end == 0:
            self.make(job)
        return Ended(end)

    def identify(self, program: str, params_path: Path) -> dict[str, str]:
        return {"docs": "d" * 64}


class Bench:
    """A run in a folder, whose engine can be made anew as a new flow would."""

    def __init__(self, tmp_path: Path, make: Callable[..., Manifest], output: Callable[..., Path]):
        self.place = Settings(tmp_path, f"file://{tmp_path}/store", "", None, tmp_path)
        self.runs = Runs(FileStore(tmp_path / "store"))
        self._make, self._output = make, output
        self.by = "mine"
        self.run = RunRecord(
            id="tiny-20260101-000000-aaaa", recipe_name="tiny", recipe={}, state=RunState.RUNNING,
            owner=Owner.me(), started_at=utcnow(),
        )  # fmt: skip
        self.runs.save(self.run)

    def engine(self, *ends: int | Exception, force: bool = False) -> Engine:
        forced = frozenset({StepName.CORPUS} if force else ())
        selection = Selection(only=StepName.CORPUS, force=forced)
        engine = Engine(
            self.place, load_recipe(TINY), selection, self.runs, self.run, Silent()
        )  # fmt: skip
        engine.launcher = Pretender(self.leave_artifact, *ends)
        return engine

    def leave_artifact(self, job: Job) -> None:
        artifact = open_artifact(job.spec.output)
        files = artifact.upload(self._output(), "abc")
        by = job.spec.run_id if self.by == "mine" else self.by
        artifact.commit(self._make(files, fingerprint=job.spec.fingerprint, run_id=by))

    def record(self) -> StageRecord:
        record = self.runs.step(self.run.id, StepName.CORPUS)
        assert record is not None
        return record


@pytest.fixture
def bench(
    tmp_path: Path, manifest_of: Callable[..., Manifest], output: Callable[..., Path]
) -> Bench:
    return Bench(tmp_path, manifest_of, output)


def fail(engine: Engine) -> StepFailedError:
    with pytest.raises(StepFailedError) as caught:
        engine.execute(StepName.CORPUS)
    return caught.value


@pytest.mark.parametrize("end", [int(ExitCode.TRANSIENT), -9, TransientError("no process for now")])
def test_what_may_pass_is_a_failed_try_that_another_follows(bench: Bench, end: Any) -> None:
    engine = bench.engine(end, 0)
    assert fail(engine).retryable
    assert (bench.record().state, bench.record().attempts) == (StageState.FAILED, 1)
    record = engine.execute(StepName.CORPUS)
    assert (record.state, record.attempts, record.error) == (StageState.COMPLETED, 2, None)
    assert bench.record() == record


@pytest.mark.parametrize("code", [c for c in ExitCode if c and not c.retryable])
def test_what_another_try_cannot_help_says_so(bench: Bench, code: ExitCode) -> None:
    failure = fail(bench.engine(int(code)))
    assert failure.code is code and not failure.retryable
    wanted = StageState.CANCELLED if code is ExitCode.CANCELLED else StageState.FAILED
    assert bench.record().state is wanted


def test_a_store_that_fails_as_a_step_ends_leaves_no_record_that_says_running(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = bench.engine(0)
    save = bench.runs.save_step

    def refuse(record: StageRecord) -> None:
        if record.state is StageState.COMPLETED:
            raise StoreError("the store is away")
        save(record)

    monkeypatch.setattr(bench.runs, "save_step", refuse)
    assert fail(engine).retryable
    assert bench.record().state is StageState.FAILED and bench.record().artifact is None
    monkeypatch.undo()
    assert engine.execute(StepName.CORPUS).state is StageState.COMPLETED
    assert engine.launcher.started == 1  # type: ignore[attr-defined]


def test_a_store_that_takes_no_record_at_all_ends_the_step_as_transient(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(record: StageRecord) -> None:
        raise StoreError("the store is away")

    monkeypatch.setattr(bench.runs, "save_step", refuse)
    assert fail(bench.engine(0)).code is ExitCode.TRANSIENT


def test_what_another_run_made_meanwhile_is_reused_and_says_whose_it_is(bench: Bench) -> None:
    bench.by = "tiny-20260101-000000-bbbb"
    record = bench.engine(0).execute(StepName.CORPUS)
    assert record.state is StageState.REUSED and bench.by in (record.why or "")


def test_a_watcher_that_breaks_is_no_cancel(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = bench.engine(0)

    def broken(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(engine, "_follow", broken)
    with pytest.raises(RuntimeError):
        engine.execute(StepName.CORPUS)
    assert bench.record().state is StageState.FAILED
    assert bench.record().error == "RuntimeError: a bug"


def test_a_forced_step_is_forced_once_and_a_retry_goes_on_with_it(bench: Bench) -> None:
    bench.engine(0).execute(StepName.CORPUS)
    engine = bench.engine(int(ExitCode.TRANSIENT), 0, force=True)
    assert fail(engine).retryable
    assert engine.execute(StepName.CORPUS).why == "forced"
    assert engine.launcher.started == 2  # type: ignore[attr-defined]
    bench.run = bench.runs.read(bench.run.id)
    retry = bench.engine(force=True)
    assert retry.execute(StepName.CORPUS).state is StageState.REUSED


@pytest.mark.parametrize(("flow_run", "kept"), [("f1", ["corpus"]), ("f2", None)])
def test_only_a_retry_of_the_same_flow_run_remembers_what_was_forced(
    bench: Bench, flow_run: str, kept: list[str] | None
) -> None:
    options = {"forced": ["corpus"]}
    before = bench.run.model_copy(
        update={"options": options, "prefect_flow_run_id": "f1", "state": RunState.FAILED}
    )
    selection = Selection(only=StepName.CORPUS, force=frozenset({StepName.CORPUS}))
    now = session._record(
        load_recipe(TINY), selection, "pipeline", before, session.PrefectLink(flow_run, None)
    )
    assert now.options.get("forced") == kept and now.options["force"] == ["corpus"]


class Tracking(MlflowRuns):
    """An MLflow that takes everything."""

    def start_step(self, run: RunRecord, step: str, params: dict[str, Any]) -> str:
        return "child"

    def end_step(self, run: RunRecord, record: StageRecord) -> None:
        pass

    def attach_text(self, run_id: str, text: str, path: str) -> None:
        pass


def test_a_password_of_mlflow_reaches_the_stage_but_no_file(bench: Bench, tmp_path: Path) -> None:
    bench.run = bench.run.model_copy(update={"mlflow_run_id": "parent"})
    engine = bench.engine(0)
    engine.tracking = Tracking("http://me:hunter2@mlflow:5000")
    jobs: list[Job] = []
    engine.launcher.make = lambda job: (jobs.append(job), bench.leave_artifact(job))  # type: ignore[attr-defined]
    engine.execute(StepName.CORPUS)
    assert jobs[0].environment["MLFLOW_TRACKING_URI"] == "http://me:hunter2@mlflow:5000"
    assert jobs[0].spec.tracking is not None
    assert jobs[0].spec.tracking.uri == "http://mlflow:5000"
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files and not [path for path in files if b"hunter2" in path.read_bytes()]
