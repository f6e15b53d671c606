"""What outlives a flow that is killed: a small process that then sets the run's states right.

The flow holds a pipe to it. When the pipe closes without a goodbye, the flow is gone: stages end by
themselves (their own pipe), and the watchdog marks the run as crashed in its record, in MLflow and in
Prefect, and ends the in-process Prefect server that the flow had started.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from trainwright.flows.prefect_local import OWN_SERVER_PID
from trainwright.flows.prefect_states import mark_crashed
from trainwright.flows.runs import RunRecord
from trainwright.stages.settings import Settings
from trainwright.stages.watch.processes import end_tree

log = logging.getLogger(__name__)

_GOODBYE = "goodbye"
REASON = "the process that ran the flow was killed"


@contextmanager
def guard(run: RunRecord, place: Settings) -> Iterator[None]:
    """Have a watchdog while the body runs."""
    path = place.logs / run.id / "watchdog.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "trainwright.flows.watchdog"],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
            text=True,
        )
    assert process.stdin is not None
    _say(process.stdin, {"run": run.id, "store": place.store, "mlflow": place.mlflow_uri})
    _say(process.stdin, {"prefect": _prefect_of(run), "flow": os.getpid()})
    try:
        yield
    finally:
        _say(process.stdin, {_GOODBYE: True})
        try:
            process.stdin.close()
        except OSError:
            pass
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            # It has nothing left to do: what the flow did is done, whatever holds it up.
            process.kill()
            process.wait()


def _say(pipe: IO[str], message: dict[str, object]) -> None:
    try:
        pipe.write(json.dumps(message) + "\n")
        pipe.flush()
    except (BrokenPipeError, ValueError):
        log.warning(
            "the run's watchdog is gone: if this flow is killed, its run stays `running` "
            "until the next trainwright command"
        )


def _prefect_of(run: RunRecord) -> dict[str, object]:
    """Where the flow run's state is set, and the server that belongs to the flow alone."""
    return {
        "api": os.environ.get("PREFECT_API_URL"),
        "flow_run": run.prefect_flow_run_id,
        "server": os.environ.get(OWN_SERVER_PID),
    }


def main() -> None:
    """Read messages until the pipe closes; then act unless a goodbye was said."""
    known: dict[str, object] = {}
    for line in sys.stdin:
        known.update(json.loads(line))
    if known.get(_GOODBYE) or "run" not in known:
        return
    logging.basicConfig(level=logging.INFO)
    prefect = known.get("prefect")
    try:
        mark_prefect = _mark_record(known)
    except Exception:
        # A store that is away must not keep the rest from being set right.
        log.exception("the run's record could not be marked")
        mark_prefect = True
    if isinstance(prefect, dict):
        if mark_prefect and prefect.get("api") and prefect.get("flow_run"):
            mark_crashed(str(prefect["api"]), str(prefect["flow_run"]), REASON)
        _end_server(prefect.get("server"))


def _mark_record(known: dict[str, object]) -> bool:
    """Mark the run as crashed, unless another flow (a Retry) goes on with it already; whether so."""
    from trainwright.flows.mlflow_runs import MlflowRuns
    from trainwright.flows.runs import Runs, RunState
    from trainwright.stages.store import open_store

    runs = Runs(open_store(str(known["store"])))
    run = runs.read(str(known["run"]))
    if run.owner.pid != known["flow"]:
        return False
    if run.state is RunState.RUNNING:
        runs.bury(run, REASON)
    if run.mlflow_run_id is not None:
        MlflowRuns(str(known["mlflow"])).bury(run, REASON)
    return True


def _end_server(pid: object) -> None:
    if pid is not None and _is_prefect_server(int(str(pid))):
        end_tree(int(str(pid)), grace=5.0)


def _is_prefect_server(pid: int) -> bool:
    try:
        return b"prefect" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


if __name__ == "__main__":
    main()
