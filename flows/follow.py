"""Printing a stage's log, and following it while it grows."""

from __future__ import annotations

import time
from pathlib import Path

import click

from trainwright.flows.chain import StepName
from trainwright.flows.runs import RunRecord, Runs
from trainwright.stages.contract import StageRecord, StageState, UsageError


def print_log(
    runs: Runs, run: RunRecord, step: StepName | None, *, follow: bool, lines: int
) -> None:
    """Print the last lines of a step's log; with `follow`, go on until the step ends."""
    record = _pick(runs, run, step)
    if record.log is None:
        raise UsageError(
            f"stage {record.step!r} of run {run.id} was {record.state}: it wrote no log here"
        )
    path = Path(record.log)
    if not path.is_file():
        raise UsageError(f"the log {path} is not on this machine")
    text = path.read_text(errors="replace")
    for line in text.splitlines()[-lines:]:
        click.echo(line)
    if follow:
        _follow(runs, run, StepName(record.step), path, len(text.encode()))


def _pick(runs: Runs, run: RunRecord, step: StepName | None) -> StageRecord:
    steps = runs.steps(run.id)
    if step is not None:
        if step not in steps:
            reached = ", ".join(steps) or "none"
            raise UsageError(f"run {run.id} has not reached '{step}'; reached: {reached}")
        return steps[step]
    with_log = [record for record in steps.values() if record.log]
    if not with_log:
        raise UsageError(f"no stage of run {run.id} wrote a log")
    return max(with_log, key=lambda record: record.started_at)


def _follow(runs: Runs, run: RunRecord, step: StepName, path: Path, position: int) -> None:
    while True:
        record = runs.step(run.id, step)
        with path.open("rb") as file:
            file.seek(position)
            chunk = file.read()
        position += len(chunk)
        click.echo(chunk.decode(errors="replace"), nl=False)
        if record is None or record.state is not StageState.RUNNING:
            return
        time.sleep(0.5)
