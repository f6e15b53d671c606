"""The `trainwright` command. Everything heavy is imported inside the command that needs it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trainwright import __version__

if TYPE_CHECKING:
    from rich.console import Console

    from trainwright.flows.chain import Selection, StepName
    from trainwright.flows.runs import RunRecord, Runs

_FAILED, _USAGE, _CANCELLED = 1, 2, 130


class Group(click.Group):
    """Answers our own errors with their sentence instead of a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            click.echo("cancelled", err=True)
            sys.exit(_CANCELLED)
        except Exception as error:
            message = _said_of_a_place(error) or (str(error) if _expected(error) else None)
            if message is None:
                raise
            click.echo(f"error: {message}", err=True)
            sys.exit(_USAGE)


def _expected(error: Exception) -> bool:
    from trainwright.flows.chain import UnknownNameError
    from trainwright.stages.contract import StageError

    if isinstance(error, StageError | UnknownNameError):
        return True
    return type(error).__name__ in ("RecipeError", "NotFoundError")


def _said_of_a_place(error: Exception) -> str | None:
    """A sentence for a folder or file that cannot be used: the user's disk, not our bug."""
    if not (isinstance(error, OSError) and error.filename and error.strerror):
        return None
    from trainwright.stages.settings import find_home

    return (
        f"{error.filename}: {error.strerror}; is the home {find_home()} a folder that may be written "
        "to, with space left? another one: TRAINWRIGHT_HOME; trainwright doctor checks it"
    )


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="trainwright")
def main() -> None:
    """Raw text to an aligned 8-bit language model: one flow of retriable stages.

    Begin with `trainwright run demo`. Runs, logs and artifacts lie in ./.trainwright
    (TRAINWRIGHT_HOME); artifacts in TRAINWRIGHT_STORE, if set (file:// or s3://).
    """


