"""What was learned: claims about a run, each held against the figures in its records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from trainwright.flows.chain import StepName
from trainwright.stages.contract import StageRecord

Steps = Mapping[StepName, StageRecord]

MAX_PERPLEXITY_RATIO = 1.02
"""int8 against float: the promise is within 2%."""
MAX_SIZE_RATIO = 1 / 3

KEY_METRICS: dict[StepName, tuple[str, ...]] = {
    StepName.CORPUS: ("documents_kept", "keep_rate", "tokens_train", "tokens_heldout"),
    StepName.INITIALIZE: ("parameters",),
    StepName.PRETRAIN: ("steps", "train_loss", "heldout_loss", "tokens_per_s"),
    StepName.VALIDATE: ("heldout_loss", "unigram_loss", "bigram_loss", "bits_per_byte"),
    StepName.INSTRUCT: ("answer_loss_before", "answer_loss_after"),
    StepName.ALIGN: ("rm_accuracy", "reward_before", "reward_after", "kl"),
    StepName.QUANTIZE: ("perplexity_float", "perplexity_int8", "size_ratio"),
    StepName.ACCEPT: ("perplexity", "perplexity_ratio", "max_logit_difference"),
}


@dataclass(frozen=True)
class Claim:
    """What should be true of a run, and the figures (of one step) that decide it."""

    text: str
    step: StepName
    figures: tuple[tuple[str, str], ...]
    """Metric and what to call it."""
    holds: Callable[..., bool]
    """Of the figures, in order."""
    unit: str = ""
    beside: tuple[tuple[str, str], ...] = ()
    """Figures that are shown but decide nothing."""


@dataclass(frozen=True)
class Finding:
    """A claim held against the records. `holds` is None where a figure was not measured."""

    text: str
    step: StepName
    figures: dict[str, float | None]
    holds: bool | None
    unit: str

    @property
    def verdict(self) -> str:
        """`holds`, `does NOT hold` or `not measured`."""
        return {True: "holds", False: "does NOT hold", None: "not measured"}[self.holds]

    @property
    def shown(self) -> str:
        """`held-out 4.31 · unigram 6.7 · bigram 5.02 nats a token`."""
        parts = [
            f"{name} {'not measured' if value is None else show_number(value, name)}"
            for name, value in self.figures.items()
        ]
        return " · ".join(parts) + (f" ({self.unit})" if self.unit else "")


CLAIMS = (
    Claim(
        "After pretraining, held-out loss is below that of a unigram and of a bigram model",
        StepName.VALIDATE,
        (("heldout_loss", "model"), ("unigram_loss", "unigram"), ("bigram_loss", "bigram")),
        lambda model, unigram, bigram: model < unigram and model < bigram,
        "nats a token",
    ),
    Claim(
        "After LoRA, loss on held-out answers is lower than before",
        StepName.INSTRUCT,
        (("answer_loss_before", "before"), ("answer_loss_after", "after")),
        lambda before, after: after < before,
        "nats a token",
    ),
    Claim(
        "The reward model beats word overlap and longer-wins on held-out pairs",
        StepName.ALIGN,
        (
            ("rm_accuracy", "reward model"),
            ("baseline_word_overlap", "word overlap"),
            ("baseline_longer", "longer wins"),
        ),
        lambda model, overlap, longer: model > overlap and model > longer,
        "accuracy",
        # The total alone hides what was learned: form (shuffled, repeated) or content (other, spliced).
        beside=(
            ("rm_accuracy_shuffled", "on shuffled words"),
            ("rm_accuracy_repeated", "on repeated phrases"),
            ("rm_accuracy_other", "on another function's answer"),
            ("rm_accuracy_spliced", "on spliced answers"),
        ),
    ),
    Claim(
        "After RLHF, reward on held-out prompts is higher, and its KL is known",
        StepName.ALIGN,
        (("reward_before", "before"), ("reward_after", "after"), ("kl", "KL")),
        lambda before, after, kl: after > before and kl == kl,
        "reward; KL to the reference in nats",
    ),
    Claim(
        "int8 perplexity is within 2% of the float model's",
        StepName.QUANTIZE,
        (("perplexity_ratio", "ratio"),),
        lambda ratio: ratio <= MAX_PERPLEXITY_RATIO,
        beside=(
            ("perplexity_float", "float"),
            ("perplexity_int8", "int8"),
            ("perplexity_ptq", "int8 without training"),
        ),
    ),
    Claim(
        "The int8 file is under a third of float32's",
        StepName.QUANTIZE,
        (("size_ratio", "ratio"),),
        lambda ratio: ratio < MAX_SIZE_RATIO,
        beside=(("bytes_float32", "bytes float32"), ("bytes_int8", "bytes int8")),
    ),
)


def findings(steps: Steps) -> list[Finding]:
    """Every claim, held against the records of steps that are done."""
    return [_find(claim, steps) for claim in CLAIMS]


def _find(claim: Claim, steps: Steps) -> Finding:
    record = steps.get(claim.step)
    metrics = record.result.metrics if record is not None and record.done else {}
    deciding = [metrics.get(metric) for metric, _ in claim.figures]
    known = [value for value in deciding if value is not None]
    holds = claim.holds(*known) if len(known) == len(deciding) else None
    shown = {name: metrics.get(metric) for metric, name in claim.figures}
    shown |= {name: metrics[metric] for metric, name in claim.beside if metric in metrics}
    return Finding(claim.text, claim.step, shown, holds, claim.unit)


def show_number(value: float, name: str = "") -> str:
    """A figure as a person reads it: bytes in units, whole numbers with commas, else 4 digits."""
    if value != value or value in (float("inf"), float("-inf")):
        return str(value)
    if "bytes" in name and abs(value) >= 1000:
        return show_bytes(value)
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def show_bytes(value: float) -> str:
    """`640 B`, `2.6 MB`: three digits."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.3g} TB"


def show_seconds(seconds: float) -> str:
    """`8.3 s`, `2 min 05 s`, `3 h 07 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"
