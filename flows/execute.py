"""One step of a run: compute the fingerprint, reuse or launch, wait, record. Knows no Prefect."""

from __future__ import annotations

import json
import logging
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

from trainwright.flows.chain import STEPS, Selection, Step, StepName
from trainwright.flows.launchers import Handle, Job, Launcher, make_launcher
from trainwright.flows.mlflow_runs import MlflowRuns
from trainwright.flows.recipe import Recipe
from trainwright.flows.runs import DamagedRecordError, RunRecord, Runs
from trainwright.stages.artifact import Artifact, DamagedArtifactError, Manifest, key_of
from trainwright.stages.contract import (
    ArtifactRef,
    DataError,
    ExitCode,
    Outcome,
    Params,
    StageError,
    StageRecord,
    StageResult,
    StageSpec,
    StageState,
    TrackingIds,
    UsageError,
    exit_code_of,
    utcnow,
)
from trainwright.stages.fingerprint import drift, fingerprint, identity
from trainwright.stages.progress import last_progress
from trainwright.stages.registry import PROGRAMS
from trainwright.stages.settings import Settings, without_credentials
from trainwright.stages.store import NotFoundError, StoreError

log = logging.getLogger(__name__)


class Watcher(Protocol):
    """Who is told what happens, as it happens (the console)."""

    def started(self, record: StageRecord) -> None:
        """A step was launched."""

    def progressed(self, record: StageRecord, progress: dict[str, Any]) -> None:
        """A step reported progress."""

    def ended(self, record: StageRecord) -> None:
        """A step was reused, or came to its end."""


class Silent:
    """A watcher that shows nothing."""

    def started(self, record: StageRecord) -> None:
        """Nothing."""

    def progressed(self, record: StageRecord, progress: dict[str, Any]) -> None:
        """Nothing."""

    def ended(self, record: StageRecord) -> None:
        """Nothing."""


class StepFailedError(Exception):
    """A step that ended otherwise than well; `retryable` says whether another try can help."""

    def __init__(self, record: StageRecord) -> None:
        self.record = record
        self.code = ExitCode(record.exit_code if record.exit_code is not None else 1)
        super().__init__(f"{record.step}: {record.error}")

    @property
    def retryable(self) -> bool:
        """Whether another try can help."""
        return self.code.retryable


@dataclass(frozen=True)
class Decision:
    """What is to happen to a step, and why."""

    step: Step
    params: Params
    reuse: bool
    why: str
    fingerprint: str
    identity: dict[str, Any]
    inputs: dict[str, ArtifactRef]
    external: dict[str, str]
    artifact: Artifact
    manifest: Manifest | None = None


