"""MLflow as the flow uses it: one parent run a pipeline run, one child a step, found again by tag.

The stage sends its own series; run states are set here, by the supervisor, since a killed client leaves
its run RUNNING. An MLflow that cannot be reached never stops a pipeline: it is told once.
"""

from __future__ import annotations

import functools
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from trainwright.flows.chain import StepName
from trainwright.flows.runs import RunRecord
from trainwright.stages.contract import StageRecord, StageState
from trainwright.stages.settings import without_credentials

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger(__name__)

EXPERIMENT = "trainwright"
RUN_TAG = "trainwright.run"
STEP_TAG = "trainwright.step"

_AWAY_SECONDS = 60.0

_STATUS = {
    StageState.COMPLETED: "FINISHED",
    StageState.REUSED: "FINISHED",
    StageState.FAILED: "FAILED",
    StageState.CANCELLED: "KILLED",
    StageState.CRASHED: "KILLED",
    StageState.RUNNING: "RUNNING",
}

A = ParamSpec("A")
T = TypeVar("T")


def _forgiving(method: Callable[A, T]) -> Callable[A, T | None]:
    @functools.wraps(method)
    def call(*args: A.args, **kwargs: A.kwargs) -> T | None:
        tracking = args[0]
        assert isinstance(tracking, MlflowRuns)
        if tracking.away:
            return None
        try:
            return method(*args, **kwargs)
        except Exception as error:
            tracking.give_up_for_now(error)
            return None

    return call


def _open_once(path: str) -> None:
    """Raise if the database cannot be opened: MLflow would try for minutes."""
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA schema_version")


