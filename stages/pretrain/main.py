"""Pretrain: initial weights and token shards to a trained model."""

from __future__ import annotations

import json
import os
import shutil

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
    return StageResult(metrics=metrics(finished), summary={"curve": _curve(context, job)})


def metrics(finished: Finished) -> dict[str, float]:
    """The stage's figures."""
    return {name: float(value) for name, value in finished.model_dump().items()}


def _curve(context: StageContext, job: RankJob, points: int = 200) -> dict[str, list[list[float]]]:
    """The curve thinned to at most `points` training losses, each the mean of its neighbours."""
    curve = json.loads((context.out / "curve.json").read_text())
    losses = curve["train"]
    width = -(-len(losses) // points)
    train = [
        [min(at + width, len(losses)), sum(losses[at : at + width]) / len(losses[at : at + width])]
        for at in range(0, len(losses), width)
    ]
    return {"train": train, "heldout": curve["heldout"]}
