"""The stages after pretraining as programs, chained through a store, and killed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from trainwright.stages.artifact import Artifact, Manifest, content_digest, open_artifact
from trainwright.stages.contract import ArtifactRef, ExitCode, StageResult, StageSpec, utcnow
from trainwright.stages.fingerprint import fingerprint
from trainwright.stages.runner import parse_params, program_named
from trainwright.stages.store import open_store

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "stages" / "instruct"))
from posttrain import save_corpus, save_model

pytestmark = pytest.mark.slow

PARAMS: dict[str, dict[str, Any]] = {
    "instruct": {
        "steps": 120, "row_tokens": 64, "batch_rows": 4, "micro_rows": 4, "lora": {"rank": 4},
        "snapshot_every": 3, "samples": 1, "sample_tokens": 8, "threads": 1,
    },
    "align": {
        "reward": {"steps": 60, "batch_pairs": 8, "micro_pairs": 8, "max_tokens": 100},
        "ppo": {
            "iterations": 20, "rollout_prompts": 8, "minibatch": 8, "micro_batch": 8,
            "prompt_tokens": 64, "answer_tokens": 10,
        },
        "heldout_prompts": 8, "samples": 1, "snapshot_every": 3, "threads": 1,
    },
    "quantize": {
        "steps": 80, "row_tokens": 64, "batch_rows": 4, "micro_rows": 4, "samples": 1,
        "sample_tokens": 8, "heldout_tokens": 500, "snapshot_every": 3, "threads": 1,
    },
}  # fmt: skip

FOLDERS = {"lora": "instruct", "reward model": "reward", "ppo": "ppo", "distil": "quantize"}
"""Where each phase keeps its snapshots."""


def publish(folder: Path, store: str, program: str) -> ArtifactRef:
    """A folder as a finished artifact."""
    target = Artifact(open_store(store), f"artifacts/{program}/{'0' * 64}")
    files = target.upload(folder, "made")
    now = utcnow()
    manifest = Manifest(
        program=program, step=program, run_id="made", fingerprint="0" * 64, identity={},
        params={}, inputs={}, external={}, files=files, content=content_digest(files),
        result=StageResult(), code_version="0", environment={}, started_at=now, ended_at=now,
    )  # fmt: skip
    target.commit(manifest)
    return ArtifactRef(uri=target.uri, digest=manifest.content)


def make_spec(folder: Path, store: str, program: str, inputs: dict[str, ArtifactRef]) -> StageSpec:
    known = program_named(program)
    params = parse_params(known, PARAMS[program])
    mark = fingerprint(program, known.version, params, inputs, {})
    return StageSpec(
        run_id="run", step=program, program=program, params=params.model_dump(mode="json"),
        inputs=inputs, fingerprint=mark, output=f"{store}/artifacts/{program}/{mark}",
        work=str(folder / "work" / program), cache=str(folder / "cache"),
        outcome=str(folder / program / "outcome.json"),
        progress=str(folder / program / "progress.jsonl"), lease_ttl=2.0,
    )  # fmt: skip


def start(spec: StageSpec) -> subprocess.Popen[bytes]:
    """The stage as a child in its own process group; its log goes to a file."""
    place = Path(spec.outcome).parent
    place.mkdir(parents=True, exist_ok=True)
    (place / "spec.json").write_text(spec.model_dump_json())
    with (place / "log.txt").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "trainwright.stages", spec.program, "--spec",
             str(place / "spec.json")],
            stdout=log, stderr=log, start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip


def finish(spec: StageSpec) -> Manifest:
    log = Path(spec.outcome).with_name("log.txt")
    assert start(spec).wait(300) == ExitCode.OK, log.read_text()[-3000:]
    manifest = open_artifact(spec.output).manifest()
    assert manifest is not None
    return manifest


def rows(spec: StageSpec) -> list[dict[str, Any]]:
    """The whole lines of the progress file."""
    path = Path(spec.progress)
    if not path.exists():
        return []
    lines = path.read_text().split("\n")[:-1]
    # A kill can cut a line short; the next try's first line then follows on it.
    return [json.loads(line) for line in lines if line.count("{") == 1 and line.endswith("}")]


def first_steps(lines: list[dict[str, Any]]) -> dict[str, int]:
    """The first step that each phase reported."""
    found: dict[str, int] = {}
    for row in lines:
        if "step" in row:
            found.setdefault(FOLDERS[row["phase"]], row["step"])
    return found


def snapshot_at(spec: StageSpec) -> Counter[str]:
    """The step of the newest snapshot, by folder."""
    found: Counter[str] = Counter()
    for mark in Path(spec.work).rglob("step-*.json"):
        step = int(mark.stem.removeprefix("step-"))
        found[mark.parent.name] = max(found[mark.parent.name], step)
    return found


def kill_while_training(spec: StageSpec, steps: int) -> bool:
    """SIGKILL the stage once its snapshots are `steps` further; whether it was still at work."""
    goal = sum(snapshot_at(spec).values()) + steps
    child = start(spec)
    deadline = time.monotonic() + 240
    while child.poll() is None and time.monotonic() < deadline:
        if sum(snapshot_at(spec).values()) >= goal:
            break
        time.sleep(0.003)
    working = child.poll() is None
    if working:
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    return working


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    """The three stages run undisturbed, one after the other."""
    folder = tmp_path_factory.mktemp("chain")
    store = f"file://{folder / 'store'}"
    corpus = publish(save_corpus(folder / "corpus"), store, "corpus")
    model = publish(save_model(folder / "model"), store, "pretrain")
    specs, manifests = {}, {}
    for program in PARAMS:
        specs[program] = make_spec(folder, store, program, {"corpus": corpus, "model": model})
        manifests[program] = finish(specs[program])
        model = ArtifactRef(uri=specs[program].output, digest=manifests[program].content)
    return specs, manifests


def test_the_chain_ends_in_an_int8_model_that_loads(chain):
    specs, manifests = chain
    assert {f.path.split("/")[0] for f in manifests["instruct"].files} == {"model", "adapter"}
    assert {f.path.split("/")[0] for f in manifests["align"].files} == {"model", "reward_model"}
    folder = open_artifact(specs["quantize"].output).read(
        manifests["quantize"], Path(specs["quantize"].cache)
    )
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    model = AutoModelForCausalLM.from_pretrained(folder / "model")
    with torch.no_grad():
        logits = model(**tokenizer("read the file", return_tensors="pt")).logits
    assert torch.isfinite(logits).all()
    for manifest in manifests.values():
        assert all(isinstance(value, float) for value in manifest.result.metrics.values())


def test_no_artifact_names_this_machine(chain):
    specs, manifests = chain
    for program, manifest in manifests.items():
        folder = open_artifact(specs[program].output).read(manifest, Path(specs[program].cache))
        for path in folder.rglob("*.json"):
            assert str(folder.parent.parent) not in path.read_text(), path.name


@pytest.mark.parametrize("program", list(PARAMS))
def test_killed_at_random_steps_it_ends_in_the_same_bytes(chain, tmp_path, program):
    specs, manifests = chain
    undisturbed = specs[program]
    store = f"file://{tmp_path / 'store'}"
    spec = make_spec(tmp_path, store, program, undisturbed.inputs)
    assert spec.fingerprint == undisturbed.fingerprint
    rng = random.Random(program)
    killed = [kill_while_training(spec, rng.randint(1, 20)) for _ in range(3)]
    assert all(killed)
    assert open_artifact(spec.output).manifest() is None
    at, before = snapshot_at(spec), len(rows(spec))
    manifest = finish(spec)
    assert manifest.content == manifests[program].content
    assert manifest.result.metrics == manifests[program].result.metrics
    assert sum(at.values()) > 0, "killed before any snapshot: nothing was put to the test"
    for phase, step in first_steps(rows(spec)[before:]).items():
        assert step == at[phase] + 1, phase
