"""Runs one stage program: spec in, artifact and exit code out."""

from __future__ import annotations

import errno
import logging
import os
import platform
import shutil
import signal
import sys
import threading
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trainwright import __version__
from trainwright.stages.artifact import (
    Artifact,
    Manifest,
    content_digest,
    open_artifact,
)
from trainwright.stages.context import StageContext
from trainwright.stages.contract import (
    ArtifactRef,
    DataError,
    ExitCode,
    Outcome,
    Params,
    StageError,
    StageResult,
    StageSpec,
    UsageError,
    utcnow,
)
from trainwright.stages.fingerprint import identity, sha256_of
from trainwright.stages.lease import Lease
from trainwright.stages.progress import Progress
from trainwright.stages.registry import PROGRAMS, Program
from trainwright.stages.tracking import Tracker
from trainwright.stages.watch.processes import end_tree, end_with_parent

log = logging.getLogger(__name__)

LIBRARIES = (
    "torch",
    "deepspeed",
    "transformers",
    "tokenizers",
    "peft",
    "duckdb",
    "numpy",
    "compressed-tensors",
)


def run_spec(spec: StageSpec) -> ExitCode:
    """Run the spec's program; leaves an `Outcome` beside it and returns the exit code."""
    end_with_parent()
    signal.signal(signal.SIGTERM, _on_terminate)
    outcome = Outcome(exit_code=ExitCode.UNEXPECTED)
    try:
        outcome = Outcome(exit_code=ExitCode.OK, artifact=_run(spec))
    except StageError as error:
        outcome = Outcome(exit_code=error.exit_code, error=str(error))
        log.error("%s", error)
    except KeyboardInterrupt:
        outcome = _CANCELLED
    except Exception as error:
        code, said = exit_code_for(error), f"{type(error).__name__}: {error}"
        outcome = Outcome(exit_code=code, error=said)
        log.exception("stage %r ends with %s", spec.program, code.name)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # It is ending: the outcome must be written.
        if _asked_to_end.is_set() and outcome.exit_code != ExitCode.OK:
            # A library may have made another error of it.
            outcome = _CANCELLED
        end_tree(os.getpid(), grace=3.0, include_root=False)
        path = Path(spec.outcome)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(outcome.model_dump_json())
    return ExitCode(outcome.exit_code)


_asked_to_end = threading.Event()
_CANCELLED = Outcome(exit_code=ExitCode.CANCELLED, error="cancelled")
_NODE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE)


def exit_code_for(error: Exception) -> ExitCode:
    """What an error that no stage foresaw says: this machine's memory or disk, or a bug."""
    if isinstance(error, MemoryError):
        return ExitCode.NODE_FAULT
    if isinstance(error, OSError) and error.errno in _NODE_ERRORS:
        return ExitCode.NODE_FAULT
    return ExitCode.UNEXPECTED


def _on_terminate(signum: int, frame: object) -> None:
    _asked_to_end.set()
    # As Ctrl-C: an `Exception` would be dealt with as a failure wherever a library expects one.
    raise KeyboardInterrupt


def _run(spec: StageSpec) -> ArtifactRef:
    program = program_named(spec.program)
    params = parse_params(program, spec.params)
    what = identity(program.name, program.version, params, spec.inputs, spec.external)
    if sha256_of(what) != spec.fingerprint:
        raise UsageError(
            f"step {spec.step!r}: the spec's fingerprint is not that of its parameters and inputs; "
            "flow and stage must be of one version of trainwright"
        )
    target = open_artifact(spec.output)
    lease = Lease(
        target.store, f"{target.key}/lease.json", ttl=spec.lease_ttl, on_lost=_stop_main_thread
    )
    with lease:
        if (manifest := target.manifest()) is not None:
            log.info("another writer has finished this artifact: nothing to do")
            return ArtifactRef(uri=target.uri, digest=manifest.content)
        return _produce(spec, program, params, target, lease, what)


def _stop_main_thread() -> None:
    log.error("the lease was taken over by another writer: ending")
    end_tree(os.getpid(), grace=1.0, include_root=False)
    os._exit(ExitCode.TRANSIENT)


