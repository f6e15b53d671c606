"""The deployments that a person starts from Prefect's page: `pipeline`, `data-refresh`, `rerun-stage`."""

from __future__ import annotations

import os
from typing import Any

from trainwright.flows.recipe import load_recipe
from trainwright.flows.stack import WORK_POOL
from trainwright.stages.settings import settings

REFRESH_CRON = "0 3 * * *"
"""Every night at 3; the schedule stays inactive until somebody switches it on."""


def deployments(recipe: str = "demo") -> list[Any]:
    """The deployments as Prefect objects, not yet sent to a server; `recipe` fills their forms."""
    from prefect.schedules import Cron
    from prefect.types.entrypoint import EntrypointType

    from trainwright.flows.pipeline import pipeline
    from trainwright.flows.refresh import data_refresh
    from trainwright.flows.rerun import rerun_stage

    filled = {"recipe": load_recipe(recipe).dump()}
    common: dict[str, Any] = {
        "entrypoint_type": EntrypointType.MODULE_PATH,
        "work_pool_name": WORK_POOL,
        "job_variables": {"env": _environment(), "working_dir": str(settings().home.parent)},
        "enforce_parameter_schema": True,
    }
    made = [
        pipeline.to_deployment("pipeline", parameters=filled, **common),
        data_refresh.to_deployment(
            "data-refresh",
            parameters=filled,
            schedules=[Cron(REFRESH_CRON, timezone="UTC", active=False)],
            **common,
        ),
        rerun_stage.to_deployment("rerun-stage", **common),
    ]
    for deployment in made:
        _refuse_unknown_parameters(deployment)
    return made


def _environment() -> dict[str, str]:
    """What the worker's flows need beyond their defaults: our home, and settings given by hand."""
    names = ("TRAINWRIGHT_STORE", "TORCH_EXTENSIONS_DIR", "TRAINWRIGHT_LOG_LEVEL")
    given = {name: os.environ[name] for name in names if name in os.environ}
    return {"TRAINWRIGHT_HOME": str(settings().home), **given}


def _refuse_unknown_parameters(deployment: Any) -> None:
    """Prefect accepts unknown top-level parameters, and the flow run then crashes: refuse them."""
    from prefect.utilities.callables import ParameterSchema

    class ClosedSchema(ParameterSchema):
        additionalProperties: bool = False

    schema = deployment._parameter_openapi_schema
    deployment._parameter_openapi_schema = ClosedSchema(
        **schema.model_dump(), additionalProperties=False
    )


def deploy(api_url: str, recipe: str = "demo") -> list[str]:
    """Create or renew the work pool and the deployments on a server; their names."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectAlreadyExists
    from prefect.settings import PREFECT_API_URL, temporary_settings

    # Not by the environment: Prefect reads that when it is imported, which may be long ago.
    with temporary_settings({PREFECT_API_URL: api_url}):
        with get_client(sync_client=True) as client:
            try:
                client.create_work_pool(WorkPoolCreate(name=WORK_POOL, type="process"))
            except ObjectAlreadyExists:
                pass
        names = []
        for deployment in deployments(recipe):
            deployment.apply()
            names.append(f"{deployment.flow_name}/{deployment.name}")
    return names
