"""Validate: a gate that a model passes with a report, or fails with every reason."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwright.stages.context import StageContext
from trainwright.stages.contract import StageResult
from trainwright.stages.validate.checks import rounded
from trainwright.stages.validate.params import ValidateParams

if TYPE_CHECKING:
    from trainwright.stages.validate.gate import Verdict


def run(context: StageContext) -> StageResult:
    """Write `report.json` if the model passes; `GateError` with every failed check if it does not."""
    from trainwright.stages.model.folder import quiet, use_threads
    from trainwright.stages.validate import export, pretrained
    from trainwright.stages.validate.gate import Inputs

    params = context.typed(ValidateParams)
    use_threads(params.threads)
    quiet()
    gate = pretrained if params.kind == "pretrained" else export
    verdict = gate.judge(Inputs.of(context))
    verdict.checks.raise_if_failed(gate.WAY_OUT)
    write_report(context.out / "report.json", params.kind, verdict)
    return StageResult(
        metrics=verdict.metrics,
        summary={"kind": params.kind, "checks": verdict.checks.rows(), **verdict.facts},
        samples=verdict.samples,
    )


def write_report(path: Path, kind: str, verdict: Verdict) -> None:
    """What was found, as JSON: a function of the model, the corpus and the parameters."""
    report: dict[str, Any] = {
        "kind": kind,
        "checks": verdict.checks.rows(),
        "metrics": verdict.metrics,
        **verdict.facts,
        "samples": [sample.model_dump() for sample in verdict.samples],
    }
    text = json.dumps(rounded(report), indent=2, sort_keys=True, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")
