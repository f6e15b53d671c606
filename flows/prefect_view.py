"""What a person sees of a run in Prefect's page: log lines, a progress bar, links, the summary."""

from __future__ import annotations

import contextvars
import logging
import time
from typing import Any

from trainwright.flows.execute import Engine, Watcher
from trainwright.flows.session import PrefectLink
from trainwright.stages.contract import StageRecord
from trainwright.stages.settings import without_credentials

log = logging.getLogger(__name__)

_watcher: contextvars.ContextVar[Watcher | None] = contextvars.ContextVar("watcher", default=None)


def use_watcher(watcher: Watcher) -> None:
    """Have flows of this process tell `watcher` (the command line's live lines)."""
    _watcher.set(watcher)


def current_watcher() -> Watcher:
    """The command line's watcher; in a worker, one that speaks to Prefect's page."""
    return _watcher.get() or PrefectWatcher()


def this_flow_run() -> PrefectLink | None:
    """The Prefect flow run that this code runs in."""
    from prefect import runtime

    flow_run_id = runtime.flow_run.id
    if not flow_run_id:
        return None
    url = runtime.flow_run.ui_url
    return PrefectLink(str(flow_run_id), None if url is None else without_credentials(url))


class PrefectWatcher:
    """Tells Prefect's page: a line at start and end of a step, and a progress bar between.

    Step logs stay in files and figures in MLflow: Prefect's log table would grow without bound.
    """

    _EVERY = 3.0

    def __init__(self) -> None:
        self._artifact: Any = None
        self._last = 0.0

    def started(self, record: StageRecord) -> None:
        """A line with the reason and the log's path."""
        self._log(f"{record.step}: running ({record.why}); log: {record.log}")
        self._artifact = None

    def progressed(self, record: StageRecord, progress: dict[str, Any]) -> None:
        """Move the step's progress bar, every few seconds."""
        if time.monotonic() - self._last < self._EVERY or not progress.get("total"):
            return
        self._last = time.monotonic()
        try:
            self._move_bar(record, progress)
        except Exception as error:
            # The page shows a stage; that it cannot for now must not end the stage.
            log.warning("Prefect's progress bar stands still: %s", without_credentials(error))

    def _move_bar(self, record: StageRecord, progress: dict[str, Any]) -> None:
        from prefect.artifacts import create_progress_artifact, update_progress_artifact

        percent = 100.0 * progress.get("step", 0) / progress["total"]
        if self._artifact is None:
            self._artifact = create_progress_artifact(
                percent, key=f"{record.step}-progress", description=progress["phase"]
            )
        else:
            update_progress_artifact(
                self._artifact, percent, description=describe_progress(progress)
            )

    def ended(self, record: StageRecord) -> None:
        """A line with the outcome."""
        figures = ", ".join(f"{k} {v:.5g}" for k, v in record.result.metrics.items())
        tail = record.error or figures
        self._log(f"{record.step}: {record.state} after {record.seconds:.1f} s; {tail}")

    @staticmethod
    def _log(message: str) -> None:
        from prefect.exceptions import MissingContextError
        from prefect.logging import get_run_logger

        try:
            get_run_logger().info(message)
        except MissingContextError:
            print(message)


def describe_progress(progress: dict[str, Any]) -> str:
    """`train 120/400 · loss 4.93 · 2.9k tokens/s · ETA 1:31`."""
    parts = [str(progress.get("phase", ""))]
    if progress.get("total"):
        parts[0] += f" {progress.get('step', 0)}/{progress['total']}"
    for key, value in progress.items():
        if key in ("time", "phase", "step", "total", "eta"):
            continue
        if key == "tokens_per_s":
            parts.append(f"{value:,.0f} tokens/s")
        else:
            parts.append(f"{key.replace('_', ' ')} {value:.4g}")
    if "eta" in progress:
        minutes, seconds = divmod(int(progress["eta"]), 60)
        parts.append(f"ETA {minutes}:{seconds:02d}")
    return " · ".join(parts)


def publish(engine: Engine) -> None:
    """Leave the summary and the links as artifacts of the flow run."""
    try:
        _publish(engine)
    except Exception as error:
        log.warning("Prefect's page gets no summary: %s", without_credentials(error))


def _publish(engine: Engine) -> None:
    from prefect.artifacts import create_link_artifact, create_markdown_artifact

    from trainwright.flows import report

    text = report.markdown(engine.run, engine.runs.steps(engine.run.id))
    create_markdown_artifact(text, key="summary", description=f"Run {engine.run.id}")
    uri = engine.run.mlflow_uri or ""
    if uri.startswith("http") and engine.tracking is not None and engine.run.mlflow_run_id:
        link = f"{uri}/#/experiments/{engine.tracking.experiment()}/runs/{engine.run.mlflow_run_id}"
        create_link_artifact(link, key="mlflow", description="This run in MLflow")
