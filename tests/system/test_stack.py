"""`trainwright up` and `down` against the real servers."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from rich.console import Console

from trainwright.flows import stack
from trainwright.flows.automations import ZOMBIES
from trainwright.flows.deployments import deploy
from trainwright.flows.prefect_local import free_port
from trainwright.flows.recipe import load_recipe
from trainwright.flows.runs import Runs
from trainwright.stages.settings import settings
from trainwright.stages.store import open_store
from workbench import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.server]

_QUIET = Console(quiet=True)

SLEEPY = """
import os, subprocess, sys
from pathlib import Path
from prefect import flow

@flow(persist_result=False)
def sleepy() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(900)"], start_new_session=True)
    home = Path(os.environ["TRAINWRIGHT_HOME"])
    (home / "sleepy.tmp").write_text(f"{os.getpid()} {child.pid} {sys.executable}")
    (home / "sleepy.tmp").rename(home / "sleepy.started")
    child.wait()

if __name__ == "__main__":
    flow.from_source(source=sys.argv[1], entrypoint="sleepy.py:sleepy").deploy(
        name="sleepy", work_pool_name="trainwright"
    )
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home of its own, with free ports; whatever a test leaves is ended."""
    folder = tmp_path / "home"
    monkeypatch.setenv("TRAINWRIGHT_HOME", str(folder))
    monkeypatch.setenv("PREFECT_HOME", str(folder / "prefect"))
    for name in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI", "TRAINWRIGHT_STORE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TRAINWRIGHT_PREFECT_PORT", str(free_port()))
    monkeypatch.setenv("TRAINWRIGHT_MLFLOW_PORT", str(free_port()))
    yield folder
    stack.down(_QUIET)
    assert stack.marked(folder) == []


def pids(up: stack.Stack) -> dict[str, int]:
    return {name: service.pid for name, service in up.services.items()}


def start_up() -> subprocess.Popen[bytes]:
    """`up` as a process of its own, which Ctrl-C reaches even where this test run ignores it."""
    program = (
        "from rich.console import Console; from trainwright.flows import stack; stack.up(Console())"
    )
    return subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )


def deploy_sleepy(folder: Path) -> stack.Deploy:
    def deploy(api: str) -> list[str]:
        source = folder / "source"
        source.mkdir(exist_ok=True)
        (source / "sleepy.py").write_text(SLEEPY)
        environment = {
            **os.environ,
            "PREFECT_API_URL": api,
            "PREFECT_HOME": str(folder / "prefect"),
        }
        subprocess.run(
            [sys.executable, str(source / "sleepy.py"), str(source)],
            env=environment, check=True, capture_output=True, timeout=180,
        )  # fmt: skip
        return ["sleepy/sleepy"]

    return deploy


def test_the_stack_comes_up_mends_itself_and_goes_down_leaving_nothing(home: Path) -> None:
    up = stack.up(_QUIET, deploy=deploy_sleepy(home))

    # Its pages answer, on loopback, and the rest of the product finds them.
    assert httpx.get(up.urls["prefect_ui"], follow_redirects=True).status_code == 200
    assert "<html" in httpx.get(up.urls["mlflow"]).text.lower()
    assert settings().prefect_api == up.urls["prefect"]
    assert settings().mlflow_uri == up.urls["mlflow"]
    for process in stack.marked(home):
        listening = [c for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN]
        assert {c.laddr[0] for c in listening} <= {"127.0.0.1"}

    # A second `up` changes nothing.
    before = pids(up)
    assert pids(stack.up(_QUIET)) == before

    # A killed worker and a killed MLflow server (whose child still holds the port) are replaced.
    os.kill(before["worker"], signal.SIGKILL)
    os.kill(before["mlflow"], signal.SIGKILL)
    wait_for(lambda: list(stack.stack_status(home).alive.values()) == [True, False, False])
    mended = stack.up(_QUIET)
    assert pids(mended)["prefect"] == before["prefect"]
    assert pids(mended)["worker"] != before["worker"]
    assert mended.urls == up.urls
    assert httpx.get(f"{mended.urls['mlflow']}/health").status_code == 200
    condition = {"automations": {"name": {"any_": [ZOMBIES]}}}
    found = httpx.post(f"{mended.urls['prefect']}/automations/filter", json=condition).json()
    assert [automation["enabled"] for automation in found] == [True]

    # A flow in the worker runs with our interpreter and home; `down` ends it and its children.
    api = mended.urls["prefect"]
    deployment = httpx.get(f"{api}/deployments/name/sleepy/sleepy").json()["id"]
    httpx.post(f"{api}/deployments/{deployment}/create_flow_run", json={}).raise_for_status()
    wait_for((home / "sleepy.started").exists)
    flow, child, interpreter = (home / "sleepy.started").read_text().split()
    assert Path(interpreter) == Path(sys.executable)
    assert stack.down(_QUIET) is True
    assert not psutil.pid_exists(int(flow)) and not psutil.pid_exists(int(child))
    assert not (home / "stack.json").exists()
    assert stack.marked(home) == []


def test_a_flow_run_whose_flow_and_worker_were_killed_is_crashed_by_the_server(home: Path) -> None:
    up = stack.up(_QUIET, deploy=deploy_sleepy(home))
    api = up.urls["prefect"]
    made = create_flow_run(api, "sleepy", {}).raise_for_status().json()["id"]
    wait_for((home / "sleepy.started").exists)
    heartbeats = {
        "filter": {
            "event": {"name": ["prefect.flow-run.heartbeat"]},
            "resource": {"id": [f"prefect.flow-run.{made}"]},
        }
    }
    wait_for(lambda: httpx.post(f"{api}/events/filter", json=heartbeats).json()["events"])
    flow, child, _ = (home / "sleepy.started").read_text().split()
    for pid in (pids(up)["worker"], int(flow), int(child)):
        os.kill(pid, signal.SIGKILL)
    assert wait_for_end(api, made) == "CRASHED"


def tiny() -> dict[str, Any]:
    return load_recipe(str(Path(__file__).parents[1] / "recipes" / "tiny.yaml")).dump()


def deployment(api: str, name: str) -> dict[str, Any]:
    answer = httpx.get(f"{api}/deployments/name/{name}/{name}").raise_for_status()
    return dict(answer.json())


def create_flow_run(api: str, name: str, parameters: dict[str, Any]) -> httpx.Response:
    url = f"{api}/deployments/{deployment(api, name)['id']}/create_flow_run"
    return httpx.post(url, json={"parameters": parameters}, timeout=30)


def wait_for_end(api: str, flow_run: str) -> str:
    def ended() -> str | None:
        state = httpx.get(f"{api}/flow_runs/{flow_run}").json()["state"]["type"]
        return str(state) if state in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED") else None

    wait_for(ended, 300)
    return ended() or ""


def test_the_deployments_refuse_bad_forms_and_run_good_ones_in_the_worker(home: Path) -> None:
    api = stack.up(_QUIET, deploy=deploy).urls["prefect"]
    forms = {
        name: deployment(api, name)["parameter_openapi_schema"]["properties"]
        for name in ("pipeline", "data-refresh", "rerun-stage")
    }
    assert {name: list(form) for name, form in forms.items()} == {
        "pipeline": ["recipe", "from_stage", "to_stage", "only", "force"],
        "data-refresh": ["recipe"],
        "rerun-stage": ["run", "stage", "onward"],
    }
    schedules = deployment(api, "data-refresh")["schedules"]
    assert [(s["active"], s["schedule"]["cron"]) for s in schedules] == [(False, "0 3 * * *")]

    nested, range_ = tiny(), tiny()
    nested["align"]["ppo"]["klx"] = 1
    range_["align"]["ppo"]["iterations"] = -4
    for name, parameters, fault in (
        ("pipeline", {"recipe": tiny(), "nonsense": 1}, "'nonsense' was unexpected"),
        ("pipeline", {"recipe": nested}, "'recipe.align.ppo'"),
        ("pipeline", {"recipe": range_}, "'recipe.align.ppo.iterations'"),
        ("rerun-stage", {"run": "latest", "stage": "pretrian"}, "'pretrian' is not one of"),
        ("data-refresh", {"recipe": tiny(), "only": "corpus"}, "'only' was unexpected"),
    ):
        refused = create_flow_run(api, name, parameters)
        assert refused.status_code == 409 and fault in refused.text

    made = create_flow_run(api, "pipeline", {"recipe": tiny(), "to_stage": "initialize"})
    flow_run = made.raise_for_status().json()["id"]
    assert wait_for_end(api, flow_run) == "COMPLETED"
    runs = Runs(open_store(settings().store))
    run = runs.load("latest")
    assert run.prefect_flow_run_id == flow_run and run.state == "completed"
    assert mlflow_steps(run.id) == {"-", "corpus", "initialize"}

    # One stage again: in the same run, which then has no other stage.
    again = create_flow_run(api, "rerun-stage", {"run": run.id, "stage": "initialize"})
    assert wait_for_end(api, again.raise_for_status().json()["id"]) == "COMPLETED"
    assert runs.names() == [run.id]
    assert mlflow_steps(run.id) == {"-", "corpus", "initialize"}


def mlflow_steps(run_id: str) -> set[str]:
    """Steps of a run that MLflow's server shows as finished (`-` is the run itself)."""
    from mlflow import MlflowClient

    client = MlflowClient(settings().mlflow_uri)
    experiment = client.get_experiment_by_name("trainwright")
    assert experiment is not None
    condition = f"tags.`trainwright.run` = '{run_id}' and attributes.status = 'FINISHED'"
    found = client.search_runs([experiment.experiment_id], condition)
    return {run.data.tags["trainwright.step"] for run in found}


