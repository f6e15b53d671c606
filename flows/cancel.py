"""Cancelling a run from the command line."""

from __future__ import annotations

import os
import signal
import time

from trainwright.flows.mlflow_runs import MlflowRuns
from trainwright.flows.prefect_states import client_of
from trainwright.flows.runs import RunRecord, Runs, RunState
from trainwright.flows.session import GONE, bury
from trainwright.stages.contract import TransientError, UsageError
from trainwright.stages.settings import settings, without_credentials

_WAIT_SECONDS = 60.0


def cancel_run(runs: Runs, run: RunRecord) -> str:
    """End a run and what it started; a sentence on what was done."""
    if run.state is not RunState.RUNNING:
        raise UsageError(f"run {run.id} is not running: it is {run.state}")
    if run.dead:
        _bury(runs, run, GONE)
        return f"run {run.id} was dead already; it is marked as crashed"
    if not run.owner.here:
        return _cancel_by_prefect(run)
    os.kill(run.owner.pid, signal.SIGTERM)
    deadline = time.monotonic() + _WAIT_SECONDS
    while time.monotonic() < deadline:
        now = runs.load(run.id)
        if now.state is not RunState.RUNNING:
            return f"run {run.id} is {now.state}"
        if now.dead:
            _bury(runs, now, "cancelled")
            return f"run {run.id} was ended"
        time.sleep(0.3)
    raise TransientError(
        f"run {run.id} has not ended {_WAIT_SECONDS:.0f} s after SIGTERM to process {run.owner.pid}"
    )


def _bury(runs: Runs, run: RunRecord, reason: str) -> None:
    place = settings()
    tracking = MlflowRuns(place.mlflow_uri, place.home / "mlartifacts")
    bury(runs, run, reason, tracking, place.prefect_api)


def _cancel_by_prefect(run: RunRecord) -> str:
    """Ask Prefect: the worker where the flow runs ends it."""
    api = settings().prefect_api
    if api is None or run.prefect_flow_run_id is None:
        raise UsageError(
            f"run {run.id} runs on {run.owner.host}: cancel it there, or set PREFECT_API_URL"
        )
    import httpx

    body = {"state": {"type": "CANCELLING", "name": "Cancelling"}, "force": False}
    try:
        with client_of(api) as client:
            path = f"/flow_runs/{run.prefect_flow_run_id}/set_state"
            client.post(path, json=body).raise_for_status()
    except httpx.HTTPError as error:
        raise TransientError(
            without_credentials(f"Prefect at {api} did not take the cancel: {error}")
        ) from None
    return f"run {run.id} is being cancelled by its worker on {run.owner.host}"
