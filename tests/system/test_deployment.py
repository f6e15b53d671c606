"""What a person does from Prefect's page, done through the REST calls that the page makes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from trainwright.flows.prefect_local import free_port
from trainwright.flows.recipe import load_recipe
from workbench import TINY, Workbench, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.server]


class Stack(Workbench):
    """A home with its own Prefect server, worker and MLflow server."""

    def __init__(self, home: Path) -> None:
        self.prefect_port, self.mlflow_port = free_port(), free_port()
        super().__init__(home, f"http://127.0.0.1:{self.prefect_port}/api")
        self.environment = {
            "TRAINWRIGHT_PREFECT_PORT": str(self.prefect_port),
            "TRAINWRIGHT_MLFLOW_PORT": str(self.mlflow_port),
        }

    @property
    def variables(self) -> dict[str, str]:
        values = super().variables
        del values["PREFECT_API_URL"]  # as a user has it: found through the home's stack
        return values

    def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        return httpx.post(f"{self.api}{path}", json=body, timeout=60)

    def flow_run(self, deployment: str, parameters: dict[str, Any]) -> str:
        """Start a deployment as the page's form does; the flow run's id."""
        found = httpx.get(f"{self.api}/deployments/name/{deployment}", timeout=60).json()
        response = self.post(
            f"/deployments/{found['id']}/create_flow_run", {"parameters": parameters}
        )
        response.raise_for_status()
        return str(response.json()["id"])

    def state(self, flow_run: str) -> str:
        return str(
            httpx.get(f"{self.api}/flow_runs/{flow_run}", timeout=60).json()["state"]["type"]
        )

    def wait(self, flow_run: str, state: str, seconds: float = 300) -> None:
        final = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}
        reached = wait_for(
            lambda: (s := self.state(flow_run)) == state or (s in final and s), seconds, state
        )
        assert reached is True, f"{reached}, not {state}"

    def mlflow_runs(self, run: str) -> dict[str, dict[str, Any]]:
        """The MLflow server's runs of a pipeline run, by step."""
        url = f"http://127.0.0.1:{self.mlflow_port}/api/2.0/mlflow"
        experiment = httpx.get(
            f"{url}/experiments/get-by-name", params={"experiment_name": "trainwright"}, timeout=60
        ).json()["experiment"]["experiment_id"]
        body = {"experiment_ids": [experiment], "filter": f"tags.`trainwright.run` = '{run}'"}
        found = httpx.post(f"{url}/runs/search", json=body, timeout=60).json().get("runs", [])
        return {
            next(t["value"] for t in r["data"]["tags"] if t["key"] == "trainwright.step"): r
            for r in found
        }

    def stage_processes(self) -> list[psutil.Process]:
        return [p for p in self.processes() if "trainwright.stages" in " ".join(p.cmdline())]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """`trainwright up` in a home of its own; `trainwright down` at the end leaves nothing."""
    stack = Stack(tmp_path_factory.mktemp("home"))
    try:
        done = stack.command("up")
        assert done.returncode == 0, done.stdout + done.stderr
        yield stack
    finally:
        stack.command("down")
        left = [" ".join(p.cmdline()) for p in stack.processes()]
        stack.end_everything()
    assert not left


def tiny(**sections: dict[str, Any]) -> dict[str, Any]:
    values = load_recipe(TINY).dump()
    for name, fields in sections.items():
        values[name].update(fields)
    return values


