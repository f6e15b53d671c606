"""Two runs side by side: what moved is named, what did not is not."""

from io import StringIO
from pathlib import Path

from rich.console import Console
from sample_run import METRICS, RECIPE, sample_record, sample_run, sample_steps

from trainwright.flows.chain import StepName
from trainwright.flows.diff import MetricDiff, StepDiff, compare, print_diff, render
from trainwright.flows.runs import Runs
from trainwright.stages.align.params import AlignParams
from trainwright.stages.contract import ArtifactRef, StageResult, StageState
from trainwright.stages.store import open_store


def step(found, name: StepName) -> StepDiff:
    return next(one for one in found.steps if one.step is name)


def test_a_run_compared_with_itself_differs_in_nothing() -> None:
    found = compare(sample_run(), sample_steps(), sample_run(), sample_steps())
    assert found.execution == []
    for one in found.steps:
        assert one.same_artifact is True
        assert one.verdict == "the same artifact"
        assert not (one.params or one.runtime or one.inputs or one.external)
        assert all(metric.difference == 0 for metric in one.metrics)


def test_the_parameter_that_moved_is_named_apart_from_those_that_do_not_bear_on_the_output() -> (
    None
):
    plain = AlignParams().model_dump(mode="json", by_alias=True)
    runtime = next(
        name
        for name, field in AlignParams.model_fields.items()
        if isinstance(field.json_schema_extra, dict)
        and field.json_schema_extra.get("identity") is False
        and isinstance(plain[name], int)
    )
    moved = {**plain, "seed": plain["seed"] + 1, runtime: plain[runtime] + 1}
    a, b = sample_steps(), sample_steps()
    a[StepName.ALIGN] = sample_record(StepName.ALIGN, params=plain)
    b[StepName.ALIGN] = sample_record(StepName.ALIGN, params=moved)
    found = step(compare(sample_run(), a, sample_run(), b), StepName.ALIGN)
    assert found.params == [f"seed: {plain['seed']} -> {plain['seed'] + 1}"]
    assert found.runtime == [f"{runtime}: {plain[runtime]} -> {plain[runtime] + 1}"]


def test_parameters_that_this_version_cannot_read_are_compared_as_they_are() -> None:
    a, b = sample_steps(), sample_steps()
    a[StepName.ALIGN] = sample_record(StepName.ALIGN, params={"gone_since": 1})
    b[StepName.ALIGN] = sample_record(StepName.ALIGN, params={"gone_since": 2})
    found = step(compare(sample_run(), a, sample_run(), b), StepName.ALIGN)
    assert found.params == ["gone_since: 1 -> 2"]


def test_inputs_figures_and_bytes_that_moved_are_shown() -> None:
    a, b = sample_steps(), sample_steps()
    refs = [ArtifactRef(uri="file:///s/artifacts/corpus/x", digest=c * 64) for c in "ab"]
    record = sample_record(StepName.PRETRAIN, inputs={"corpus": refs[0]}, external={"s": "1" * 64})
    a[StepName.PRETRAIN] = record
    b[StepName.PRETRAIN] = sample_record(
        StepName.PRETRAIN,
        inputs={"corpus": refs[1]},
        external={"s": "2" * 64},
        artifact=refs[1],
        result=StageResult(metrics={**METRICS[StepName.PRETRAIN], "heldout_loss": 4.1418}),
    )
    found = step(compare(sample_run(), a, sample_run(), b), StepName.PRETRAIN)
    assert found.same_artifact is False
    assert found.inputs == [f"corpus: {'a' * 12} -> {'b' * 12}"]
    assert found.external == [f"s: {'1' * 12} -> {'2' * 12}"]
    moved = [m for m in found.metrics if m.difference]
    assert [m.name for m in moved] == ["heldout_loss"]
    assert abs((moved[0].relative or 0) + 0.1) < 1e-3


def test_equal_bytes_made_twice_are_the_same_and_said_to_be_made_twice() -> None:
    a, b = sample_steps(), sample_steps()
    other = a[StepName.CORPUS].artifact
    assert other is not None
    moved = ArtifactRef(uri="file:///elsewhere/artifacts/corpus/x", digest=other.digest)
    b[StepName.CORPUS] = sample_record(StepName.CORPUS, artifact=moved)
    found = step(compare(sample_run(), a, sample_run(), b), StepName.CORPUS)
    assert found.same_artifact is True and found.verdict == "made twice, the same bytes"