@dataclass
class Engine:
    """Executes steps of one run."""

    settings: Settings
    recipe: Recipe
    selection: Selection
    runs: Runs
    run: RunRecord
    watcher: Watcher
    tracking: MlflowRuns | None = None

    def __post_init__(self) -> None:
        self.launcher: Launcher = make_launcher(self.recipe.execution.launcher)
        self._done: dict[StepName, ArtifactRef] = {}
        # A Retry of the same flow run does not force again what that has forced already.
        self._forced = {StepName(name) for name in self.run.options.get("forced", [])}
        self._externals: dict[StepName, dict[str, str]] = {}

    # -- deciding

    def decide(self, name: StepName) -> Decision:
        """Whether the step's artifact exists for these parameters and inputs; the inputs must."""
        step, params = STEPS[name], self.recipe.step(name)
        program = PROGRAMS[step.program]
        inputs = {key: self._done[source] for key, source in step.inputs.items()}
        external = self._external(name, params)
        what = identity(program.name, program.version, params, inputs, external)
        print_ = fingerprint(program.name, program.version, params, inputs, external)
        artifact = Artifact(self.runs.store, f"artifacts/{program.name}/{print_[:24]}")
        manifest, damage = self._finished(artifact)
        reuse = manifest is not None and not self._must_force(name)
        if reuse:
            why = "same parameters and inputs"
        elif manifest is not None or name in self._forced:
            why = "forced"
        else:
            why = damage or self.why_new(step, what)
        return Decision(
            step, params, reuse, why, print_, what, inputs, external, artifact, manifest
        )

    def assume(self, name: StepName, ref: ArtifactRef) -> None:
        """Take the artifact as the step's, for what follows."""
        self._done[name] = ref

    def _must_force(self, name: StepName) -> bool:
        return name in self.selection.force and name not in self._forced

    def _external(self, name: StepName, params: Params) -> dict[str, str]:
        if not params.reads_outside():
            return {}
        if name not in self._externals:
            # By process: plans have no run of their own, and two may be made at once.
            file = f"{self.run.id}-{os.getpid()}-{name}.json"
            path = self.settings.work / "identify" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                path.write_text(params.model_dump_json(by_alias=True))
                self._externals[name] = self.launcher.identify(STEPS[name].program, path)
            finally:
                path.unlink(missing_ok=True)
        return self._externals[name]

    def _finished(self, artifact: Artifact) -> tuple[Manifest | None, str]:
        """The manifest of a complete, undamaged artifact; a damaged one is set aside, and told."""
        try:
            manifest = artifact.manifest()
            if manifest is not None:
                artifact.verify(manifest)
            return manifest, ""
        except DamagedArtifactError as error:
            log.warning("not reused: %s", error)
            return None, f"damaged: {error}"

    def why_new(self, step: Step, what: dict[str, Any]) -> str:
        """What moved since the newest run that has an artifact of this step, field by field."""
        for run in self.runs.all():
            if run.id == self.run.id:
                continue
            record = self._record(run.id, step.name)
            if record is None or record.artifact is None:
                continue
            old = self._identity_of(record.artifact)
            if old is not None:
                moved = drift(old, what)
                return "; ".join(moved[:6]) or f"its artifact of run {run.id} is gone"
        return "never run before"

    def _identity_of(self, ref: ArtifactRef) -> dict[str, Any] | None:
        try:
            manifest = Artifact(self.runs.store, key_of(ref)).manifest()
        except (DataError, UsageError, StoreError):
            return None
        return None if manifest is None else manifest.identity

    def _record(self, run_id: str, step: StepName) -> StageRecord | None:
        """A step's record; None too if it is damaged: nothing rests on it here."""
        try:
            return self.runs.step(run_id, step)
        except DamagedRecordError:
            return None

    # -- executing

    def execute(self, name: StepName) -> StageRecord:
        """Reuse or run the step; its record. `StepFailedError` if it does not end well."""
        record = StageRecord(
            run_id=self.run.id,
            step=name,
            program=STEPS[name].program,
            state=StageState.RUNNING,
            started_at=utcnow(),
        )
        try:
            before = self._record(self.run.id, name)
            if before is not None and not before.done:
                record.attempts = before.attempts
            self._decide_and_do(record, name)
            return record
        except StageError as error:
            # Of the store, or of starting the stage: the step's own failures are `StepFailedError`.
            self._fail(record, error.exit_code, str(error))

    def _decide_and_do(self, record: StageRecord, name: StepName) -> None:
        decision = self.decide(name)
        record.fingerprint = decision.fingerprint
        record.params = decision.params.model_dump(mode="json", by_alias=True)
        record.inputs, record.external = decision.inputs, decision.external
        record.why = decision.why
        if decision.reuse and decision.manifest is not None:
            self._reuse(record, decision, decision.manifest)
        elif name in self.selection.wanted():
            self._launch(record, decision)
        else:
            self._fail(record, ExitCode.USAGE, self._not_wanted(name, decision))

    def _not_wanted(self, name: StepName, decision: Decision) -> str:
        return (
            f"stage '{name}' has no finished artifact for these parameters ({decision.why}) and this "
            f"run may not execute it; start from it instead: --from {name}"
        )

    def _reuse(self, record: StageRecord, decision: Decision, manifest: Manifest) -> None:
        # A try of this very run may have finished it just before the flow was killed.
        if manifest.run_id != self.run.id or record.attempts == 0:
            record.state = StageState.REUSED
        record.why = f"{decision.why}; made by run {manifest.run_id}"
        self._end(record, decision, manifest)

    def _launch(self, record: StageRecord, decision: Decision) -> None:
        self._clear_for_rerun(decision)
        record.attempts += 1
        record.log = str(self._log_path(record))
        record.mlflow_run_id = self._track(record)
        self.runs.save_step(record)
        self.watcher.started(record)
        spec = self._spec(record, decision)
        started = time.monotonic()
        handle = self.launcher.start(self._job(record, spec))
        try:
            code = self._follow(handle, record, spec, started)
        except BaseException as error:
            handle.cancel()
            self._interrupted(record, error)
            raise
        self._conclude(record, decision, spec, code)

    def _clear_for_rerun(self, decision: Decision) -> None:
        """Set a damaged or forced artifact's manifest aside: until the new one, it is not done."""
        if decision.manifest is None and not decision.why.startswith("damaged:"):
            return
        try:
            decision.artifact.set_aside(decision.why)
        except NotFoundError:
            pass
        if decision.step.name in self.selection.force:
            self._forced.add(decision.step.name)
            options = {**self.run.options, "forced": sorted(self._forced)}
            self.run = self.run.model_copy(update={"options": options})
            self.runs.save(self.run)

    def _track(self, record: StageRecord) -> str | None:
        if self.tracking is None or self.run.mlflow_run_id is None:
            return None
        return self.tracking.start_step(self.run, record.step, record.params)

    def _spec(self, record: StageRecord, decision: Decision) -> StageSpec:
        folder = self.settings.logs / self.run.id
        tracking = None
        if record.mlflow_run_id is not None and self.tracking is not None:
            uri = without_credentials(self.tracking.uri)
            tracking = TrackingIds(uri=uri, run_id=record.mlflow_run_id)
        return StageSpec(
            run_id=self.run.id,
            step=record.step,
            program=record.program,
            params=record.params,
            inputs=decision.inputs,
            external=decision.external,
            fingerprint=decision.fingerprint,
            output=decision.artifact.uri,
            work=str(self.settings.work / record.program / decision.fingerprint[:24]),
            cache=str(self.settings.cache),
            outcome=str(folder / f"{record.step}.attempt-{record.attempts}.outcome.json"),
            progress=str(self.progress_path(record.step)),
            tracking=tracking,
            attempt=record.attempts,
            lease_ttl=self.recipe.execution.lease_ttl_s,
        )

    def _job(self, record: StageRecord, spec: StageSpec) -> Job:
        path = (
            self.settings.logs / self.run.id / f"{record.step}.attempt-{record.attempts}.spec.json"
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(spec.model_dump_json(indent=1))
        Path(spec.outcome).unlink(missing_ok=True)
        environment = {"TORCH_EXTENSIONS_DIR": str(self.settings.torch_extensions)}
        if self.tracking is not None:
            environment["MLFLOW_TRACKING_URI"] = self.tracking.uri
        return Job(spec, path, self._log_path(record), environment)

    def _log_path(self, record: StageRecord) -> Path:
        return self.settings.logs / self.run.id / f"{record.step}.attempt-{record.attempts}.log"

    def progress_path(self, step: str) -> Path:
        """Where a step's progress lines go."""
        return self.settings.logs / self.run.id / f"{step}.progress.jsonl"

    def _follow(
        self, handle: Handle, record: StageRecord, spec: StageSpec, started: float
    ) -> int | None:
        limit = self.recipe.execution.timeout_s
        path, shown = Path(spec.progress), None
        while (code := handle.poll()) is None:
            progress = last_progress(path)
            if progress is not None and progress != shown:
                shown = progress
                self.watcher.progressed(record, progress)
            if limit is not None and time.monotonic() - started > limit:
                handle.cancel()
                return None
            time.sleep(0.2)
        return code

    def _conclude(
        self, record: StageRecord, decision: Decision, spec: StageSpec, returncode: int | None
    ) -> None:
        if returncode is None:
            limit = self.recipe.execution.timeout_s
            self._fail(record, ExitCode.BREAKER, f"ran longer than its limit of {limit:.0f} s")
        outcome = _read_outcome(Path(spec.outcome))
        code = exit_code_of(returncode)
        if code is not ExitCode.OK:
            error = outcome.error if outcome else None
            self._fail(record, code, error or _death(returncode, record.log))
        manifest, damage = self._finished(decision.artifact)
        if manifest is None:
            self._fail(record, ExitCode.DATA, damage or "ended well but left no finished artifact")
        if manifest.run_id != self.run.id:
            # It waited for the lease, and the other writer made what was wanted.
            record.state = StageState.REUSED
            record.why = f"{decision.why}; made meanwhile by run {manifest.run_id}"
        self._end(record, decision, manifest)

    def _end(self, record: StageRecord, decision: Decision, manifest: Manifest) -> None:
        if record.state is StageState.RUNNING:
            record.state = StageState.COMPLETED
        record.artifact = ArtifactRef(uri=decision.artifact.uri, digest=manifest.content)
        record.result, record.exit_code, record.ended_at = manifest.result, 0, utcnow()
        self.assume(StepName(record.step), record.artifact)
        if self.tracking is not None and self.run.mlflow_run_id is not None:
            if record.mlflow_run_id is None:
                record.mlflow_run_id = self._track(record)
            self.tracking.end_step(self.run, record)
            self._attach_manifest(record, manifest)
            self._register(record)
        self.runs.save_step(record)
        self.watcher.ended(record)

    def _attach_manifest(self, record: StageRecord, manifest: Manifest) -> None:
        assert self.tracking is not None
        if record.mlflow_run_id is not None:
            text = manifest.model_dump_json(indent=1)
            self.tracking.attach_text(record.mlflow_run_id, text, "manifest/manifest.json")

    def _register(self, record: StageRecord) -> None:
        assert self.tracking is not None
        if record.mlflow_run_id is None:
            return
        if record.step == StepName.QUANTIZE:
            self.tracking.register(self.run, record)
        elif record.step == StepName.ACCEPT and StepName.QUANTIZE in self._done:
            self.tracking.promote(self.run, self._done[StepName.QUANTIZE].digest)

    def _fail(self, record: StageRecord, code: ExitCode, error: str) -> NoReturn:
        state = StageState.CANCELLED if code is ExitCode.CANCELLED else StageState.FAILED
        self._end_badly(record, state, code, error)
        raise StepFailedError(record)

    def _interrupted(self, record: StageRecord, error: BaseException) -> None:
        """Record that the wait was broken off; the child has been ended already."""
        log.info("step %s was broken off (%s)", record.step, type(error).__name__)
        if isinstance(error, Exception):
            said = f"{type(error).__name__}: {error}"
            self._end_badly(record, StageState.FAILED, ExitCode.UNEXPECTED, said)
        else:
            self._end_badly(record, StageState.CANCELLED, ExitCode.CANCELLED, "cancelled")

    def _end_badly(
        self, record: StageRecord, state: StageState, code: ExitCode, error: str
    ) -> None:
        record.state, record.exit_code, record.error = state, int(code), error
        # Not the artifact of a step that ended well and whose record then could not be written.
        record.artifact, record.result, record.ended_at = None, StageResult(), utcnow()
        try:
            self.runs.save_step(record)
        except StoreError as failure:
            log.warning("the record of step %s could not be written: %s", record.step, failure)
        if self.tracking is not None:
            self.tracking.end_step(self.run, record)
        self.watcher.ended(record)


def _read_outcome(path: Path) -> Outcome | None:
    try:
        return Outcome.model_validate(json.loads(path.read_text()))
    except (OSError, ValueError):
        return None


def _death(returncode: int, log_path: str | None) -> str:
    where = f"; its log is {log_path}" if log_path else ""
    if returncode < 0:
        if returncode == -9:
            return f"the stage's process was killed (SIGKILL; out of memory?){where}"
        return f"the stage's process was ended by signal {-returncode}{where}"
    return f"the stage ended with code {returncode} and left no message{where}"
