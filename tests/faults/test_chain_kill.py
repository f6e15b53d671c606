"""The whole tree killed at random moments, again and again: the artifacts are those of a quiet run."""

from __future__ import annotations

import random
import shutil
import signal
import time

import psutil
import pytest

from workbench import Workbench

pytestmark = [pytest.mark.slow, pytest.mark.server]

SEEDS = range(20)


def kill_tree(bench: Workbench, pid: int) -> None:
    """SIGKILL for every process of the home at once: stopped first, so that none can react."""
    victims = bench.processes()
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for process in victims:
            try:
                process.send_signal(number)
            except psutil.Error:
                continue
    assert pid in {process.pid for process in victims} or not psutil.pid_exists(pid)


def begin_again(bench: Workbench) -> None:
    """Forget what was made: a run that reuses all of it is over before it can be killed."""
    for name in ("store", "work"):
        shutil.rmtree(bench.home / name)


def test_twenty_kills_at_random_moments_change_no_digest(
    workbench: Workbench, trained: Workbench
) -> None:
    expected, moments = trained.digests(), []
    for seed in SEEDS:
        generator = random.Random(seed)
        while True:
            process = workbench.start()
            wait = generator.uniform(1.0, 22.0)
            deadline = time.monotonic() + wait
            while process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
            if process.poll() is None:
                break
            assert process.returncode == 0, (workbench.home / "out.txt").read_text()[-3000:]
            assert workbench.digests() == expected
            begin_again(workbench)
        steps = workbench.steps() if workbench.runs.names() else {}
        moments.append((round(wait, 1), next(reversed(steps), "start")))
        kill_tree(workbench, process.pid)
        process.wait()
    final = workbench.run()
    print(f"{len(moments)} kills: {moments}")
    assert len(moments) == len(SEEDS)
    assert workbench.digests(final) == expected
    runs = list(workbench.runs.all())
    states = {run.state.value for run in runs}
    assert "running" not in states and "crashed" in states
    # The watchdogs were killed too: the next command has set Prefect right.
    for run in runs:
        if run.prefect_flow_run_id:
            assert workbench.prefect_state(run) not in ("RUNNING", "PENDING"), run.id
