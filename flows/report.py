"""What happened in a run, rendered from its records: for the terminal, as a page, as Markdown.

Nothing here knows a figure of its own: a figure that no record has is shown as not measured.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwright.flows.chain import StepName
from trainwright.flows.findings import (
    KEY_METRICS,
    Finding,
    Steps,
    findings,
    show_number,
    show_seconds,
)
from trainwright.flows.runs import RunRecord, RunState
from trainwright.stages.contract import ExitCode, StageRecord, StageState

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

_COLOURS = {
    StageState.COMPLETED: "green",
    StageState.REUSED: "cyan",
    StageState.RUNNING: "blue",
    StageState.CANCELLED: "yellow",
}
_VERDICT_COLOURS = {True: "green", False: "bold red", None: "yellow"}
_WIDE = 132
"""From this width on, artifacts stand in the table; else below it."""

_SAMPLE = ("prompt", "before", "after")

Links = dict[str, str]
"""`prefect` and `mlflow`: URLs of this run's pages; absent where no server is up."""


def printable(text: str) -> str:
    """The text without characters that steer a terminal or turn its direction."""
    return "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text
    )


# -- one table


def outcome(record: StageRecord) -> str:
    """`reused`, `ran`, `ran (2 tries)`, `failed (3 tries)`, `running`."""
    word = "ran" if record.state is StageState.COMPLETED else str(record.state.value)
    return f"{word} ({record.attempts} tries)" if record.attempts > 1 else word


def key_metrics(record: StageRecord) -> str:
    """The figures of the step that the table shows, those that its record has."""
    metrics = record.result.metrics
    names = KEY_METRICS.get(StepName(record.step), ())
    return " · ".join(f"{n} {show_number(metrics[n], n)}" for n in names if n in metrics)


def advice(record: StageRecord) -> str:
    """What to do about a step that did not end well."""
    code = ExitCode(record.exit_code) if record.exit_code in list(ExitCode) else None
    again = f"{command()} rerun {record.run_id} {record.step} --onward"
    logs = f"{command()} logs {record.run_id} {record.step}"
    if record.state is StageState.CANCELLED or record.state is StageState.CRASHED:
        return f"go on where it ended: {again}"
    if code in (ExitCode.USAGE, ExitCode.GATE):
        return "change the recipe (--set) and run it again: what has not changed is reused"
    if code is ExitCode.DATA:
        return f"mend the data, then: {again}"
    if code in (ExitCode.TRANSIENT, ExitCode.NODE_FAULT):
        return f"all tries are used up; when the cause is gone: {again}"
    if code is ExitCode.BREAKER:
        return f"a breaker is open, so a person decides: {logs}"
    return f"an error nobody foresaw: {logs}"


def summary_table(run: RunRecord, steps: Steps) -> RenderableType:
    """One row a stage: reused or ran, time, key figures, artifact; errors with what to do."""
    return _Summary(run, steps)


@dataclass
class _Summary:
    run: RunRecord
    steps: Steps

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.table import Table
        from rich.text import Text

        wide = options.max_width >= _WIDE
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for column in ("stage", "", "time"):
            table.add_column(column, no_wrap=True)
        table.add_column("key metrics", overflow="fold", ratio=1)
        if wide:
            table.add_column("artifact", overflow="fold", max_width=64)
        for name, record in self.steps.items():
            colour = _COLOURS.get(record.state, "red")
            cells: list[RenderableType] = [
                name.value, Text(outcome(record), style=colour), show_seconds(record.seconds),
                _what_happened(record),
            ]  # fmt: skip
            table.add_row(*cells, *([_artifact(record)] if wide else []))
        yield table
        if not wide:
            yield from _artifacts_below(self.steps)


def _what_happened(record: StageRecord) -> RenderableType:
    from rich.text import Text

    if not record.error:
        return Text(key_metrics(record))
    return Text.assemble(
        (printable(record.error), "red"), "\n", (f"→ {printable(advice(record))}", "yellow")
    )


