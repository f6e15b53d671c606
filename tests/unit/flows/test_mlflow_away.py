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
from trainwright.stages.contract import utcnow


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


def test_our_warnings_reach_the_terminal_as_plain_text() -> None:
    shown = io.StringIO()
    with _told_on(Console(file=shown)):
        logging.getLogger("trainwright.flows.x").warning("[red]it is %s[/nope]", "away")
    logging.getLogger("trainwright.flows.x").warning("afterwards")
    assert shown.getvalue().strip() == "[red]it is away[/nope]"
