"""Pretraining killed at random steps: the model is, bit for bit, that of an undisturbed run."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from trainwright.stages.artifact import Manifest, open_artifact
from trainwright.stages.contract import Outcome, StageSpec
from trainwright.stages.fingerprint import fingerprint
from trainwright.stages.progress import last_progress
from trainwright.stages.registry import PROGRAMS
from workbench import Workbench, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.server]


@dataclass
class Stage:
    """The stage `pretrain` of the trained home, with the same inputs and a store of its own."""

    spec: StageSpec
    path: Path

    def start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "trainwright.stages", "pretrain", "--spec", str(self.path)],
            stdout=self.path.with_suffix(".log").open("ab"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def finish(self) -> Manifest:
        process = self.start()
        assert process.wait(timeout=300) == 0, self.path.with_suffix(".log").read_text()[-3000:]
        manifest = open_artifact(self.spec.output).manifest()
        assert manifest is not None
        return manifest

    def wait_for_step(self, step: int) -> None:
        def reached() -> bool:
            progress = last_progress(Path(self.spec.progress)) or {}
            return progress.get("phase") == "train" and progress.get("step", 0) >= step

        wait_for(reached, 180, f"step {step}")

    def outcome(self) -> Outcome:
        return Outcome.model_validate_json(Path(self.spec.outcome).read_bytes())


STEPS = 240
"""Long enough, in seconds, that a kill meets a running step."""


@pytest.fixture(scope="module")
def quiet(trained: Workbench, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Digest of an undisturbed run's artifact."""
    return make_stage(trained, tmp_path_factory.mktemp("quiet"), steps=STEPS).finish().content


def make_stage(trained: Workbench, tmp_path: Path, **params: Any) -> Stage:
    path = next(trained.home.glob("logs/*/pretrain.attempt-1.spec.json"))
    values = json.loads(path.read_text())
    values["params"] |= {"snapshot_every": 8, "log_every": 1, **params}
    spec = StageSpec.model_validate(values)
    program = PROGRAMS["pretrain"]
    typed = program.params_class.model_validate(spec.params)
    values["fingerprint"] = fingerprint(program.name, program.version, typed, spec.inputs, {})
    values["output"] = f"file://{tmp_path}/store/artifacts/pretrain/{values['fingerprint'][:24]}"
    values["tracking"] = None
    for name in ("work", "cache"):
        values[name] = str(tmp_path / name)
    for name in ("outcome", "progress"):
        values[name] = str(tmp_path / f"{name}.json")
    target = tmp_path / "spec.json"
    target.write_text(json.dumps(values))
    return Stage(StageSpec.model_validate(values), target)


def family(pid: int) -> list[psutil.Process]:
    return [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]


def ranks_of(pid: int) -> list[psutil.Process]:
    """The ranks, without torchrun, whose command line names their module too."""
    return [
        p for p in family(pid)
        if "trainwright.stages.pretrain.worker" in p.cmdline()
        and "torch.distributed.run" not in p.cmdline()
    ]  # fmt: skip


def kill(processes: list[psutil.Process]) -> None:
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for process in processes:
            try:
                process.send_signal(number)
            except psutil.Error:
                continue


def test_killed_three_times_at_random_steps_it_ends_with_the_same_bytes(
    trained: Workbench, quiet: str, tmp_path: Path
) -> None:
    stage = make_stage(trained, tmp_path, steps=STEPS)
    generator = random.Random(5)
    for first in (10, 60, 110):
        step = generator.randint(first, first + 40)
        process = stage.start()
        stage.wait_for_step(step)
        kill(family(process.pid))
        process.wait()
    manifest = stage.finish()
    assert manifest.result.metrics["resumed_from_step"] >= 100
    assert manifest.content == quiet


def test_a_rank_that_is_killed_is_replaced_and_the_bytes_are_the_same(
    trained: Workbench, quiet: str, tmp_path: Path
) -> None:
    stage = make_stage(trained, tmp_path, steps=STEPS)
    process = stage.start()
    stage.wait_for_step(30)
    ranks = ranks_of(process.pid)
    assert len(ranks) == 2
    kill(ranks[1:])
    assert process.wait(timeout=300) == 0
    assert "restart 1 from step" in stage.path.with_suffix(".log").read_text()
    manifest = open_artifact(stage.spec.output).manifest()
    assert manifest is not None and manifest.content == quiet
    assert manifest.result.metrics["resumed_from_step"] >= 24


def test_a_damaged_newest_snapshot_is_passed_over(
    trained: Workbench, quiet: str, tmp_path: Path
) -> None:
    stage = make_stage(trained, tmp_path, steps=STEPS)
    process = stage.start()
    stage.wait_for_step(40)
    kill(family(process.pid))
    process.wait()
    snapshots = sorted((tmp_path / "work").rglob("step-*/COMPLETE"))
    newest = next(p for p in sorted(snapshots[-1].parent.rglob("*.pt")))
    newest.write_bytes(newest.read_bytes()[:-64])
    manifest = stage.finish()
    older = int(snapshots[-2].parent.name.removeprefix("step-"))
    assert manifest.result.metrics["resumed_from_step"] == older
    assert manifest.content == quiet


def test_sigterm_ends_all_ranks_and_says_cancelled(trained: Workbench, tmp_path: Path) -> None:
    stage = make_stage(trained, tmp_path, steps=STEPS)
    process = stage.start()
    stage.wait_for_step(3)
    members = family(process.pid)
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(timeout=60) == 143
    _, alive = psutil.wait_procs(members, timeout=30)
    assert not alive and stage.outcome().exit_code == 143


def test_ranks_end_when_the_stage_alone_is_killed(trained: Workbench, tmp_path: Path) -> None:
    stage = make_stage(trained, tmp_path, steps=STEPS)
    process = stage.start()
    stage.wait_for_step(3)
    members = family(process.pid)[1:]
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(members, timeout=30)
    assert not alive


@pytest.mark.parametrize("spread", [{"ranks": 1, "micro_batch": 4}, {"ranks": 4, "zero_stage": 3}])
def test_losses_are_the_same_however_the_batch_is_spread(
    trained: Workbench, tmp_path: Path, spread: dict[str, Any]
) -> None:
    """Up to the order of float32 sums: 1e-4 nats over 30 steps at this learning rate."""

    def losses(artifact: str) -> list[float]:
        folder = next(Path(artifact.removeprefix("file://")).glob("data-*"))
        found: list[float] = json.loads((folder / "curve.json").read_text())["train"]
        return found

    stage = make_stage(trained, tmp_path, **spread)
    stage.finish()
    reference = trained.steps()["pretrain"].artifact
    assert reference is not None
    ours, theirs = losses(stage.spec.output), losses(reference.uri)
    assert len(ours) == len(theirs) == 30
    assert max(abs(a - b) for a, b in zip(ours, theirs, strict=True)) < 1e-4