class MlflowRuns:
    """The MLflow side of one pipeline run."""

    def __init__(self, uri: str, artifact_root: Path | None = None) -> None:
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        self.uri = uri
        self._away_until = 0.0
        self._told = False
        self._root = artifact_root
        self._cached: MlflowClient | None = None
        self._experiment: str | None = None

    @property
    def away(self) -> bool:
        """Whether it failed a moment ago: it is left in peace for a while, so that no step waits."""
        return time.monotonic() < self._away_until

    def give_up_for_now(self, error: Exception) -> None:
        """Leave MLflow in peace for a while, and say so once."""
        self._away_until = time.monotonic() + _AWAY_SECONDS
        if not self._told:
            log.warning(
                "MLflow at %s cannot be used (%s): the run goes on without it; its figures stay "
                "in the run's records",
                without_credentials(self.uri),
                without_credentials(error).partition("\n")[0] or type(error).__name__,
            )
        self._told = True

    @property
    def client(self) -> MlflowClient:
        """The client, imported on first use."""
        if self._cached is None:
            from mlflow import MlflowClient

            for name in ("alembic", "mlflow.store.db.utils"):
                logging.getLogger(name).setLevel(logging.WARNING)
            if self.uri.startswith("sqlite:///"):
                _open_once(self.uri.removeprefix("sqlite:///"))
            self._cached = MlflowClient(tracking_uri=self.uri)
        return self._cached

    def experiment(self) -> str:
        """Id of the product's experiment, created on first use."""
        if self._experiment is None:
            found = self.client.get_experiment_by_name(EXPERIMENT)
            if found is not None:
                self._experiment = str(found.experiment_id)
            else:
                location = None
                if self.uri.startswith("sqlite:") and self._root is not None:
                    location = (self._root / EXPERIMENT).as_uri()
                self._experiment = str(self.client.create_experiment(EXPERIMENT, location))
        return self._experiment

    @_forgiving
    def start_run(self, run: RunRecord) -> str:
        """The parent run of a pipeline run: found by tag and reopened, or created."""
        found = self._find(f"tags.`{RUN_TAG}` = '{run.id}' and tags.`{STEP_TAG}` = '-'")
        tags = {
            RUN_TAG: run.id,
            STEP_TAG: "-",
            "trainwright.kind": run.kind,
            "trainwright.recipe": run.recipe_name,
            "prefect.flow_run_id": run.prefect_flow_run_id or "",
            "prefect.flow_run_url": run.prefect_url or "",
            "mlflow.note.content": _note(run),
        }
        return self._open(found, run.id, tags)

    @_forgiving
    def start_step(self, run: RunRecord, step: str, params: dict[str, Any]) -> str:
        """The child run of a step: a retry or a rerun goes on with the same one."""
        assert run.mlflow_run_id is not None
        found = self._find(f"tags.`{RUN_TAG}` = '{run.id}' and tags.`{STEP_TAG}` = '{step}'")
        tags = {
            RUN_TAG: run.id,
            STEP_TAG: step,
            "trainwright.recipe": run.recipe_name,
            "mlflow.parentRunId": run.mlflow_run_id,
            "prefect.flow_run_id": run.prefect_flow_run_id or "",
            "prefect.flow_run_url": run.prefect_url or "",
        }
        child = self._open(found, step, tags)
        if found is None:
            self._log_params(child, params)
        return child

    def _find(self, condition: str) -> str | None:
        found = self.client.search_runs([self.experiment()], condition, max_results=1)
        return found[0].info.run_id if found else None

    def _open(self, found: str | None, name: str, tags: dict[str, str]) -> str:
        from mlflow.entities import RunTag

        if found is None:
            created = self.client.create_run(self.experiment(), run_name=name, tags=tags)
            return str(created.info.run_id)
        self.client.update_run(found, status="RUNNING")
        self.client.log_batch(found, tags=[RunTag(k, v) for k, v in tags.items()])
        return found

    def _log_params(self, run_id: str, params: dict[str, Any]) -> None:
        from mlflow.entities import Param

        flat = [Param(k, str(v)[:6000]) for k, v in flatten(params).items()]
        for start in range(0, len(flat), 100):
            self.client.log_batch(run_id, params=flat[start : start + 100])

    @_forgiving
    def end_step(self, run: RunRecord, record: StageRecord) -> None:
        """Final figures on the step's run and (as `step.figure`) on the parent; then its state."""
        from mlflow.entities import RunTag

        if record.mlflow_run_id is None:
            return
        tags = {
            "trainwright.state": record.state.value,
            "trainwright.fingerprint": record.fingerprint,
            "trainwright.artifact": record.artifact.uri if record.artifact else "",
            "trainwright.artifact_digest": record.artifact.digest if record.artifact else "",
            "trainwright.why": (record.why or "")[:4000],
            "trainwright.error": (record.error or "")[:4000],
        }
        self.client.log_batch(
            record.mlflow_run_id,
            metrics=_finals(record.result.metrics, "final_"),
            tags=[RunTag(k, v) for k, v in tags.items()],
        )
        if run.mlflow_run_id is not None:
            self.client.log_batch(
                run.mlflow_run_id, metrics=_finals(record.result.metrics, f"{record.step}.")
            )
        self.client.set_terminated(record.mlflow_run_id, _STATUS[record.state])

    def end_run(self, run: RunRecord, steps: Mapping[StepName, StageRecord]) -> None:
        """Set the parent run's state, and those of steps whose end MLflow did not hear of."""
        self._away_until = 0.0  # Once more, even if it was away a moment ago.
        self._end_run(run, steps)

    @_forgiving
    def _end_run(self, run: RunRecord, steps: Mapping[StepName, StageRecord]) -> None:
        if run.mlflow_run_id is None:
            return
        for left in self._still_running(run):
            record = steps.get(left.data.tags.get(STEP_TAG))
            if record is not None and record.state is not StageState.RUNNING:
                self.client.set_terminated(left.info.run_id, _STATUS[record.state])
        status = {"completed": "FINISHED", "failed": "FAILED"}.get(run.state.value, "KILLED")
        self.client.set_tag(run.mlflow_run_id, "trainwright.state", run.state.value)
        self.client.set_terminated(run.mlflow_run_id, status)

    def _still_running(self, run: RunRecord) -> list[Any]:
        condition = f"tags.`{RUN_TAG}` = '{run.id}' and attributes.status = 'RUNNING'"
        return list(self.client.search_runs([self.experiment()], condition))

    @_forgiving
    def attach(self, run_id: str, path: Path, folder: str | None = None) -> None:
        """Attach a small file to a run."""
        self.client.log_artifact(run_id, str(path), folder)

    @_forgiving
    def attach_text(self, run_id: str, text: str, path: str) -> None:
        """Attach a text to a run as a file."""
        self.client.log_text(run_id, text, path)

    @_forgiving
    def register(self, run: RunRecord, record: StageRecord) -> str:
        """Register the int8 export with the alias `candidate`; the version.

        MLflow holds the manifest; the weights stay in the store, at the version's tag
        `trainwright.artifact`.
        """
        assert record.mlflow_run_id is not None and record.artifact is not None
        name = model_name(run)
        self._ensure_model(name, run)
        known = self.client.search_model_versions(f"name = '{name}'")
        for version in known:
            if version.tags.get("trainwright.artifact_digest") == record.artifact.digest:
                number = str(version.version)
                break
        else:
            created = self.client.create_model_version(
                name,
                source=f"runs:/{record.mlflow_run_id}/manifest",
                run_id=record.mlflow_run_id,
                tags={
                    RUN_TAG: run.id,
                    "trainwright.artifact": record.artifact.uri,
                    "trainwright.artifact_digest": record.artifact.digest,
                },
            )
            number = str(created.version)
        self.client.set_registered_model_alias(name, "candidate", number)
        return number

    def _ensure_model(self, name: str, run: RunRecord) -> None:
        from mlflow.exceptions import MlflowException

        try:
            self.client.get_registered_model(name)
        except MlflowException:
            self.client.create_registered_model(
                name, description=f"Aligned int8 models of the recipe {run.recipe_name!r}"
            )

    @_forgiving
    def promote(self, run: RunRecord, digest: str) -> None:
        """Give the alias `validated` to the version of that artifact: only the gate calls this."""
        name = model_name(run)
        for version in self.client.search_model_versions(f"name = '{name}'"):
            if version.tags.get("trainwright.artifact_digest") == digest:
                self.client.set_registered_model_alias(name, "validated", str(version.version))
                return

    @_forgiving
    def bury(self, run: RunRecord, reason: str) -> None:
        """Mark a dead run's MLflow runs as killed."""
        for found in self._still_running(run):
            self.client.set_tag(found.info.run_id, "trainwright.error", reason)
            self.client.set_terminated(found.info.run_id, "KILLED")


def model_name(run: RunRecord) -> str:
    """Name of the registered model of a run's recipe."""
    return f"trainwright-{run.recipe_name}"


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested parameters as `a.b.c`; lists by number."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
            flat |= flatten({str(i): item for i, item in enumerate(value)}, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _finals(metrics: dict[str, float], prefix: str) -> list[Any]:
    import math

    from mlflow.entities import Metric

    stamp = int(time.time() * 1000)
    return [
        Metric(f"{prefix}{name}", float(value), stamp, 0)
        for name, value in metrics.items()
        if math.isfinite(value)
    ]


def _note(run: RunRecord) -> str:
    lines = [f"Pipeline run `{run.id}` of the recipe `{run.recipe_name}`."]
    if run.prefect_url:
        lines.append(f"[Open it in Prefect]({run.prefect_url})")
    return "\n\n".join(lines)
