"""Pretrain: initial weights and token shards to a trained model."""

from __future__ import annotations

import json
import os
import shutil
from typing import Any

from trainwright.stages.context import StageContext
from trainwright.stages.contract import StageResult
from trainwright.stages.pretrain.job import Finished, RankJob
from trainwright.stages.pretrain.launch import run_ranks
from trainwright.stages.pretrain.params import PretrainParams


def run(context: StageContext) -> StageResult:
    """Write `model/` (float32, a Hugging Face folder) and `curve.json` (losses by step)."""
    job = RankJob(
        spec=context.spec,
        params=context.typed(PretrainParams),
        corpus=str(context.input("corpus")),
        model=str(context.input("model") / "model"),
        stage_pid=os.getpid(),
    )
    finished = run_ranks(job)
    shutil.copytree(job.work / "model", context.out / "model")
    shutil.copyfile(job.work / "curve.json", context.out / "curve.json")
    return StageResult(metrics=metrics(finished), summary={"curve": _curve(context)})


def metrics(finished: Finished) -> dict[str, float]:
    """The stage's figures."""
    return {name: float(value) for name, value in finished.model_dump().items()}


def _curve(context: StageContext, points: int = 200) -> dict[str, list[Any]]:
    """The curve thinned to at most `points` training losses, each the mean of its finite neighbours."""
    curve = json.loads((context.out / "curve.json").read_text())
    losses = curve["train"]
    width = -(-len(losses) // points)
    train = []
    for at in range(0, len(losses), width):
        known = [loss for loss in losses[at : at + width] if loss is not None]
        if known:
            train.append([min(at + width, len(losses)), sum(known) / len(known)])
    heldout = [point for point in curve["heldout"] if point[1] is not None]
    return {"train": train, "heldout": heldout}
