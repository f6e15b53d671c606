"""Two runs side by side: which artifacts are the same, what moved, and what it did to the figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from trainwright.flows.chain import StepName
from trainwright.flows.findings import Steps, show_number
from trainwright.flows.report import outcome, printable
from trainwright.flows.runs import RunRecord, Runs
from trainwright.stages.artifact import open_artifact
from trainwright.stages.contract import StageError, StageRecord
from trainwright.stages.fingerprint import drift
from trainwright.stages.registry import PROGRAMS

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

Environments = Mapping[StepName, Mapping[str, str]]
"""By step: versions that made its artifact."""


@dataclass(frozen=True)
class MetricDiff:
    """A figure of both runs; None where one has none."""

    name: str
    a: float | None
    b: float | None

    @property
    def difference(self) -> float | None:
        """b - a."""
        return None if self.a is None or self.b is None else self.b - self.a

    @property
    def relative(self) -> float | None:
        """(b - a) / |a|; None where a is 0."""
        return self.difference / abs(self.a) if self.difference is not None and self.a else None

    @property
    def moved(self) -> bool:
        """Whether the runs differ in it; NaN equals NaN."""
        both_nan = self.a != self.a and self.b != self.b
        return self.a != self.b and not both_nan


@dataclass(frozen=True)
class StepDiff:
    """What differs in a step. Lines are `path: a -> b`."""

    step: StepName
    a: StageRecord | None
    b: StageRecord | None
    params: list[str] = field(default_factory=list)
    """Parameters that bear on the output."""
    runtime: list[str] = field(default_factory=list)
    """Parameters that do not."""
    inputs: list[str] = field(default_factory=list)
    external: list[str] = field(default_factory=list)
    environment: list[str] = field(default_factory=list)
    """Versions of trainwright and of the libraries that made the artifact."""
    metrics: list[MetricDiff] = field(default_factory=list)

    @property
    def same_artifact(self) -> bool | None:
        """Whether both have the same bytes; None where one has no artifact."""
        if self.a is None or self.b is None or self.a.artifact is None or self.b.artifact is None:
            return None
        return bool(self.a.artifact.digest == self.b.artifact.digest)

    @property
    def verdict(self) -> str:
        """The state of things in a few words."""
        if self.a is None or self.b is None:
            return f"only in {'B' if self.a is None else 'A'}"
        if self.same_artifact is None:
            return f"A {outcome(self.a)}, B {outcome(self.b)}"
        if not self.same_artifact:
            return "other bytes"
        shared = self.a.artifact is not None and self.a.artifact == self.b.artifact
        return "the same artifact" if shared else "made twice, the same bytes"

    @property
    def notes(self) -> list[str]:
        """Why the bytes differ where nothing does that was asked."""
        if self.same_artifact is not False or self.a is None or self.b is None:
            return []
        if self.a.fingerprint == self.b.fingerprint:
            return ["both were asked for the same (equal fingerprints); the stage made other bytes"]
        if not (self.params or self.inputs or self.external):
            return ["nothing that was asked differs: the version of the stage's program does"]
        return []


@dataclass(frozen=True)
class RunDiff:
    """What differs between two runs."""

    a: RunRecord
    b: RunRecord
    execution: list[str]
    """Differences of the recipes outside the steps (retries, name)."""
    steps: list[StepDiff]


def compare(
    a: RunRecord,
    steps_a: Steps,
    b: RunRecord,
    steps_b: Steps,
    environments: tuple[Environments, Environments] = ({}, {}),
) -> RunDiff:
    """Compare two runs by their records; parameters of a step not reached come from the recipe."""
    reached = [name for name in StepName if name in steps_a or name in steps_b]
    steps = [
        replace(
            _diff_step(name, a, steps_a.get(name), b, steps_b.get(name)),
            environment=_drift_where_both(name, *environments),
        )
        for name in StepName
    ]
    rest = [{k: v for k, v in run.recipe.items() if k not in set(StepName)} for run in (a, b)]
    shown = [step for step in steps if step.step in reached or step.params]
    return RunDiff(a, b, drift(rest[0], rest[1]), shown)


def _diff_step(
    name: StepName, run_a: RunRecord, a: StageRecord | None, run_b: RunRecord, b: StageRecord | None
) -> StepDiff:
    old, new = _params(name, run_a, a), _params(name, run_b, b)
    bearing = drift(_identity(name, a, old), _identity(name, b, new))
    everything = drift(old, new)
    return StepDiff(
        step=name,
        a=a,
        b=b,
        params=bearing,
        runtime=[line for line in everything if line not in bearing],
        inputs=drift(_inputs(a), _inputs(b)) if a and b else [],
        external=drift(a.external, b.external) if a and b else [],
        metrics=_metrics(a, b),
    )


def _params(name: StepName, run: RunRecord, record: StageRecord | None) -> dict[str, Any]:
    if record is not None and record.params:
        return record.params
    return dict(run.recipe.get(name.value) or {})


def _identity(name: StepName, record: StageRecord | None, params: dict[str, Any]) -> dict[str, Any]:
    """The parameters that bear on the output; all, if this version no longer reads them."""
    program = record.program if record is not None else _program(name)
    try:
        return PROGRAMS[program].params_class.model_validate(params).identity()
    except (ValidationError, StageError, KeyError):
        return params


def _program(name: StepName) -> str:
    from trainwright.flows.chain import STEPS

    return STEPS[name].program


def _inputs(record: StageRecord) -> dict[str, str]:
    return {name: ref.digest for name, ref in record.inputs.items()}


def _drift_where_both(name: StepName, a: Environments, b: Environments) -> list[str]:
    return drift(dict(a[name]), dict(b[name])) if name in a and name in b else []


def made_with(steps: Steps) -> dict[StepName, dict[str, str]]:
    """Versions that made each artifact, from its manifest; one that cannot be read is left out."""
    found = {}
    for name, record in steps.items():
        if record.artifact is None:
            continue
        try:
            manifest = open_artifact(record.artifact.uri).manifest()
        except (StageError, OSError):
            continue
        if manifest is not None:
            found[name] = {"trainwright": manifest.code_version, **manifest.environment}
    return found


def _metrics(a: StageRecord | None, b: StageRecord | None) -> list[MetricDiff]:
    old = a.result.metrics if a else {}
    new = b.result.metrics if b else {}
    return [MetricDiff(name, old.get(name), new.get(name)) for name in dict.fromkeys([*old, *new])]


# -- rendering


def print_diff(console: Console, runs: Runs, a: RunRecord, b: RunRecord) -> RunDiff:
    """Compare two runs of the store and print what differs; the comparison."""
    steps_a, steps_b = runs.steps(a.id), runs.steps(b.id)
    found = compare(a, steps_a, b, steps_b, (made_with(steps_a), made_with(steps_b)))
    render(console, found)
    return found


def render(console: Console, found: RunDiff) -> None:
    """Print a comparison."""
    from rich.text import Text

    for letter, run in (("A", found.a), ("B", found.b)):
        started = f"{run.started_at:%Y-%m-%d %H:%M} UTC"
        console.print(Text(f"{letter}  {run.id}  {run.state.value}  {started}"))
    for line in found.execution:
        console.print(Text(f"   {printable(line)}", style="yellow"))
    for step in found.steps:
        _render_step(console, step)


def _render_step(console: Console, step: StepDiff) -> None:
    from rich.text import Text

    same = step.same_artifact
    colour = {True: "cyan", False: "yellow", None: "red"}[same]
    console.print(Text.assemble("\n", (f"{step.step.value:<11}", "bold"), (step.verdict, colour)))
    for kind, lines, style in (
        ("parameter", step.params, "yellow"),
        ("parameter, not bearing on the output", step.runtime, "dim"),
        ("input", step.inputs, "yellow"),
        ("read from outside", step.external, "yellow"),
        ("made with", step.environment, "dim"),
        ("note", step.notes, ""),
    ):
        for line in lines:
            console.print(Text.assemble(f"  {kind}  ", (printable(line), style)))
    moved = [m for m in step.metrics if m.moved]
    if moved:
        console.print(metric_table(moved))
    elif step.metrics:
        console.print(Text(f"  all {len(step.metrics)} figures are equal", style="dim"))


def metric_table(rows: list[MetricDiff]) -> RenderableType:
    """Figures side by side, with difference and relative difference."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("  figure")
    for column in ("A", "B", "B - A", ""):
        table.add_column(column, justify="right")
    for row in rows:
        relative = "" if row.relative is None else f"{row.relative:+.1%}"
        sign = "+" if (row.difference or 0) > 0 else ""
        table.add_row(
            Text(f"  {printable(row.name)}"), _shown(row.a, row.name), _shown(row.b, row.name),
            "" if row.difference is None else f"{sign}{show_number(row.difference, row.name)}",
            relative,
        )  # fmt: skip
    return table


def _shown(value: float | None, name: str) -> str:
    return "—" if value is None else show_number(value, name)