def _artifact(record: StageRecord) -> RenderableType:
    from rich.text import Text

    if record.artifact is None:
        return Text("")
    return Text.assemble(record.artifact.digest[:12], "\n", (place_of(record), "dim"))


def _artifacts_below(steps: Steps) -> list[RenderableType]:
    from rich.text import Text

    made = [(name, record) for name, record in steps.items() if record.artifact is not None]
    lines: list[RenderableType] = [Text("\nartifacts", style="bold")] if made else []
    for name, record in made:
        assert record.artifact is not None
        line = f"{name.value:<11}{record.artifact.digest[:12]}  "
        lines.append(Text.assemble(line, (place_of(record), "dim")))
    return lines


def place_of(record: StageRecord) -> str:
    """The artifact's folder as a person would type it: a path from here, or its URI."""
    if record.artifact is None:
        return ""
    uri = record.artifact.uri
    if not uri.startswith("file://"):
        return uri
    path = Path(uri.removeprefix("file://"))
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


# -- the summary on the terminal


def print_summary(
    console: Console, run: RunRecord, steps: Steps, links: Links | None = None
) -> None:
    """The table, samples before and after tuning, what was learned, and the commands to go on."""
    from rich.text import Text

    console.print(summary_table(run, steps))
    if samples := tuning_samples(steps):
        console.print(Text("\nsamples", style="bold"))
        for title, sample in samples:
            console.print(_sample(title, sample))
    # Of a run that ends before the chain does, what it never reached is not worth a line here.
    if reached := [finding for finding in findings(steps) if finding.step in steps]:
        console.print(Text("\nwhat was learned", style="bold"))
        console.print(_findings_table(reached))
    console.print(Text(f"\nrun {run.id}: {run.state.value}", style="bold"))
    if run.error:
        console.print(Text(printable(run.error), style="red"))
    for name, command in next_steps(run, steps, run_links(run) if links is None else links):
        console.print(Text.assemble(f"  {name:<10}", (command, "cyan")), soft_wrap=True)


