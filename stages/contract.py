"""The border between flows and stages: a `StageSpec` goes in, a `StageRecord` comes out.

A stage is a program, `python -m trainwright.stages <program> --spec PATH`. It writes one artifact and
ends with one of the exit codes below. Flows know a stage by nothing but this file, the store and its
parameters.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from enum import Enum, IntEnum, StrEnum
from pathlib import Path
from typing import Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

Metrics = dict[str, float]


class ExitCode(IntEnum):
    """How a stage ended, and so whether another try can help.

    The numbers follow sysexits.h where it has a meaning of the kind.
    """

    OK = 0
    UNEXPECTED = 1
    """An error nobody foresaw (a bug): never retried, the log has the traceback."""
    USAGE = 64
    """Parameters that cannot work: never retried."""
    DATA = 65
    """Input data that cannot be used: never retried."""
    GATE = 66
    """The model did not pass a gate: never retried."""
    NODE_FAULT = 70
    """This machine is at fault: retried, elsewhere where there is an elsewhere."""
    TRANSIENT = 75
    """A store, network or lock failed for now: retried."""
    BREAKER = 78
    """A circuit breaker is open: a person decides."""
    CANCELLED = 143
    """Somebody asked for the end (SIGTERM): never retried."""

    @property
    def retryable(self) -> bool:
        """Whether another try can help."""
        return self in (ExitCode.TRANSIENT, ExitCode.NODE_FAULT)


def exit_code_of(returncode: int) -> ExitCode:
    """The meaning of a process's return code (negative: ended by that signal).

    SIGTERM and SIGINT are a cancel. SIGKILL, SIGBUS and SIGSEGV that no one asked for (out of memory,
    bad hardware, a crashed native library) are a fault of the node.
    """
    if returncode in (-15, -2, 130):
        return ExitCode.CANCELLED
    if returncode < 0 or returncode in (137, 139, 135):
        return ExitCode.NODE_FAULT
    try:
        return ExitCode(returncode)
    except ValueError:
        return ExitCode.UNEXPECTED


class StageError(Exception):
    """Ends a stage with a given exit code and one sentence: what is wrong, where, and the way out."""

    exit_code = ExitCode.UNEXPECTED


class UsageError(StageError):
    """Parameters that cannot work."""

    exit_code = ExitCode.USAGE


class DataError(StageError):
    """Input data that cannot be used."""

    exit_code = ExitCode.DATA


class GateError(StageError):
    """The model did not pass a gate."""

    exit_code = ExitCode.GATE


class TransientError(StageError):
    """Something outside failed for now; another try can help."""

    exit_code = ExitCode.TRANSIENT


class NodeFaultError(StageError):
    """This machine is at fault; another try elsewhere can help."""

    exit_code = ExitCode.NODE_FAULT


class BreakerOpenError(StageError):
    """A circuit breaker is open; a person decides."""

    exit_code = ExitCode.BREAKER


class Strict(BaseModel):
    """A model that refuses unknown keys, and whose JSON keeps NaN and infinity (as strings)."""

    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="strings")


class Params(Strict):
    """Parameters of a stage. Every field has a description with its unit.

    A field that does not bear on the output (worker counts, paths, intervals) is declared with
    `runtime(...)` and so stays out of the fingerprint.
    """

    def identity(self) -> dict[str, Any]:
        """The fields that bear on the output, as JSON values: what the fingerprint covers."""
        return _identity(self)

    def reads_outside(self) -> bool:
        """Whether the program reads what is outside the store, so that `identify` must be asked."""
        return False


def runtime(default: Any, description: str, **constraints: Any) -> Any:
    """A parameter that does not bear on the output: it stays out of the fingerprint."""
    return Field(
        default, description=description, json_schema_extra={"identity": False}, **constraints
    )


def _identity(model: BaseModel, where: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, field in type(model).model_fields.items():
        extra = field.json_schema_extra
        if isinstance(extra, dict) and extra.get("identity") is False:
            continue
        out[name] = _identity_value(getattr(model, name), f"{where}.{name}" if where else name)
    return out


def _identity_value(value: Any, where: str) -> Any:
    if isinstance(value, BaseModel):
        return _identity(value, where)
    if isinstance(value, list | tuple):
        return [_identity_value(item, f"{where}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, dict):
        return _identity_dict(value, where)
    if isinstance(value, Enum):
        return _identity_value(value.value, where)
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"parameter {where!r} is {value}: give a finite number")
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise TypeError(
        f"parameter {where!r} of type {type(value).__name__} cannot be fingerprinted: "
        "use str, int, float, bool, an enum, a list, a dict or a model of those"
    )


def _identity_dict(value: dict[Any, Any], where: str) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, item in value.items():
        name = str(key.value if isinstance(key, Enum) else key)
        if name in out:
            raise UsageError(f"parameter {where!r} has two keys that read {name!r}")
        out[name] = _identity_value(item, f"{where}.{name}")
    return out


class ArtifactRef(Strict):
    """Where a finished artifact is, and what is in it."""

    uri: str = Field(description="URI of the artifact's folder, the one that holds manifest.json")
    digest: str = Field(description="sha256 over the artifact's files (paths, sizes, sha256)")


class TrackingIds(Strict):
    """Where the stage's metrics go in MLflow."""

    uri: str = Field(
        description="MLflow tracking URI, without user and password: specs lie in files, so those "
        "come by MLFLOW_TRACKING_URI"
    )
    run_id: str = Field(description="MLflow run of this stage, a child of the pipeline's run")


