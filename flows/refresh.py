"""The recurring data refresh: a new corpus version if the sources changed, none if they did not."""

from __future__ import annotations

import json
from typing import Annotated, Any

from prefect import flow
from pydantic import Field

from trainwright.flows.chain import Selection, StepName
from trainwright.flows.pipeline import retried, run_chain
from trainwright.flows.prefect_view import this_flow_run
from trainwright.flows.recipe import Recipe
from trainwright.flows.runs import Runs
from trainwright.stages.settings import settings
from trainwright.stages.store import NotFoundError, Store, open_store


@flow(
    name="data-refresh",
    description="Build the corpus again if its sources changed, and move the alias `current` to it.",
    persist_result=False,
    validate_parameters=True,
)
def data_refresh(
    recipe: Annotated[Recipe, Field(description="Every knob; the corpus part is used")],
) -> Any:
    """Run the corpus step alone; its artifact becomes the version that `current` names."""
    link = this_flow_run()
    outcome = run_chain(
        recipe,
        Selection(only=StepName.CORPUS),
        again=retried(link),
        link=link,
        kind="data-refresh",
    )
    if isinstance(outcome, str):
        store = open_store(settings().store)
        move_current(store, recipe.name, Runs(store), outcome)
    return outcome


def move_current(store: Store, recipe: str, runs: Runs, run_id: str) -> dict[str, Any]:
    """Point `corpora/<recipe>/current.json` at the run's corpus; the version before is its parent."""
    record = runs.step(run_id, StepName.CORPUS)
    assert record is not None and record.artifact is not None
    key = f"corpora/{recipe}/current.json"
    try:
        data, _ = store.get(key)
        old: dict[str, Any] = json.loads(data)
    except NotFoundError:
        old = {}
    if old.get("digest") == record.artifact.digest:
        return old
    new = {
        "uri": record.artifact.uri,
        "digest": record.artifact.digest,
        "run": run_id,
        "parent": old.get("digest"),
        "metrics": record.result.metrics,
    }
    store.put(f"corpora/{recipe}/{record.artifact.digest}.json", json.dumps(new).encode())
    store.put(key, json.dumps(new).encode())
    return new
