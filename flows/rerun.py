"""One stage of a finished or failed run, again; finished stages before it are reused."""

from __future__ import annotations

from typing import Annotated, Any

from prefect import flow
from pydantic import Field

from trainwright.flows.chain import CHAIN, Selection, StepName
from trainwright.flows.pipeline import retried, run_chain
from trainwright.flows.prefect_view import this_flow_run
from trainwright.flows.recipe import parse_recipe
from trainwright.flows.runs import Runs
from trainwright.stages.settings import settings
from trainwright.stages.store import open_store


@flow(
    name="rerun-stage",
    description="Run one stage of a run again; finished stages before it are reused.",
    persist_result=False,
    validate_parameters=True,
)
def rerun_stage(
    run: Annotated[str, Field(description="Name of the run (trainwright status), or `latest`")],
    stage: Annotated[StepName, Field(description="The stage to run again")],
    onward: Annotated[bool, Field(description="Go on with the stages after it")] = False,
) -> Any:
    """Run a stage again with the run's own recipe, as part of that run."""
    link = this_flow_run()
    # A Retry goes on with the run of its first try: `latest` may be another by now.
    record = retried(link) or Runs(open_store(settings().store)).load(run)
    recipe = parse_recipe(record.recipe, record.id)
    if onward:
        selection = Selection(first=stage, last=CHAIN[-1].name, force=frozenset({stage}))
    else:
        selection = Selection(only=stage, force=frozenset({stage}))
    return run_chain(recipe, selection, again=record, link=link, kind=record.kind)
