"""The frame around a run: opens its record, MLflow run and watchdog; closes them whatever happens."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from trainwright.flows import watchdog
from trainwright.flows.chain import CHAIN, Selection
from trainwright.flows.execute import Engine, Silent, StepFailedError, Watcher
from trainwright.flows.mlflow_runs import MlflowRuns
from trainwright.flows.prefect_states import mark_crashed
from trainwright.flows.recipe import Recipe
from trainwright.flows.runs import Owner, RunRecord, Runs, RunState, new_run_id
from trainwright.stages.contract import StageState, UsageError, utcnow
from trainwright.stages.settings import settings, without_credentials
from trainwright.stages.store import open_store

log = logging.getLogger(__name__)

GONE = "the process that ran the flow is gone"


@dataclass(frozen=True)
class PrefectLink:
    """The Prefect flow run that a run is shown by."""

    flow_run_id: str
    url: str | None


@contextmanager
def open_run(
    recipe: Recipe,
    selection: Selection,
    *,
    kind: str = "pipeline",
    again: RunRecord | None = None,
    prefect: PrefectLink | None = None,
    watcher: Watcher | None = None,
) -> Iterator[Engine]:
    """An engine for a new run, or for one that goes on (`again`).

    The run's record says at every moment what is known: `running` while its process lives, then
    completed, failed, cancelled; `crashed` if the process vanished.
    """
    place = settings()
    place.home.mkdir(parents=True, exist_ok=True)
    runs = Runs(open_store(place.store))
    tracking = MlflowRuns(place.mlflow_uri, place.home / "mlartifacts")
    spare = prefect.flow_run_id if prefect is not None else ""
    sweep(runs, tracking, os.environ.get("PREFECT_API_URL") or place.prefect_api, spare)
    run = _record(recipe, selection, kind, again, prefect)
    runs.save(run)
    if prefect is not None:
        runs.bind_flow_run(prefect.flow_run_id, run.id)
    with watchdog.guard(run, place):
        run = run.model_copy(
            update={
                "mlflow_run_id": tracking.start_run(run),
                "mlflow_uri": without_credentials(tracking.uri),
            }
        )
        runs.save(run)
        engine = Engine(place, recipe, selection, runs, run, watcher or Silent(), tracking)
        try:
            yield engine
        except StepFailedError as failure:
            cancelled = failure.record.state is StageState.CANCELLED
            _close(engine, RunState.CANCELLED if cancelled else RunState.FAILED, str(failure))
            raise
        except Exception as error:
            _close(engine, RunState.FAILED, f"{type(error).__name__}: {error}")
            raise
        except BaseException:
            _close(engine, RunState.CANCELLED, "cancelled")
            raise
        _close(engine, RunState.COMPLETED, None)


def _record(
    recipe: Recipe,
    selection: Selection,
    kind: str,
    again: RunRecord | None,
    prefect: PrefectLink | None,
) -> RunRecord:
    link: dict[str, Any] = {}
    if prefect is not None:
        link = {"prefect_flow_run_id": prefect.flow_run_id, "prefect_url": prefect.url}
    if again is None:
        return RunRecord(
            id=new_run_id(recipe.name),
            kind=kind,
            recipe_name=recipe.name,
            recipe=recipe.dump(),
            options=_options(selection),
            state=RunState.RUNNING,
            owner=Owner.me(),
            started_at=utcnow(),
            **link,
        )
    if again.state is RunState.RUNNING and again.owner.alive:
        mine = Owner.me()
        if (again.owner.pid, again.owner.boot) != (mine.pid, mine.boot):
            raise UsageError(
                f"run {again.id} is still going (process {again.owner.pid} on {again.owner.host}); "
                f"wait for it, or end it: trainwright cancel {again.id}"
            )
    retried = prefect is not None and prefect.flow_run_id == again.prefect_flow_run_id
    forced = {"forced": again.options.get("forced", [])} if retried else {}
    return again.model_copy(
        update={
            "state": RunState.RUNNING,
            "owner": Owner.me(),
            "options": {**_options(selection), **forced},
            "ended_at": None,
            "error": None,
            **link,
        }
    )


def _options(selection: Selection) -> dict[str, Any]:
    return {
        "from": selection.first,
        "to": selection.last,
        "only": selection.only,
        "force": sorted(selection.force),
    }


def _close(engine: Engine, state: RunState, error: str | None) -> None:
    """Set the final state everywhere, and render the report."""
    stored = engine.runs.steps(engine.run.id)
    if state is RunState.COMPLETED and len(stored) < len(CHAIN):
        log.info("the run ends before the chain does: %s", ", ".join(stored))
    run = engine.run.model_copy(update={"state": state, "error": error, "ended_at": utcnow()})
    run = _report(engine, run)
    engine.runs.save(run)
    engine.run = run
    if engine.tracking is not None:
        engine.tracking.end_run(run, engine.runs.steps(run.id))


def _report(engine: Engine, run: RunRecord) -> RunRecord:
    """Render the report; a run is never lost because its report cannot be drawn."""
    from trainwright.flows import report

    folder = engine.settings.home / "reports" / run.id
    try:
        path = report.write_html(run, engine.runs.steps(run.id), folder / "report.html")
    except Exception:
        log.exception(
            "the report could not be rendered; render it with: trainwright report %s", run.id
        )
        return run
    if engine.tracking is not None and run.mlflow_run_id is not None:
        engine.tracking.attach(run.mlflow_run_id, path, "report")
        for plot in sorted(folder.glob("*.png")) + sorted(folder.glob("*.json")):
            engine.tracking.attach(run.mlflow_run_id, plot, "report")
    return run.model_copy(update={"report": str(path)})


def sweep(runs: Runs, tracking: MlflowRuns, api: str | None, spare: str = "") -> list[RunRecord]:
    """Mark runs whose process vanished as crashed: here, in MLflow and in Prefect; those marked.

    `spare`: a Prefect flow run to leave alone, this very one: on a Retry its run looks dead until now.
    """
    return [
        bury(runs, run, GONE, tracking, None if run.prefect_flow_run_id == spare else api)
        for run in runs.all()
        if run.dead
    ]


def bury(
    runs: Runs, run: RunRecord, reason: str, tracking: MlflowRuns, api: str | None
) -> RunRecord:
    """Mark a dead run as crashed in its record, in MLflow, and in Prefect if its server is known."""
    buried = runs.bury(run, reason)
    if run.mlflow_run_id is not None:
        # Not by the run's URI: the same database has another one while the stack is up.
        tracking.bury(run, reason)
    if api and run.prefect_flow_run_id:
        mark_crashed(api, run.prefect_flow_run_id, reason, since=run.owner.since)
    return buried