def _recipe_options(command: Callable[..., Any]) -> Callable[..., Any]:
    options = [
        click.argument("recipe"),
        click.option("--set", "overrides", multiple=True, metavar="A.B=C",
                     help="Set a parameter, e.g. align.ppo.kl_coefficient=0.1. Repeatable."),
        click.option("--from", "first", metavar="STAGE",
                     help="Start here; what lies before must be finished already."),
        click.option("--to", "last", metavar="STAGE", help="End here."),
        click.option("--only", metavar="STAGE", help="Run this stage alone."),
        click.option("--force", multiple=True, metavar="STAGE",
                     help="Run this stage even if nothing changed. Repeatable."),
    ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def _selection(
    first: str | None, last: str | None, only: str | None, force: tuple[str, ...]
) -> Selection:
    from trainwright.flows.chain import Selection, step_named

    def named(name: str | None) -> StepName | None:
        return None if name is None else step_named(name)

    try:
        return Selection(
            named(first), named(last), named(only), frozenset(step_named(name) for name in force)
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from None


@main.command()
@_recipe_options
@click.option(
    "--dry-run", is_flag=True, help="Show what would run or be reused, and why; run nothing."
)
def run(
    recipe: str,
    overrides: tuple[str, ...],
    first: str | None,
    last: str | None,
    only: str | None,
    force: tuple[str, ...],
    dry_run: bool,
) -> None:
    """Run RECIPE (a shipped name or a YAML file), reusing every stage that has not changed.

    Exit code: 0 completed, 1 failed, 2 refused before anything started, 130 cancelled.
    """
    selection = _selection(first, last, only, force)
    from trainwright.flows.recipe import load_recipe, refuse_unreachable

    loaded = load_recipe(recipe, list(overrides))
    refuse_unreachable(loaded, selection.wanted())
    if dry_run:
        _show_plan(loaded, selection)
        return
    from trainwright.flows.foreground import run_in_foreground

    def call() -> Any:
        from trainwright.flows.pipeline import pipeline

        return pipeline(
            loaded, selection.first, selection.last, selection.only, sorted(selection.force),
            return_state=True,
        )  # fmt: skip

    sys.exit(run_in_foreground(_console(), call, f"recipe {loaded.name}"))


@main.command()
@click.argument("run_id", metavar="RUN")
@click.argument("stage")
@click.option("--onward", is_flag=True, help="Go on with the stages after it.")
def rerun(run_id: str, stage: str, onward: bool) -> None:
    """Run one STAGE of RUN again, with the run's own recipe. RUN may be `latest`."""
    from trainwright.flows.chain import step_named

    name = step_named(stage)
    record = _runs().load(run_id)
    from trainwright.flows.foreground import run_in_foreground

    def call() -> Any:
        from trainwright.flows.rerun import rerun_stage

        return rerun_stage(record.id, name, onward, return_state=True)

    sys.exit(run_in_foreground(_console(), call, f"{name} of {record.id}"))


@main.command()
@_recipe_options
def plan(
    recipe: str,
    overrides: tuple[str, ...],
    first: str | None,
    last: str | None,
    only: str | None,
    force: tuple[str, ...],
) -> None:
    """Show what `run` would do with RECIPE: what would run or be reused, and why."""
    selection = _selection(first, last, only, force)
    from trainwright.flows.recipe import load_recipe, refuse_unreachable

    loaded = load_recipe(recipe, list(overrides))
    refuse_unreachable(loaded, selection.wanted())
    _show_plan(loaded, selection)


def _show_plan(recipe: Any, selection: Selection) -> None:
    from rich.markup import escape
    from rich.table import Table

    from trainwright.flows.plan import make_plan

    table = Table(box=None, pad_edge=False)
    for column in ("stage", "action", "why"):
        table.add_column(column, overflow="fold")
    colours = {"reuse": "cyan", "run": "green", "run?": "yellow", "refuse": "red"}
    lines = make_plan(recipe, selection)
    for line in lines:
        colour = colours[line.action]
        table.add_row(line.step.value, f"[{colour}]{line.action}[/]", escape(line.why))
    _console().print(table)
    if any(line.action == "refuse" for line in lines):
        sys.exit(_USAGE)


@main.command()
@click.argument("run_id", metavar="[RUN]", required=False)
@click.option(
    "--limit", type=click.IntRange(1), default=15, show_default=True, help="Runs to list."
)
def status(run_id: str | None, limit: int) -> None:
    """List runs, newest first; or show the stages of one RUN (`latest` works)."""
    from trainwright.flows.mlflow_runs import MlflowRuns
    from trainwright.flows.session import sweep
    from trainwright.stages.settings import settings

    runs = _runs()
    place = settings()
    tracking = MlflowRuns(place.mlflow_uri, place.home / "mlartifacts")
    sweep(runs, tracking, place.prefect_api)
    if run_id is None:
        _list_runs(runs, limit)
        return
    from trainwright.flows import report

    record = runs.load(run_id)
    steps = runs.steps(record.id)
    console = _console()
    console.print(f"run {record.id}: {_state(record)}", highlight=False)
    console.print(report.summary_table(record, steps))
    _show_live_progress(console, record, steps)


def _show_live_progress(console: Console, record: RunRecord, steps: dict[Any, Any]) -> None:
    from trainwright.flows.prefect_view import describe_progress
    from trainwright.stages.contract import StageState
    from trainwright.stages.progress import last_progress
    from trainwright.stages.settings import settings

    for name, step in steps.items():
        if step.state is StageState.RUNNING:
            path = settings().logs / record.id / f"{name}.progress.jsonl"
            if progress := last_progress(path):
                console.print(f"{name}: {describe_progress(progress)}", markup=False)


def _list_runs(runs: Runs, limit: int) -> None:
    from itertools import islice

    from rich.markup import escape
    from rich.table import Table

    from trainwright.flows.runs import DamagedRecordError
    from trainwright.stages.store import NotFoundError

    table = Table(box=None, pad_edge=False)
    for column in ("run", "state", "started", "minutes", "stages done"):
        table.add_column(column)
    for name in islice(runs.names(), limit):
        try:
            record = runs.read(name)
        except DamagedRecordError:
            table.add_row(escape(name), "[red]damaged[/]", "", "", "")
            continue
        except NotFoundError:
            continue
        ended = record.ended_at
        minutes = f"{(ended - record.started_at).total_seconds() / 60:.1f}" if ended else ""
        done = [name for name, step in runs.steps(record.id).items() if step.done]
        table.add_row(
            record.id, _state(record), f"{record.started_at:%Y-%m-%d %H:%M}", minutes,
            f"{len(done)}",
        )  # fmt: skip
    if not table.rows:
        click.echo("no runs yet; begin with: trainwright run demo")
        return
    _console().print(table)


def _state(record: RunRecord) -> str:
    colour = {"completed": "green", "running": "cyan", "cancelled": "yellow"}.get(
        record.state, "red"
    )
    return f"[{colour}]{record.state.value}[/]"


@main.command()
@click.argument("run_id", metavar="RUN")
@click.argument("stage", required=False)
@click.option("--follow", "-f", is_flag=True, help="Go on while the stage writes.")
@click.option(
    "--lines",
    "-n",
    type=click.IntRange(1),
    default=200,
    show_default=True,
    help="Last lines of a stage's log.",
)
def logs(run_id: str, stage: str | None, follow: bool, lines: int) -> None:
    """Print the log of a STAGE of RUN (default: the stage reached last)."""
    from trainwright.flows.chain import step_named
    from trainwright.flows.follow import print_log

    runs = _runs()
    record = runs.load(run_id)
    wanted = None if stage is None else step_named(stage)
    print_log(runs, record, wanted, follow=follow, lines=lines)


@main.command()
@click.argument("run_id", metavar="RUN", default="latest")
@click.option(
    "--html", type=click.Path(path_type=Path, dir_okay=False), help="Write the page there."
)
def report(run_id: str, html: Path | None) -> None:
    """Print the summary of RUN (default: the latest), and write its page."""
    from trainwright.flows import report as reporting
    from trainwright.stages.settings import settings

    runs = _runs()
    record = runs.load(run_id)
    steps = runs.steps(record.id)
    path = html or settings().home / "reports" / record.id / "report.html"
    reporting.write_html(record, steps, path)
    record = record.model_copy(update={"report": str(path)})
    reporting.print_summary(_console(), record, steps)


@main.command()
@click.argument("run_a", metavar="RUN")
@click.argument("run_b", metavar="RUN")
def diff(run_a: str, run_b: str) -> None:
    """Compare two runs: parameters, artifacts, figures."""
    from trainwright.flows.diff import print_diff

    runs = _runs()
    print_diff(_console(), runs, runs.load(run_a), runs.load(run_b))


@main.command()
@click.argument("run_id", metavar="RUN")
def cancel(run_id: str) -> None:
    """End RUN and every process it started."""
    from trainwright.flows.cancel import cancel_run

    runs = _runs()
    click.echo(cancel_run(runs, runs.load(run_id)))


@main.command()
def up() -> None:
    """Start a Prefect server with a worker and an MLflow server, all on loopback."""
    from trainwright.flows.deployments import deploy
    from trainwright.flows.stack import up as start

    start(_console(), deploy=deploy)


@main.command()
def down() -> None:
    """End what `up` started."""
    from trainwright.flows.stack import down as stop

    stop(_console())


@main.command()
@click.option("--prebuild", is_flag=True, help="Compile DeepSpeed's ops now, not at the first run.")
def doctor(prebuild: bool) -> None:
    """Check this machine, and say how to mend what is amiss."""
    from trainwright.flows.doctor import print_checks

    sys.exit(print_checks(_console(), prebuild=prebuild))


@main.command()
@click.option("--delete", is_flag=True, help="Delete; without it, list what would go.")
@click.option("--older-than", default=7.0, show_default=True, help="Keep what is younger, in days.")
@click.option(
    "--keep-runs", default=20, show_default=True, help="Newest runs whose artifacts stay."
)
def gc(delete: bool, older_than: float, keep_runs: int) -> None:
    """List (or delete) artifacts that no kept run names, and leftovers of broken writes."""
    from trainwright.flows.collect import collect_garbage

    collect_garbage(_console(), _runs(), delete=delete, days=older_than, keep_runs=keep_runs)


@main.command()
def recipes() -> None:
    """List the recipes that ship with the product."""
    from trainwright.flows.recipe import read_yaml, shipped

    for name in shipped():
        click.echo(f"{name:<10}{read_yaml(name).get('description', '')}")


def _console() -> Console:
    from rich.console import Console

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 140
    return Console(highlight=False, width=width)


def _runs() -> Runs:
    from trainwright.flows.runs import Runs
    from trainwright.stages.settings import settings
    from trainwright.stages.store import open_store

    return Runs(open_store(settings().store))


if __name__ == "__main__":
    main()