class StageSpec(Strict):
    """All that a stage is told."""

    run_id: str = Field(description="The pipeline run")
    step: str = Field(description="Name of the step in the chain, unique in a run")
    program: str = Field(description="Name of the stage program")
    params: dict[str, Any] = Field(description="Parameters of the program")
    inputs: dict[str, ArtifactRef] = Field(default={}, description="Input artifacts by name")
    external: dict[str, str] = Field(
        default={}, description="Digests of what is read from outside the store, by name"
    )
    fingerprint: str = Field(description="What the output is a function of (stages.fingerprint)")
    output: str = Field(description="URI of the artifact's folder")
    work: str = Field(description="Local folder for scratch and snapshots, one a fingerprint")
    cache: str = Field(description="Local folder for copies of remote inputs")
    outcome: str = Field(description="Local path where the stage leaves its Outcome")
    progress: str = Field(description="Local path of the progress file (JSON lines)")
    tracking: TrackingIds | None = Field(default=None, description="MLflow, if tracked")
    attempt: int = Field(default=1, description="1 for the first try")
    lease_ttl: float = Field(
        default=20.0, description="Seconds without heartbeat until a lease is dead"
    )


class Sample(Strict):
    """A prompt and what the model made of it."""

    prompt: str
    completion: str


class StageResult(Strict):
    """What a stage program returns; it goes into the manifest."""

    metrics: Metrics = Field(default={}, description="Final figures, by metric name")
    summary: dict[str, Any] = Field(default={}, description="Tables and texts for the report")
    samples: list[Sample] = Field(default=[], description="Sample completions")


class Outcome(Strict):
    """How one attempt of a stage ended, written by the stage itself."""

    exit_code: int
    error: str | None = None
    artifact: ArtifactRef | None = None


class StageState(StrEnum):
    """State of a step within a run."""

    RUNNING = "running"
    COMPLETED = "completed"
    REUSED = "reused"
    FAILED = "failed"
    CANCELLED = "cancelled"
    CRASHED = "crashed"


class StageRecord(Strict):
    """What happened to a step of a run. Records are the truth of what is done; Prefect shows it."""

    run_id: str
    step: str
    program: str
    state: StageState
    fingerprint: str = ""
    params: dict[str, Any] = {}
    inputs: dict[str, ArtifactRef] = {}
    external: dict[str, str] = {}
    attempts: int = 0
    exit_code: int | None = None
    error: str | None = None
    started_at: AwareDatetime
    ended_at: AwareDatetime | None = None
    artifact: ArtifactRef | None = None
    result: StageResult = StageResult()
    log: str | None = Field(default=None, description="Path of the last attempt's log")
    mlflow_run_id: str | None = None
    why: str | None = Field(default=None, description="Why it ran or was reused")

    @property
    def done(self) -> bool:
        """Whether the step's artifact can be read."""
        return self.state in (StageState.COMPLETED, StageState.REUSED)

    @property
    def seconds(self) -> float:
        """Wall time so far, in seconds."""
        return ((self.ended_at or utcnow()) - self.started_at).total_seconds()


def utcnow() -> datetime:
    """The time now, with its zone."""
    return datetime.now(UTC)


def read_spec(path: str | Path) -> StageSpec:
    """Read a spec from a local file."""
    return StageSpec.model_validate_json(Path(path).read_bytes())