def test_a_form_starts_a_pipeline_that_completes_and_is_in_mlflow_with_links(stack: Stack) -> None:
    flow_run = stack.flow_run(
        "pipeline/pipeline", {"recipe": tiny(), "to_stage": "initialize", "force": []}
    )
    stack.wait(flow_run, "COMPLETED")
    run = stack.latest()
    assert run.prefect_flow_run_id == flow_run
    assert stack.ran(run) == {"corpus", "initialize"}
    found = stack.mlflow_runs(run.id)
    assert {step: r["info"]["status"] for step, r in found.items()} == {
        "-": "FINISHED", "corpus": "FINISHED", "initialize": "FINISHED"
    }  # fmt: skip
    parent = found["-"]
    tags = {t["key"]: t["value"] for t in parent["data"]["tags"]}
    assert tags["prefect.flow_run_id"] == flow_run and flow_run in tags["prefect.flow_run_url"]
    child = {t["key"]: t["value"] for t in found["corpus"]["data"]["tags"]}
    assert child["mlflow.parentRunId"] == parent["info"]["run_id"]
    metrics = {m["key"] for m in found["corpus"]["data"]["metrics"]}
    assert {"final_documents_kept", "final_keep_rate"} <= metrics
    artifacts = stack.post("/artifacts/filter", {}).json()
    keys = {a["key"] for a in artifacts if a["flow_run_id"] == flow_run}
    assert {"summary", "mlflow"} <= keys


def test_one_stage_is_run_again_from_the_page_as_part_of_its_run(stack: Stack) -> None:
    before = stack.latest()
    flow_run = stack.flow_run("rerun-stage/rerun-stage", {"run": "latest", "stage": "initialize"})
    stack.wait(flow_run, "COMPLETED")
    assert stack.latest().id == before.id
    assert stack.ran() == {"initialize"}
    assert stack.digests() == stack.digests(before)


def test_a_refresh_without_a_change_does_no_work_and_moves_the_alias_once(stack: Stack) -> None:
    flow_run = stack.flow_run("data-refresh/data-refresh", {"recipe": tiny()})
    stack.wait(flow_run, "COMPLETED")
    assert stack.latest().kind == "data-refresh" and stack.ran() == set()
    alias = stack.home / "store" / "corpora" / "tiny" / "current.json"
    assert stack.digests()["corpus"] in alias.read_text()


def test_a_cancel_from_the_page_leaves_no_stage_process(stack: Stack) -> None:
    recipe = tiny(pretrain={"steps": 1_000_000})
    flow_run = stack.flow_run("pipeline/pipeline", {"recipe": recipe, "to_stage": "pretrain"})
    stack.wait_until_running("pretrain", "train", 240)
    body = {"state": {"type": "CANCELLING", "name": "Cancelling"}}
    stack.post(f"/flow_runs/{flow_run}/set_state", body).raise_for_status()
    stack.wait(flow_run, "CANCELLED", 120)
    wait_for(lambda: not stack.stage_processes(), 30, "no stage process left")
    assert stack.latest().state == "cancelled"
    assert stack.mlflow_runs(stack.latest().id)["pretrain"]["info"]["status"] == "KILLED"


def test_prefects_retry_goes_on_with_a_killed_run_and_reuses_what_is_done(stack: Stack) -> None:
    recipe = tiny(pretrain={"steps": 400, "snapshot_every": 50})
    flow_run = stack.flow_run("pipeline/pipeline", {"recipe": recipe, "to_stage": "pretrain"})
    wait_for(lambda: stack.latest().prefect_flow_run_id == flow_run, 120, "run record")
    run = stack.latest()
    stack.wait_until_running("pretrain", "train", 240, run=run.id)
    os.kill(run.owner.pid, signal.SIGKILL)
    stack.wait(flow_run, "CRASHED", 60)
    wait_for(lambda: not stack.stage_processes(), 30, "no stage process left")
    # The runner reports the crash, then the worker does: no person clicks Retry between the two.
    time.sleep(6)
    retry = {"state": {"type": "SCHEDULED", "name": "AwaitingRetry"}, "force": True}
    stack.post(f"/flow_runs/{flow_run}/set_state", retry).raise_for_status()
    wait_for(lambda: stack.state(flow_run) == "COMPLETED", 300, "retried run")
    again = stack.latest()
    assert again.id == run.id and again.state == "completed"
    steps = stack.steps()
    assert steps["corpus"].state == "reused" and steps["pretrain"].state == "completed"


def test_the_command_line_sees_the_stacks_runs_and_uses_its_server(stack: Stack) -> None:
    done = stack.command("run", TINY, "--to", "initialize")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "in-process" not in done.stdout
    assert stack.state(str(stack.latest().prefect_flow_run_id)) == "COMPLETED"
