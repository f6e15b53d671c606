"""A run and its records, as a finished demo leaves them, for tests of what is rendered from records."""

from datetime import timedelta
from typing import Any

from trainwright.flows.chain import STEPS, StepName
from trainwright.flows.runs import Owner, RunRecord, RunState
from trainwright.stages.contract import ArtifactRef, StageRecord, StageResult, StageState, utcnow
from trainwright.stages.fingerprint import sha256_of

METRICS: dict[StepName, dict[str, float]] = {
    StepName.CORPUS: {
        "documents_in": 136018, "documents_kept": 25821, "documents_dropped": 110197,
        "tokens_train": 1622491, "tokens_heldout": 284320, "keep_rate": 0.189835,
    },
    StepName.INITIALIZE: {"parameters": 1312512},
    StepName.PRETRAIN: {
        "steps": 600, "tokens_seen": 614400, "train_loss": 4.4312, "heldout_loss": 4.6021,
        "tokens_per_s": 2904.2, "resumed_from_step": 0,
    },
    StepName.VALIDATE: {
        "heldout_loss": 4.6021, "perplexity": 99.69, "bits_per_byte": 2.01,
        "unigram_loss": 6.51, "bigram_loss": 5.02,
    },
    StepName.INSTRUCT: {"answer_loss_before": 4.61, "answer_loss_after": 3.02},
    StepName.ALIGN: {
        "rm_accuracy": 0.771, "baseline_word_overlap": 0.66, "baseline_longer": 0.52,
        "reward_before": 0.2279, "reward_after": 0.4387, "kl": 1.4032,
    },
    StepName.QUANTIZE: {
        "perplexity_float": 101.25, "perplexity_int8": 101.61, "perplexity_ptq": 102.99,
        "perplexity_ratio": 1.00356, "bytes_float32": 5251072, "bytes_int8": 1402880,
        "size_ratio": 0.26716,
    },
    StepName.ACCEPT: {"perplexity": 101.61, "perplexity_ratio": 1.00356, "max_logit_difference": 0.0},
}  # fmt: skip

SAMPLES = [
    {
        "prompt": "Describe `clique.maximum_independent_set(G)` in a sentence or two.",
        "before": "Set the produ particar default version of the concrester.",
        "after": "Return an approximate maximum independent set of the graph.",
    }
]

RECIPE: dict[str, Any] = {
    "name": "demo",
    "corpus": {"seed": 0, "workers": 2},
    "pretrain": {"steps": 600, "optimization": {"learning_rate": 0.003}},
    "align": {"ppo": {"kl_coefficient": 0.1}},
}


def sample_run(**changes: Any) -> RunRecord:
    ended = utcnow()
    values: dict[str, Any] = {
        "id": "demo-20261201-101502-k3f9",
        "recipe_name": "demo",
        "recipe": RECIPE,
        "state": RunState.COMPLETED,
        "owner": Owner(host="here", boot="boot", pid=1, started=1.0),
        "started_at": ended - timedelta(seconds=512),
        "ended_at": ended,
    }
    return RunRecord(**{**values, **changes})


def sample_record(name: StepName, **changes: Any) -> StageRecord:
    ended = utcnow()
    summary = {"samples": SAMPLES} if name in (StepName.INSTRUCT, StepName.ALIGN) else {}
    digest = sha256_of(str(name))
    values: dict[str, Any] = {
        "run_id": "demo-20261201-101502-k3f9",
        "step": name,
        "program": STEPS[name].program,
        "state": StageState.COMPLETED,
        "fingerprint": digest,
        "attempts": 1,
        "exit_code": 0,
        "started_at": ended - timedelta(seconds=41.5),
        "ended_at": ended,
        "artifact": ArtifactRef(uri=f"file:///store/artifacts/{name}/{digest[:24]}", digest=digest),
        "result": StageResult(metrics=METRICS[name], summary=summary),
    }
    return StageRecord(**{**values, **changes})


def sample_steps() -> dict[StepName, StageRecord]:
    return {name: sample_record(name) for name in StepName}
