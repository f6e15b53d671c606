"""How a stage's process ends, whatever its program does."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from trainwright.stages.contract import ExitCode, Outcome
from trainwright.stages.runner import exit_code_for

STAGE = """
import sys, time
from trainwright.stages import runner
from trainwright.stages.contract import StageSpec

def program(spec):
    print("running", flush=True)
    try:
        time.sleep(60)
    except {caught}:
        {then}

runner._run = program
spec = StageSpec(run_id="r", step="corpus", program="corpus", params={{}}, fingerprint="f", output="o",
                 work="w", cache="c", outcome=sys.argv[1], progress="p")
runner.finish(runner.run_spec(spec))
"""


@pytest.mark.parametrize(
    ("caught", "then"),
    [
        ("Exception", "raise ValueError('a bug')"),
        ("Exception", "pass"),
        # As DuckDB does with a signal that comes during a query.
        ("BaseException", "raise RuntimeError('Query interrupted')"),
    ],
)
def test_sigterm_is_a_cancel_whatever_a_library_makes_of_it(
    tmp_path: Path, caught: str, then: str
) -> None:
    path = tmp_path / "outcome.json"
    program = STAGE.format(caught=caught, then=then)
    stage = subprocess.Popen([sys.executable, "-c", program, path], stdout=subprocess.PIPE)
    assert stage.stdout is not None and stage.stdout.readline() == b"running\n"
    stage.send_signal(signal.SIGTERM)
    stage.communicate(timeout=60)
    assert stage.returncode == ExitCode.CANCELLED
    assert Outcome.model_validate_json(path.read_bytes()).error == "cancelled"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), ExitCode.NODE_FAULT),
        (OSError(errno.EIO, "Input/output error"), ExitCode.NODE_FAULT),
        (MemoryError(), ExitCode.NODE_FAULT),
        (FileNotFoundError(errno.ENOENT, "No such file"), ExitCode.UNEXPECTED),
        (ValueError("a bug"), ExitCode.UNEXPECTED),
    ],
)
def test_a_full_disk_or_memory_is_the_nodes_fault_and_a_bug_is_not(
    error: Exception, code: ExitCode
) -> None:
    assert exit_code_for(error) is code
