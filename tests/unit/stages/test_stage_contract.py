"""Exit codes, records, and the models at the border between flows and stages."""

from __future__ import annotations

import math
import signal
import subprocess
import sys

import pytest
from pydantic import ValidationError

from trainwright.stages import contract
from trainwright.stages.contract import (
    ArtifactRef,
    ExitCode,
    StageRecord,
    StageResult,
    StageSpec,
    StageState,
    exit_code_of,
    read_spec,
    utcnow,
)


@pytest.mark.parametrize("code", list(ExitCode))
def test_an_exit_code_survives_the_way_through_a_process(code: ExitCode) -> None:
    ended = subprocess.run([sys.executable, "-S", "-c", f"raise SystemExit({int(code)})"])
    assert exit_code_of(ended.returncode) is code


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, ExitCode.CANCELLED),
        (signal.SIGINT, ExitCode.CANCELLED),
        (signal.SIGKILL, ExitCode.NODE_FAULT),
        (signal.SIGSEGV, ExitCode.NODE_FAULT),
        (signal.SIGBUS, ExitCode.NODE_FAULT),
    ],
)
def test_a_signal_is_a_cancel_or_a_fault_of_the_node(
    number: signal.Signals, code: ExitCode
) -> None:
    assert exit_code_of(-number) is code
    assert exit_code_of(128 + number) is code, "as a shell or a container engine reports it"


def test_an_unknown_code_is_unexpected_and_never_retried() -> None:
    assert exit_code_of(3) is ExitCode.UNEXPECTED
    assert exit_code_of(255) is ExitCode.UNEXPECTED


def test_transient_and_node_faults_are_retried_and_nothing_else() -> None:
    assert {code for code in ExitCode if code.retryable} == {
        ExitCode.TRANSIENT,
        ExitCode.NODE_FAULT,
    }


def test_every_stage_error_has_an_exit_code_of_its_own() -> None:
    errors = [
        value
        for value in vars(contract).values()
        if isinstance(value, type)
        and issubclass(value, contract.StageError)
        and value is not contract.StageError
    ]
    codes = [error.exit_code for error in errors]
    assert len(set(codes)) == len(codes) == 6
    assert ExitCode.OK not in codes


def spec() -> StageSpec:
    return StageSpec(
        run_id="r", step="corpus", program="corpus", params={"a": 1}, fingerprint="f",
        output="file:///s/artifacts/corpus/f", work="w", cache="c", outcome="o", progress="p",
        inputs={"x": ArtifactRef(uri="u", digest="d")},
    )  # fmt: skip


def test_a_spec_comes_back_from_its_file(tmp_path) -> None:
    (tmp_path / "spec.json").write_text(spec().model_dump_json())
    assert read_spec(tmp_path / "spec.json") == spec()


def test_an_unknown_key_is_refused_everywhere(tmp_path) -> None:
    with pytest.raises(ValidationError, match="extra"):
        StageSpec.model_validate({**spec().model_dump(), "unknown": 1})
    with pytest.raises(ValidationError, match=r"inputs\.x\.unknown"):
        values = spec().model_dump()
        values["inputs"]["x"]["unknown"] = 1
        StageSpec.model_validate(values)


def test_a_record_keeps_figures_that_are_not_finite() -> None:
    record = StageRecord(
        run_id="r", step="s", program="p", state=StageState.FAILED, started_at=utcnow(),
        result=StageResult(metrics={"loss": math.nan, "best": -math.inf}),
    )  # fmt: skip
    read = StageRecord.model_validate_json(record.model_dump_json())
    assert math.isnan(read.result.metrics["loss"])
    assert read.result.metrics["best"] == -math.inf


@pytest.mark.parametrize("state", list(StageState))
def test_only_a_completed_or_reused_step_can_be_read(state: StageState) -> None:
    record = StageRecord(run_id="r", step="s", program="p", state=state, started_at=utcnow())
    assert record.done is (state in ("completed", "reused"))
    assert record.seconds >= 0
