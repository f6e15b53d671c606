"""What a run would do, without doing it: reuse or run, and why."""

from __future__ import annotations

from dataclasses import dataclass

from trainwright.flows.chain import STEPS, Selection, StepName
from trainwright.flows.execute import Engine, Silent
from trainwright.flows.recipe import Recipe
from trainwright.flows.runs import Owner, RunRecord, Runs, RunState
from trainwright.stages.contract import ArtifactRef, StageError, utcnow
from trainwright.stages.settings import settings
from trainwright.stages.store import open_store


@dataclass(frozen=True)
class PlanLine:
    """A step's fate."""

    step: StepName
    action: str
    """`reuse`, `run`, `run?` (its inputs are not known yet), or `refuse`."""
    why: str


def make_plan(recipe: Recipe, selection: Selection) -> list[PlanLine]:
    """The fate of every step of the selection, in order.

    A step after one that will run is `run?`: if that one makes the same bytes as before, what follows
    is reused.
    """
    place = settings()
    runs = Runs(open_store(place.store))
    run = RunRecord(
        id="plan",
        recipe_name=recipe.name,
        recipe=recipe.dump(),
        state=RunState.RUNNING,
        owner=Owner.me(),
        started_at=utcnow(),
    )
    engine = Engine(place, recipe, selection, runs, run, Silent())
    lines: list[PlanLine] = []
    open_steps: set[StepName] = set()
    for name in selection.needed():
        waits = [source for source in STEPS[name].inputs.values() if source in open_steps]
        line = _unknown(engine, name, waits) if waits else _known(engine, name)
        if line.action != "reuse":
            open_steps.add(name)
        lines.append(line)
    return lines


def _unknown(engine: Engine, name: StepName, waits: list[StepName]) -> PlanLine:
    if name not in engine.selection.wanted():
        return PlanLine(name, "refuse", f"{', '.join(waits)} must be finished first")
    return PlanLine(name, "run?", f"depends on {', '.join(dict.fromkeys(waits))}")


def _known(engine: Engine, name: StepName) -> PlanLine:
    try:
        decision = engine.decide(name)
    except StageError as error:
        return PlanLine(name, "refuse", str(error))
    if decision.reuse and decision.manifest is not None:
        ref = ArtifactRef(uri=decision.artifact.uri, digest=decision.manifest.content)
        engine.assume(name, ref)
        return PlanLine(name, "reuse", f"{decision.why}; made by run {decision.manifest.run_id}")
    if name not in engine.selection.wanted():
        return PlanLine(
            name, "refuse", f"not finished ({decision.why}); start from it: --from {name}"
        )
    return PlanLine(name, "run", decision.why)
