"""One rank: `python -m trainwright.stages.pretrain.worker JOB`, started by torchrun."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from trainwright.stages.contract import ExitCode, StageError
from trainwright.stages.durable import write_durably
from trainwright.stages.lease import process_started
from trainwright.stages.pretrain.job import Failure, Finished, RankJob
from trainwright.stages.progress import Progress
from trainwright.stages.runner import configure_logging
from trainwright.stages.tracking import Tracker
from trainwright.stages.watch.processes import end_with_ppid

log = logging.getLogger(__name__)

_COLLECTIVE_TIMEOUT = timedelta(minutes=10)
_HELDOUT_CHUNK = 16


def main() -> None:
    """Train as one rank; leave with the stage's exit code."""
    job = RankJob.model_validate_json(Path(sys.argv[1]).read_bytes())
    end_with_ppid()
    _end_with_stage(job.stage_pid)
    configure_logging()
    rank = int(os.environ["RANK"])
    code = ExitCode.OK
    try:
        _train(job, rank)
    except StageError as error:
        log.error("%s", error)
        code = error.exit_code
        failure = Failure(exit_code=code, message=str(error), rank=rank)
        write_durably(job.work / "failure.json", failure.model_dump_json().encode())
    except Exception:
        log.exception("rank %d", rank)
        code = ExitCode.UNEXPECTED
    sys.stderr.flush()
    # Without interpreter shutdown: a gloo thread that waits for a dead peer must not hold the rank.
    os._exit(code)


def _end_with_stage(pid: int) -> None:
    """torchrun outlives the stage when only the stage is killed: its ranks then end, and so it does."""
    born = process_started(pid)

    def watch() -> None:
        while born is not None and process_started(pid) == born:
            time.sleep(1.0)
        os._exit(ExitCode.CANCELLED)

    threading.Thread(target=watch, name="stage", daemon=True).start()


def _train(job: RankJob, rank: int) -> None:
    import deepspeed
    import torch

    torch.set_num_threads(job.params.threads_per_rank)
    progress = Progress(Path(job.spec.progress)) if rank == 0 else None
    if progress is not None:
        progress("start ranks")
    deepspeed.init_distributed(timeout=_COLLECTIVE_TIMEOUT, verbose=False)
    tracker = _tracker(job) if rank == 0 else None
    try:
        _fit(job, rank, progress, tracker)
    finally:
        if tracker is not None:
            tracker.close()
    torch.distributed.barrier()


def _tracker(job: RankJob) -> Tracker:
    path = Path(job.spec.progress).with_name(f"{job.spec.step}.metrics.jsonl")
    return Tracker(job.spec.tracking, path)


def _fit(job: RankJob, rank: int, progress: Progress | None, tracker: Tracker | None) -> None:
    from trainwright.stages.pretrain.loop import Trainer

    trainer = _trainer(job, rank, progress, tracker)
    found = trainer.snapshots.newest(trainer.meta)
    first = 0
    if found is not None:
        first, place = found
        log.info("rank %d goes on from step %d", rank, first)
        trainer.restore(place)
    trainer.fit(first)
    assert isinstance(trainer, Trainer)
    _finish(job, rank, trainer, first)


def _trainer(job: RankJob, rank: int, progress: Progress | None, tracker: Tracker | None) -> Any:
    import numpy as np
    import torch

    from trainwright.stages.model.folder import check_fit, load_causal, load_tokenizer, quiet
    from trainwright.stages.pretrain.data import Loader, Windows
    from trainwright.stages.pretrain.engine import Engine
    from trainwright.stages.pretrain.loop import Trainer
    from trainwright.stages.pretrain.snapshots import Snapshots

    params = job.params
    quiet()
    model = load_causal(Path(job.model), torch.device("cpu")).train()
    tokenizer = load_tokenizer(Path(job.corpus) / "tokenizer")
    check_fit(model, tokenizer, params.sequence_length, "pretrain.sequence_length")
    windows = Windows(Path(job.corpus), "train", params.sequence_length)
    heldout = Windows(Path(job.corpus), "heldout", params.sequence_length)
    chosen = np.arange(min(params.heldout_sequences, heldout.count), dtype=np.uint64)
    chunks = [chosen[i : i + _HELDOUT_CHUNK] for i in range(0, len(chosen), _HELDOUT_CHUNK)]

    def report(step: int, figures: dict[str, float]) -> None:
        if progress is None or tracker is None:
            return
        tracker.log(figures, step)
        shown = {k: v for k, v in figures.items() if k in ("loss", "tokens_per_s", "heldout_loss")}
        progress("train", step, params.steps, **shown)

    return Trainer(
        params=params,
        engine=Engine(model, params),
        loader=Loader(
            windows, batch=params.global_batch, seed=params.seed, rank=rank, ranks=params.ranks
        ),
        heldout=[heldout.read(chunk) for chunk in chunks],
        snapshots=Snapshots(job.work / "snapshots", params.keep_snapshots),
        meta=layout(job),
        report=report,
        rank=rank,
    )


def layout(job: RankJob) -> dict[str, Any]:
    """What a snapshot must agree with to be resumed from as it is."""
    params = job.params
    return {
        "fingerprint": job.spec.fingerprint,
        "ranks": params.ranks,
        "zero_stage": params.zero_stage,
        "micro_batch": params.micro_batch,
    }


def _finish(job: RankJob, rank: int, trainer: Any, first: int) -> None:
    """Write the model and the curve on rank 0."""
    params = job.params
    weights = trainer.engine.gathered(trainer.snapshots.place(params.steps))
    if rank != 0:
        return
    from trainwright.stages.pretrain.result import write_model

    write_model(Path(job.model), weights, job.work / "model")
    curve = trainer.curve.table()
    write_durably(job.work / "curve.json", json.dumps(curve, allow_nan=False).encode())
    finished = Finished(
        steps=params.steps,
        tokens_seen=params.steps * params.global_batch * params.sequence_length,
        train_loss=trainer.curve.final_loss(),
        heldout_loss=trainer.curve.heldout[params.steps],
        tokens_per_s=trainer.pace.tokens_per_s,
        resumed_from_step=first,
    )
    write_durably(job.work / "finished.json", finished.model_dump_json().encode())


if __name__ == "__main__":
    main()
