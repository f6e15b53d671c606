"""Stages as child processes of the flow, on this machine.

A child leads its own session and writes its own log file, so it never holds the flow's pipes. It holds
the read end of a pipe whose write end only the flow has: when the flow is gone, however it went, the
child ends itself and what it started.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from trainwright.flows.launchers.base import Job
from trainwright.stages.contract import ExitCode, StageError, TransientError, exit_code_of
from trainwright.stages.watch.processes import PARENT_PIPE, end_tree

_IDENTIFY_SECONDS = 300.0

# A waiting OpenMP thread sleeps instead of spinning: on a machine that does other work too, spinning
# takes the core from the very thread that is waited for.
_DEFAULTS = {"OMP_WAIT_POLICY": "PASSIVE"}


class ProcessHandle:
    """A stage's process."""

    def __init__(self, process: subprocess.Popen[bytes], lifeline: int) -> None:
        self._process = process
        self._lifeline: int | None = lifeline

    @property
    def pid(self) -> int:
        """The process id, which is its process group too."""
        return self._process.pid

    def poll(self) -> int | None:
        """The return code; what the stage may have left in its group is ended."""
        code = self._process.poll()
        if code is not None:
            self._close()
        return code

    def cancel(self, grace: float = 10.0) -> None:
        """End the process and its descendants."""
        if self._process.poll() is None:
            end_tree(self._process.pid, grace)
            try:
                self._process.wait(grace)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._close()

    def _close(self) -> None:
        if self._lifeline is None:
            return
        os.close(self._lifeline)
        self._lifeline = None
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass


class ProcessLauncher:
    """Starts stages as child processes."""

    name = "process"

    def start(self, job: Job) -> ProcessHandle:
        """Start `python -m trainwright.stages` in its own session."""
        job.log.parent.mkdir(parents=True, exist_ok=True)
        read_end, write_end = os.pipe()
        try:
            with job.log.open("ab") as log:
                process = subprocess.Popen(
                    [
                        sys.executable, "-m", "trainwright.stages", job.spec.program,
                        "--spec", str(job.spec_path),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**_DEFAULTS, **os.environ, **job.environment, PARENT_PIPE: str(read_end)},
                    pass_fds=[read_end],
                    start_new_session=True,
                )  # fmt: skip
        except OSError as error:
            os.close(write_end)
            raise TransientError(f"the stage process could not be started: {error}") from error
        finally:
            os.close(read_end)
        return ProcessHandle(process, write_end)

    def identify(self, program: str, params_path: Path) -> dict[str, str]:
        """Run `--identify`; a `StageError` with the program's own sentence if it refuses."""
        try:
            done = subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "trainwright.stages",
                    program,
                    "--identify",
                    str(params_path),
                ],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_IDENTIFY_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise TransientError(
                f"stage {program!r} took over {_IDENTIFY_SECONDS:.0f} s to look at its sources"
            ) from None
        if done.returncode != 0:
            raise _refusal(program, done)
        value = json.loads(done.stdout.splitlines()[-1])
        return {str(name): str(digest) for name, digest in value.items()}


def _refusal(program: str, done: subprocess.CompletedProcess[str]) -> StageError:
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    last = lines[-1].removeprefix("error: ") if lines else "no message"
    error = StageError(f"stage {program!r} cannot read its sources: {last}")
    error.exit_code = exit_code_of(done.returncode)
    if error.exit_code is ExitCode.OK:
        error.exit_code = ExitCode.UNEXPECTED
    return error
