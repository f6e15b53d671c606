"""The process group: started by torchrun, and started again from the newest snapshot when it dies.

Ranks are restarted by us as one gang, not by torchrun's agent: with gloo its restarts wait out the dead
peers' time-outs.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import TypeVar

from trainwright.stages.contract import NodeFaultError
from trainwright.stages.durable import write_durably
from trainwright.stages.pretrain import ops
from trainwright.stages.pretrain.job import Failure, Finished, RankJob
from trainwright.stages.pretrain.snapshots import COMPLETE
from trainwright.stages.watch.processes import end_tree

log = logging.getLogger(__name__)

T = TypeVar("T", Failure, Finished)


def run_ranks(job: RankJob) -> Finished:
    """Train to the end; the stage's error if a rank gave one, `NodeFaultError` if ranks keep dying."""
    ops.prebuild()
    work = job.work
    work.mkdir(parents=True, exist_ok=True)
    for name in ("finished.json", "failure.json"):
        (work / name).unlink(missing_ok=True)
    path = work / "job.json"
    write_durably(path, job.model_dump_json().encode())
    restarts, progress = 0, newest_step(work)
    while True:
        code = _run_once(job, path)
        if (failure := _read(work / "failure.json", Failure)) is not None:
            raise failure.error()
        finished = _read(work / "finished.json", Finished)
        if code == 0 and finished is not None:
            return finished
        restarts += 1
        now = newest_step(work)
        if restarts > job.params.max_restarts:
            raise NodeFaultError(
                f"pretraining: the process group died {restarts} times (last with code {code}; newest "
                f"snapshot at step {now}); the stage's log has what the ranks said"
            )
        if restarts > 1 and now <= progress:
            raise NodeFaultError(
                f"pretraining: the process group died twice without a new snapshot (step {now}); the "
                "stage's log has what the ranks said"
            )
        log.warning(
            "the process group died (code %s): restart %d from step %d", code, restarts, now
        )
        progress = now


def _run_once(job: RankJob, path: Path) -> int:
    ranks = job.params.ranks
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=0",
        f"--nproc-per-node={ranks}", "-m", "trainwright.stages.pretrain.worker", str(path),
    ]  # fmt: skip
    process = subprocess.Popen(command, env=environment(job), stdin=subprocess.DEVNULL)
    try:
        return process.wait()
    finally:
        end_tree(process.pid, grace=5.0)


def environment(job: RankJob) -> dict[str, str]:
    """Variables of torchrun and the ranks."""
    return {
        **os.environ,
        **ops.environment(),
        "OMP_NUM_THREADS": str(job.params.threads_per_rank),
        # Else torchrun's agent and rank 0 share a store, and a rank's death can take it along.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        "TOKENIZERS_PARALLELISM": "false",
        # Single-node rendezvous and gloo stay on loopback.
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
    }


def newest_step(work: Path) -> int:
    """Step of the newest complete snapshot; 0 if there is none."""
    marks = sorted((work / "snapshots").glob(f"step-*/{COMPLETE}"))
    return int(marks[-1].parent.name.removeprefix("step-")) if marks else 0


def _read(path: Path, kind: type[T]) -> T | None:
    try:
        return kind.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
