"""The chain as a Prefect flow: a task a step, each reused, run and retried on its own."""

from __future__ import annotations

from typing import Annotated, Any

from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import TaskRun
from prefect.exceptions import CancelledRun
from prefect.states import Cancelled, State
from prefect.tasks import Task, exponential_backoff
from pydantic import Field

from trainwright.flows.chain import Selection, StepName
from trainwright.flows.execute import Engine, StepFailedError
from trainwright.flows.prefect_view import current_watcher, publish, this_flow_run
from trainwright.flows.recipe import Recipe, refuse_unreachable
from trainwright.flows.runs import RunRecord, Runs
from trainwright.flows.session import PrefectLink, open_run
from trainwright.stages.contract import StageRecord, StageState
from trainwright.stages.settings import settings
from trainwright.stages.store import open_store


def retry_can_help(task: Task[..., Any], task_run: TaskRun, state: State[Any]) -> bool:
    """Prefect's condition for another try: the stage's exit code decides."""
    try:
        state.result()
    except StepFailedError as failure:
        return failure.retryable
    except BaseException:
        return False
    return False


@task(persist_result=False, cache_policy=NO_CACHE)
def run_step(engine: Engine, name: StepName) -> StageRecord:
    """Reuse or run one step of the chain."""
    return engine.execute(name)


def run_steps(engine: Engine, names: list[StepName]) -> None:
    """Run steps in order, each as a Prefect task with its own retries."""
    execution = engine.recipe.execution
    for name in names:
        configured: Task[..., StageRecord] = run_step.with_options(
            name=name.value,
            task_run_name=name.value,
            retries=execution.retries,
            retry_delay_seconds=exponential_backoff(execution.retry_delay_s),
            retry_jitter_factor=0.5,
            retry_condition_fn=retry_can_help,
            tags=[f"stage:{name.value}"],
        )
        configured(engine, name)


@flow(
    name="pipeline",
    description="Raw text to an aligned 8-bit language model.",
    persist_result=False,
    validate_parameters=True,
)
def pipeline(
    recipe: Annotated[Recipe, Field(description="Every knob of every stage")],
    from_stage: Annotated[
        StepName | None,
        Field(description="Start here: what lies before must be finished already"),
    ] = None,
    to_stage: Annotated[StepName | None, Field(description="End here")] = None,
    only: Annotated[StepName | None, Field(description="Run this stage alone")] = None,
    force: Annotated[
        list[StepName], Field(description="Run these again even if nothing changed")
    ] = [],  # noqa: B006
) -> Any:
    """Run the chain, reusing every step whose parameters and inputs have not changed."""
    selection = Selection(from_stage, to_stage, only, frozenset(force))
    refuse_unreachable(recipe, selection.wanted())
    link = this_flow_run()
    return run_chain(recipe, selection, again=retried(link), link=link)


def retried(link: PrefectLink | None) -> RunRecord | None:
    """The run to go on with, if Prefect tries this flow run again."""
    if link is None:
        return None
    return Runs(open_store(settings().store)).of_flow_run(link.flow_run_id)


def run_chain(
    recipe: Recipe,
    selection: Selection,
    *,
    again: RunRecord | None,
    link: PrefectLink | None,
    kind: str = "pipeline",
) -> Any:
    """Run the selected steps, as a new run or as part of `again`; what a flow returns to Prefect."""
    engine = None
    try:
        with open_run(
            recipe, selection, kind=kind, again=again, prefect=link, watcher=current_watcher()
        ) as engine:
            run_steps(engine, selection.needed())
    except StepFailedError as failure:
        if failure.record.state is StageState.CANCELLED:
            return Cancelled(message=str(failure))
        raise
    except (KeyboardInterrupt, CancelledRun):
        return Cancelled(message="cancelled")
    except BaseException as error:
        if type(error).__name__ == "TerminationSignal":
            return Cancelled(message="cancelled (SIGTERM)")
        raise
    finally:
        if engine is not None:
            publish(engine)
    return engine.run.id