def _produce(
    spec: StageSpec,
    program: Program,
    params: Params,
    target: Artifact,
    lease: Lease,
    what: dict[str, Any],
) -> ArtifactRef:
    started = utcnow()
    work = Path(spec.work)
    out = work / "out" / lease.token
    _clear_orphans(work / "out")
    out.mkdir(parents=True)
    progress = Progress(Path(spec.progress))
    tracker = Tracker(spec.tracking, Path(spec.progress).with_name(f"{spec.step}.metrics.jsonl"))
    try:
        progress("inputs")
        context = StageContext(
            spec=spec,
            params=params,
            out=out,
            work=work,
            inputs=_read_inputs(spec),
            progress=progress,
            tracker=tracker,
            external=_check_external(spec, program, params),
        )
        result = program.run(context)
        lease.check()
        progress("upload")
        files = target.upload(out, lease.token)
        lease.check()
        manifest = target.commit(_manifest(spec, params, files, result, what, started))
    finally:
        tracker.close()
        progress.close()
        shutil.rmtree(out, ignore_errors=True)
    # Done: its snapshots are of no use any more, and a forced rerun must not go on from them.
    shutil.rmtree(work, ignore_errors=True)
    return ArtifactRef(uri=target.uri, digest=manifest.content)


def _clear_orphans(folder: Path) -> None:
    """What an earlier try left unfinished is never read: with the lease held, it can go."""
    shutil.rmtree(folder, ignore_errors=True)


def _manifest(
    spec: StageSpec,
    params: Params,
    files: list[Any],
    result: StageResult,
    what: dict[str, Any],
    started: datetime,
) -> Manifest:
    return Manifest(
        program=spec.program,
        step=spec.step,
        run_id=spec.run_id,
        fingerprint=spec.fingerprint,
        identity=what,
        params=params.model_dump(mode="json"),
        inputs=spec.inputs,
        external=spec.external,
        files=files,
        content=content_digest(files),
        result=result,
        code_version=__version__,
        image=os.environ.get("TRAINWRIGHT_IMAGE"),
        environment=environment(),
        started_at=started,
        ended_at=utcnow(),
    )


def _read_inputs(spec: StageSpec) -> dict[str, Path]:
    folders = {}
    for name, ref in spec.inputs.items():
        artifact = open_artifact(ref.uri)
        manifest = artifact.manifest()
        if manifest is None:
            raise DataError(
                f"step {spec.step!r}: its input {name!r} at {ref.uri} has no manifest; "
                f"run the step that makes it again"
            )
        if manifest.content != ref.digest:
            raise DataError(
                f"step {spec.step!r}: its input {name!r} at {ref.uri} is not the one it was "
                "planned with; run again"
            )
        folders[name] = artifact.read(manifest, Path(spec.cache))
    return folders


def _check_external(spec: StageSpec, program: Program, params: Params) -> dict[str, str]:
    if not params.reads_outside():
        return {}
    now = program.identify(params)
    if now != spec.external:
        moved = sorted(k for k in {*now, *spec.external} if now.get(k) != spec.external.get(k))
        raise DataError(
            f"step {spec.step!r}: what it reads changed since it was planned "
            f"({', '.join(moved)}); run again"
        )
    return now


def program_named(name: str) -> Program:
    """The program, or a usage error that names the valid ones."""
    if name not in PROGRAMS:
        raise UsageError(f"there is no stage {name!r}; the stages are {', '.join(PROGRAMS)}")
    return PROGRAMS[name]


def parse_params(program: Program, values: dict[str, Any]) -> Params:
    """The program's parameters, or a usage error that names the field."""
    try:
        return program.params_class.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"stage {program.name!r}, parameter {where!r}: {first['msg']}") from None


def environment() -> dict[str, str]:
    """Versions that a result may depend on."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def configure_logging() -> None:
    """Plain lines with a time on stderr, which the launcher keeps in a file."""
    logging.basicConfig(
        level=os.environ.get("TRAINWRIGHT_LOG_LEVEL", "INFO"),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    logging.captureWarnings(True)


def finish(code: ExitCode) -> None:
    """Leave at once: a native library's thread must not keep a finished stage alive."""
    sys.stdout.flush()
    sys.stderr.flush()
    logging.shutdown()
    if threading.active_count() > 1:
        os._exit(code)
    sys.exit(code)
