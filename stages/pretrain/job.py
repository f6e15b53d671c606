"""What the stage tells its ranks, and what rank 0 tells back: small files in the work folder."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from trainwright.stages.contract import ExitCode, StageError, StageSpec, Strict
from trainwright.stages.pretrain.params import PretrainParams


class RankJob(Strict):
    """Everything that a rank is told."""

    spec: StageSpec
    params: PretrainParams
    corpus: str = Field(description="Folder of the corpus artifact")
    model: str = Field(description="Hugging Face folder of the initial model")
    stage_pid: int = Field(description="Process of the stage: ranks end when it is gone")

    @property
    def work(self) -> Path:
        """Snapshots and results."""
        return Path(self.spec.work) / "pretrain"


class Finished(Strict):
    """What rank 0 leaves when training is done."""

    steps: int
    tokens_seen: int
    train_loss: float = Field(description="Mean over the last tenth of the steps, nats a token")
    heldout_loss: float = Field(description="Nats a token")
    tokens_per_s: float = Field(description="Of this session, evaluations and snapshots left out")
    resumed_from_step: int


class Failure(Strict):
    """Why a rank gave up."""

    exit_code: int
    message: str
    rank: int

    def error(self) -> StageError:
        """The failure as the stage's error."""
        error = StageError(self.message)
        error.exit_code = ExitCode(self.exit_code)
        return error