def test_a_step_that_one_run_did_not_reach_is_said_to_be_so() -> None:
    a, b = sample_steps(), sample_steps()
    del b[StepName.ACCEPT]
    b[StepName.QUANTIZE] = sample_record(
        StepName.QUANTIZE, state=StageState.FAILED, artifact=None, result=StageResult()
    )
    found = compare(sample_run(), a, sample_run(), b)
    assert step(found, StepName.ACCEPT).verdict == "only in A"
    assert step(found, StepName.QUANTIZE).same_artifact is None
    assert "failed" in step(found, StepName.QUANTIZE).verdict


def test_a_step_that_neither_reached_shows_what_its_recipe_moved() -> None:
    other = {**RECIPE, "align": {"ppo": {"kl_coefficient": 0.2}}, "execution": {"retries": 0}}
    found = compare(sample_run(), {}, sample_run(recipe=other), {})
    assert [(one.step, one.params) for one in found.steps] == [
        (StepName.ALIGN, ["ppo.kl_coefficient: 0.1 -> 0.2"])
    ]
    assert len(found.execution) == 1 and found.execution[0].startswith("execution: (absent)")


def test_relative_difference_of_zero_is_not_a_number_made_up() -> None:
    assert MetricDiff("x", 0.0, 1.0).relative is None
    assert MetricDiff("x", None, 1.0).difference is None
    assert MetricDiff("x", -2.0, -1.0).relative == 0.5


def test_two_runs_of_a_store_are_printed(tmp_path: Path) -> None:
    runs = Runs(open_store(f"file://{tmp_path}/store"))
    a, b = sample_run(), sample_run(id="demo-20261202-101502-abcd")
    for run in (a, b):
        runs.save(run)
    for record in sample_steps().values():
        runs.save_step(record)
    changed = {**METRICS[StepName.ALIGN], "reward_after": 0.6}
    for name in StepName:
        record = sample_record(name, run_id=b.id)
        if name is StepName.ALIGN:
            record = record.model_copy(update={"result": StageResult(metrics=changed)})
        runs.save_step(record)
    console = Console(file=StringIO(), width=120)
    print_diff(console, runs, a, b)
    text = console.file.getvalue()
    assert a.id in text and b.id in text
    line = next(line for line in text.splitlines() if "reward_after" in line)
    assert line.split() == ["reward_after", "0.4387", "0.6", "+0.1613", "+36.8%"]
    assert "reward_before" not in text


def test_hostile_parameters_are_printed_as_text() -> None:
    a, b = sample_steps(), sample_steps()
    b[StepName.CORPUS] = sample_record(StepName.CORPUS, params={"[red]x[/]": "\x1b[2J"})
    console = Console(file=StringIO(), width=120)
    render(console, compare(sample_run(), a, sample_run(), b))
    assert "\x1b" not in console.file.getvalue()
    assert "[red]x[/]" in console.file.getvalue()


def test_libraries_that_moved_are_named_where_both_artifacts_tell_theirs() -> None:
    old = {StepName.ALIGN: {"torch": "2.13.0", "numpy": "2.4.6"}, StepName.CORPUS: {"duckdb": "1"}}
    new = {StepName.ALIGN: {"torch": "2.14.0", "numpy": "2.4.6"}}
    found = compare(sample_run(), sample_steps(), sample_run(), sample_steps(), (old, new))
    assert step(found, StepName.ALIGN).environment == ["torch: 2.13.0 -> 2.14.0"]
    assert step(found, StepName.CORPUS).environment == []


def test_other_bytes_from_the_same_request_are_pointed_out() -> None:
    a, b = sample_steps(), sample_steps()
    other = ArtifactRef(uri="file:///s/artifacts/align/x", digest="e" * 64)
    b[StepName.ALIGN] = sample_record(StepName.ALIGN, artifact=other)
    found = step(compare(sample_run(), a, sample_run(), b), StepName.ALIGN)
    assert found.verdict == "other bytes"
    assert len(found.notes) == 1 and "the stage made other bytes" in found.notes[0]
    assert step(compare(sample_run(), a, sample_run(), a), StepName.ALIGN).notes == []


def test_a_figure_that_is_nan_in_both_has_not_moved() -> None:
    nan = float("nan")
    assert not MetricDiff("x", nan, nan).moved
    assert MetricDiff("x", nan, 1.0).moved and MetricDiff("x", None, 1.0).moved