def _findings_table(found: list[Finding]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", ratio=1)
    for finding in found:
        figures = Text.assemble(f"{finding.text}\n", (finding.shown, "dim"))
        table.add_row(Text(finding.verdict, style=_VERDICT_COLOURS[finding.holds]), figures)
    return table


def tuning_samples(steps: Steps, *, everything: bool = False) -> list[tuple[str, dict[str, str]]]:
    """Samples with `prompt`, `before` and `after` of instruct and align: the first of each, or all."""
    found = []
    for name, title in ((StepName.INSTRUCT, "LoRA"), (StepName.ALIGN, "RLHF")):
        record = steps.get(name)
        rows = record.result.summary.get("samples") if record is not None and record.done else None
        samples = [
            (title, {key: str(row[key]) for key in _SAMPLE})
            for row in (rows if isinstance(rows, list) else [])
            if isinstance(row, dict) and row.keys() >= set(_SAMPLE)
        ]
        found += samples if everything else samples[:1]
    return found


def _sample(title: str, sample: dict[str, str]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold", ratio=1)
    names = (("prompt", "prompt"), (f"before {title}", "before"), (f"after {title}", "after"))
    for label, key in names:
        grid.add_row(label, Text(printable(" ".join(sample[key].split())) or "(nothing)"))
    return grid


def run_links(run: RunRecord) -> Links:
    """URLs of the run's pages on the stack of this home, if it is up."""
    from trainwright.flows.stack import stack_status

    stack = stack_status()
    if not stack.up:
        return {}
    links = {"mlflow": stack.urls["mlflow"], "prefect": stack.urls["prefect_ui"]}
    if run.prefect_flow_run_id:
        links["prefect"] += f"/runs/flow-run/{run.prefect_flow_run_id}"
    return links


def command() -> str:
    """The command as it can be typed here: by its path where the environment is not activated."""
    if shutil.which("trainwright") is not None:
        return "trainwright"
    program = Path(sys.argv[0])
    if program.name != "trainwright":
        return "trainwright"
    here = Path.cwd()
    return str(program.relative_to(here) if program.is_relative_to(here) else program)


def next_steps(run: RunRecord, steps: Steps, links: Links) -> list[tuple[str, str]]:
    """What a person can do now: name and exact command or address."""
    lines = []
    if run.report:
        lines.append(("page", Path(run.report).resolve().as_uri()))
    if links:
        lines += [("Prefect", links["prefect"]), ("MLflow", f"{links['mlflow']} (run {run.id})")]
    else:
        lines += [("Prefect", f"{command()} up   (prints its address; this run is in it)"),
                  ("MLflow", f"{command()} up   (then search for {run.id})")]  # fmt: skip
    failed = [name for name, record in steps.items() if not record.done]
    if failed and run.state is not RunState.RUNNING:
        lines.append(("go on", f"{command()} rerun {run.id} {failed[0]} --onward"))
    elif StepName.ALIGN in steps:
        lines.append(("rerun", f"{command()} rerun {run.id} {StepName.ALIGN} --onward"))
    elif steps:
        lines.append(("rerun", f"{command()} rerun {run.id} {list(steps)[-1]}"))
    return lines


# -- Markdown, for Prefect's page


def markdown(run: RunRecord, steps: Steps) -> str:
    """The table and what was learned, short, for an artifact on Prefect's page."""
    lines = [
        f"## {_md(run.id)}: {run.state.value}",
        "",
        "| stage | | time | key metrics | artifact |",
        "|---|---|---|---|---|",
    ]
    for name, record in steps.items():
        what = f"**{_md(record.error)}** → {_md(advice(record))}" if record.error else ""
        digest = f"`{record.artifact.digest[:12]}`" if record.artifact else ""
        cells = (name.value, outcome(record), show_seconds(record.seconds),
                 what or _md(key_metrics(record)), digest)  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "### What was learned", ""]
    lines += [f"- **{f.verdict}**: {_md(f.text)}: {_md(f.shown)}" for f in findings(steps)]
    return "\n".join(lines) + "\n"


def _md(text: str) -> str:
    """Text that is text in Markdown: neither a table's end, nor markup, nor HTML."""
    flat = " ".join(printable(text).split())
    return re.sub(r"([\\`*_{}\[\]<>()#+|~!&])", r"\\\1", flat)


# -- the page


def all_samples(steps: Steps) -> dict[str, Any]:
    """Every sample of every step, as JSON: `completions` and, of tuning, `before_and_after`."""
    found: dict[str, Any] = {}
    for name, record in steps.items():
        said = {
            "completions": [sample.model_dump() for sample in record.result.samples],
            "before_and_after": record.result.summary.get("samples") or [],
        }
        if kept := {kind: rows for kind, rows in said.items() if rows}:
            found[name.value] = kept
    return found


def write_html(
    run: RunRecord, steps: Steps, path: Path, extra: dict[str, Any] | None = None
) -> Path:
    """Write the run's page: one file that loads nothing.

    Beside it lie the plots as PNG and, if there are any, samples as `samples.json`. `extra` is shown at
    the end, a section a key (tables, texts).
    """
    from trainwright.flows.page import gather, render

    material = gather(run, steps)
    _write(path, render(material, extra or {}).encode("utf-8", "replace"))
    for name, data in material.pngs().items():
        _write(path.with_name(f"{name}.png"), data)
    if samples := all_samples(steps):
        # ASCII, since a model may write half of a surrogate pair, which UTF-8 cannot.
        _write(path.with_name("samples.json"), json.dumps(samples, indent=1).encode())
    return path


def _write(path: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_bytes(data)
    temporary.replace(path)
