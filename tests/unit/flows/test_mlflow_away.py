"""An MLflow that cannot be used is told once, at once, and stops nothing."""

import io
import logging
import time
from pathlib import Path

import pytest
from rich.console import Console

from trainwright.flows.foreground import _told_on
from trainwright.flows.mlflow_runs import MlflowRuns
from trainwright.flows.runs import Owner, RunRecord, RunState, new_run_id
from trainwright.stages.contract import StageRecord, StageState, utcnow


@pytest.mark.parametrize("damage", ["folder", "garbage"])
def test_a_database_that_cannot_be_opened_is_given_up_at_once(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "mlflow.db"
    if damage == "folder":
        path.mkdir()
    else:
        path.write_bytes(b"not a database" * 500)
    run = RunRecord(
        id=new_run_id("demo"), recipe_name="demo", recipe={}, state=RunState.RUNNING,
        owner=Owner.me(), started_at=utcnow(),
    )  # fmt: skip
    tracking = MlflowRuns(f"sqlite:///{path}")
    import mlflow  # noqa: F401  (its import takes seconds of its own)

    begun = time.monotonic()
    assert tracking.start_run(run) is None and tracking.away
    assert time.monotonic() - begun < 5
    assert caplog.text.count("cannot be used") == 1


def test_a_moment_without_mlflow_leaves_no_run_of_it_running(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainwright.flows.chain import StepName

    run = RunRecord(
        id=new_run_id("demo"), recipe_name="demo", recipe={}, state=RunState.RUNNING,
        owner=Owner.me(), started_at=utcnow(),
    )  # fmt: skip
    tracking = MlflowRuns(f"sqlite:///{tmp_path / 'mlflow.db'}", tmp_path / "artifacts")
    run = run.model_copy(update={"mlflow_run_id": tracking.start_run(run)})
    record = StageRecord(
        run_id=run.id, step="corpus", program="corpus", state=StageState.COMPLETED,
        started_at=utcnow(), mlflow_run_id=tracking.start_step(run, "corpus", {}),
    )  # fmt: skip

    def away(*_: object, **__: object) -> None:
        raise ConnectionError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(tracking.client, "log_batch", away)
        tracking.end_step(run, record)
    assert tracking.away
    done = run.model_copy(update={"state": RunState.COMPLETED})
    tracking.end_run(done, {StepName.CORPUS: record})
    found = tracking.client.search_runs([tracking.experiment()])
    assert [one.info.status for one in found] == ["FINISHED", "FINISHED"]
    assert caplog.text.count("cannot be used") == 1


def test_our_warnings_reach_the_terminal_as_plain_text() -> None:
    shown = io.StringIO()
    with _told_on(Console(file=shown)):
        logging.getLogger("trainwright.flows.x").warning("[red]it is %s[/nope]", "away")
    logging.getLogger("trainwright.flows.x").warning("afterwards")
    assert shown.getvalue().strip() == "[red]it is away[/nope]"
