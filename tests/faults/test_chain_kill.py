"""The whole tree killed at random moments, again and again: the artifacts are those of a quiet run."""

from __future__ import annotations

import random
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


def test_twenty_kills_at_random_moments_change_no_digest(
    workbench: Workbench, trained: Workbench
) -> None:
    kills, moments = 0, []
    for seed in SEEDS:
        process = workbench.start()
        wait = random.Random(seed).uniform(1.0, 22.0)
        deadline = time.monotonic() + wait
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        if process.poll() is not None:
            assert process.returncode == 0, (workbench.home / "out.txt").read_text()[-3000:]
            continue
        steps = workbench.steps() if workbench.runs.names() else {}
        moments.append((round(wait, 1), next(reversed(steps), "start")))
        kill_tree(workbench, process.pid)
        process.wait()
        kills += 1
    final = workbench.run()
    print(f"{kills} kills: {moments}")
    assert kills >= 4
    assert workbench.digests(final) == trained.digests()
    states = [run.state.value for run in workbench.runs.all()]
    assert "running" not in states
    assert "crashed" in states
