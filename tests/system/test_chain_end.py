"""However a run ends, no process stays, and every record says how."""

from __future__ import annotations

import os
import signal
import subprocess

import psutil
import pytest

from workbench import TINY, Workbench, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.server]

LONG = ["--to", "pretrain", "--set", "pretrain.steps=1000000"]


def interrupt(bench: Workbench, process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)


def terminate(bench: Workbench, process: subprocess.Popen[bytes]) -> None:
    process.terminate()


def cancel(bench: Workbench, process: subprocess.Popen[bytes]) -> None:
    done = bench.command("cancel", "latest")
    assert done.returncode == 0 and "cancelled" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("end", [interrupt, terminate, cancel])
def test_a_cancelled_run_leaves_no_process_and_is_cancelled_everywhere(
    workbench: Workbench, end: object
) -> None:
    process = workbench.start(*LONG)
    workbench.wait_until_running("pretrain", "train")
    end(workbench, process)  # type: ignore[operator]
    assert process.wait(timeout=120) == 130
    wait_for(lambda: not workbench.processes(), 30, "no process left")
    run = workbench.latest()
    assert run.state == "cancelled"
    assert workbench.steps(run)["pretrain"].state == "cancelled"
    assert workbench.prefect_state(run) == "CANCELLED"
    states = workbench.mlflow_states(run)
    assert states == {"-": "KILLED", "corpus": "FINISHED", "initialize": "FINISHED",
                      "pretrain": "KILLED"}  # fmt: skip


def test_a_flow_killed_with_sigkill_leaves_no_stage_and_does_not_stay_running(
    workbench: Workbench,
) -> None:
    process = workbench.start(*LONG)
    workbench.wait_until_running("pretrain", "train")
    process.kill()
    process.wait()
    wait_for(lambda: not workbench.processes(), 30, "no process left")
    run = workbench.latest()
    assert run.state == "crashed" and "killed" in (run.error or "")
    assert workbench.steps(run)["pretrain"].state == "crashed"
    assert workbench.prefect_state(run) == "CRASHED"
    assert workbench.mlflow_states(run)["-"] == "KILLED"
    assert workbench.mlflow_states(run)["pretrain"] == "KILLED"


def test_a_stage_that_is_killed_is_tried_again_and_the_run_completes(
    workbench: Workbench,
) -> None:
    process = workbench.start("--to", "pretrain", "--set", "pretrain.steps=300")
    workbench.wait_until_running("pretrain", "train")
    stage = next(
        p for p in workbench.processes() if "trainwright.stages" in p.cmdline()
        and "pretrain" in p.cmdline()
    )  # fmt: skip
    os.kill(stage.pid, signal.SIGKILL)
    assert process.wait(timeout=300) == 0
    record = workbench.steps()["pretrain"]
    assert record.state == "completed" and record.attempts == 2


def test_bad_data_is_never_tried_again_and_says_what_is_wrong(workbench: Workbench) -> None:
    values = "corpus.sources.0={name: docs, kind: files, paths: ['/nowhere/*.txt']}"
    done = workbench.command("run", TINY, "--to", "corpus", "--set", values)
    assert done.returncode == 1
    assert "/nowhere/*.txt" in done.stdout
    record = workbench.steps()["corpus"]
    assert record.state == "failed" and record.exit_code == 65 and record.attempts <= 1
    assert workbench.prefect_state(workbench.latest()) == "FAILED"


def test_a_run_that_failed_is_repaired_by_rerunning_its_stage(copy_of_trained: Workbench) -> None:
    impossible = ["--set", "accept.max_perplexity_ratio=1.0", "--set", "accept.max_size_ratio=0.01"]
    failed = copy_of_trained.command("run", TINY, *impossible)
    assert failed.returncode == 1 and "max_size_ratio" in failed.stdout
    run = copy_of_trained.latest()
    assert run.state == "failed" and copy_of_trained.steps(run)["accept"].exit_code == 66
    done = copy_of_trained.command("rerun", run.id, "quantize")
    assert done.returncode == 0, done.stdout + done.stderr
    again = copy_of_trained.latest()
    assert again.id == run.id
    assert copy_of_trained.ran(again) == {"quantize"}


def test_no_process_of_an_ended_run_holds_a_terminal_open(workbench: Workbench) -> None:
    done = workbench.command("run", TINY, "--to", "corpus")
    assert done.returncode == 0
    assert not [p for p in workbench.processes() if p.status() != psutil.STATUS_ZOMBIE]