def test_addresses_of_a_stack_that_was_killed_are_not_used(home: Path) -> None:
    up = stack.up(_QUIET)
    for pid in pids(up).values():
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not any(stack.stack_status(home).alive.values()))
    assert (home / "stack.json").exists()
    assert settings().prefect_api is None
    assert settings().mlflow_uri == f"sqlite:///{home / 'mlflow.db'}"
    assert stack.down(_QUIET) is True, "children of the killed servers are ended"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_start_leaves_nothing_running(home: Path, number: signal.Signals) -> None:
    process = start_up()
    wait_for(lambda: len(stack.stack_status(home).services) >= 2)
    process.send_signal(number)
    assert process.wait(timeout=90) != 0
    assert stack.marked(home) == []
    assert not (home / "stack.json").exists()


def test_a_start_that_was_killed_is_finished_by_the_next(home: Path) -> None:
    process = start_up()
    wait_for(lambda: len(stack.stack_status(home).services) >= 2)
    process.kill()
    process.wait()
    begun = pids(stack.stack_status(home))
    assert settings().prefect_api is None, "addresses stand in the file only once all answers"
    up = stack.up(_QUIET)
    assert up.up
    assert {name: pids(up)[name] for name in begun} == begun


def test_runs_made_without_a_server_and_with_it_are_the_same_to_mlflow(home: Path) -> None:
    from mlflow import MlflowClient

    from trainwright.flows.mlflow_runs import MlflowRuns

    place = settings()
    home.mkdir()
    alone = MlflowRuns(place.mlflow_uri, place.home / "mlartifacts")
    first = alone.client.create_run(alone.experiment(), run_name="before").info.run_id
    alone.attach_text(first, "made without a server", "note.txt")

    up = stack.up(_QUIET)
    served = MlflowRuns(settings().mlflow_uri, place.home / "mlartifacts")
    assert served.uri == up.urls["mlflow"]
    second = served.client.create_run(served.experiment(), run_name="with").info.run_id
    served.attach_text(second, "made with a server", "note.txt")
    for run, text in ((first, "made without a server"), (second, "made with a server")):
        page = f"{up.urls['mlflow']}/get-artifact?path=note.txt&run_uuid={run}"
        assert httpx.get(page).text == text
    fresh = served.client.create_experiment("born with the server")
    third = served.client.create_run(fresh).info.run_id
    served.attach_text(third, "made with a server", "note.txt")

    stack.down(_QUIET)
    client = MlflowClient(tracking_uri=place.mlflow_uri)
    assert served.uri != settings().mlflow_uri == place.mlflow_uri
    for run in (second, third):
        assert Path(client.download_artifacts(run, "note.txt")).read_text() == "made with a server"
