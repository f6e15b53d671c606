"""A workbench: the `trainwright` command in a home of its own, against one Prefect server for all."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from trainwright.flows.prefect_local import free_port, healthy
from trainwright.flows.runs import RunRecord, Runs
from trainwright.stages.contract import StageRecord
from trainwright.stages.store import open_store

ROOT = Path(__file__).parents[1]
TINY = str(ROOT / "tests" / "recipes" / "tiny.yaml")
COMMAND = str(Path(sys.executable).with_name("trainwright"))


def wait_for(condition: Callable[[], Any], seconds: float = 120, what: str = "it") -> Any:
    """The condition's value as soon as it is true; fails after a generous limit."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.05)
    return value


@dataclass
class Workbench:
    """A home, and the command run in it."""

    home: Path
    api: str
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def variables(self) -> dict[str, str]:
        keep = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "MLFLOW_"))}
        return {
            **keep,
            "TRAINWRIGHT_HOME": str(self.home),
            "PREFECT_API_URL": self.api,
            "PREFECT_HOME": str(self.home / "prefect"),
            **self.environment,
        }

    def command(self, *arguments: str, timeout: float = 600) -> subprocess.CompletedProcess[str]:
        """Run `trainwright` to its end."""
        return subprocess.run(
            [COMMAND, *arguments],
            env=self.variables,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def run(self, *arguments: str) -> RunRecord:
        """`trainwright run tiny ...`, which must complete; its record."""
        done = self.command("run", TINY, *arguments)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        return self.latest()

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start `trainwright run tiny ...` as a terminal would: leader of its own process group."""
        return subprocess.Popen(
            [COMMAND, "run", TINY, *arguments],
            env=self.variables,
            stdout=(self.home / "out.txt").open("ab"),
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            # A test run in the background may have been told to ignore Ctrl-C; a terminal has not.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
        )

    @property
    def runs(self) -> Runs:
        return Runs(open_store(self.environment.get("TRAINWRIGHT_STORE", str(self.home / "store"))))

    def latest(self) -> RunRecord:
        return self.runs.load("latest")

    def steps(self, run: RunRecord | None = None) -> dict[str, StageRecord]:
        found = self.runs.steps((run or self.latest()).id)
        return {name.value: record for name, record in found.items()}

    def digests(self, run: RunRecord | None = None) -> dict[str, str]:
        return {
            name: record.artifact.digest
            for name, record in self.steps(run).items()
            if record.artifact is not None
        }

    def ran(self, run: RunRecord | None = None) -> set[str]:
        """Steps that were executed, not reused."""
        return {n for n, record in self.steps(run).items() if record.state == "completed"}

    def processes(self) -> list[psutil.Process]:
        """Living processes of this home."""
        found = []
        for process in psutil.process_iter():
            try:
                mine = process.environ().get("TRAINWRIGHT_HOME") == str(self.home)
                if mine and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def wait_until_running(
        self, step: str, phase: str | None = None, seconds: float = 180, run: str = "*"
    ) -> Path:
        """Wait until the newest run's step (or that of `run`) reports progress (in `phase`)."""

        def reached() -> Path | None:
            paths = sorted((self.home / "logs").glob(f"{run}/{step}.progress.jsonl"))
            for path in paths[-1:]:
                lines = path.read_text().splitlines()
                if lines and (phase is None or json.loads(lines[-1])["phase"] == phase):
                    return path
            return None

        found = wait_for(reached, seconds, f"step {step} in phase {phase}")
        assert isinstance(found, Path)
        return found

    def prefect_state(self, run: RunRecord) -> str:
        response = httpx.get(f"{self.api}/flow_runs/{run.prefect_flow_run_id}", timeout=30)
        return str(response.json()["state"]["type"])

    def mlflow_states(self, run: RunRecord) -> dict[str, str]:
        """MLflow state by step (`-` is the pipeline's own run)."""
        from mlflow import MlflowClient

        client = MlflowClient(f"sqlite:///{self.home / 'mlflow.db'}")
        experiment = client.get_experiment_by_name("trainwright")
        assert experiment is not None
        found = client.search_runs(
            [experiment.experiment_id], f"tags.`trainwright.run` = '{run.id}'"
        )
        return {r.data.tags["trainwright.step"]: r.info.status for r in found}

    def end_everything(self) -> None:
        for process in self.processes():
            try:
                process.send_signal(signal.SIGKILL)
            except psutil.Error:
                continue


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """API of a Prefect server on loopback."""
    folder = tmp_path_factory.mktemp("prefect")
    port = free_port()
    process = subprocess.Popen(
        [
            sys.executable, "-m", "prefect", "server", "start",
            "--host", "127.0.0.1", "--port", str(port), "--log-level", "ERROR",
        ],
        env={
            **os.environ, "PREFECT_HOME": str(folder), "DO_NOT_TRACK": "1",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        },
        stdout=(folder / "server.log").open("wb"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip
    api = f"http://127.0.0.1:{port}/api"
    try:
        wait_for(lambda: healthy(api), 120, "Prefect server")
        yield api
    finally:
        process.terminate()
        process.wait(timeout=60)


@pytest.fixture
def workbench(tmp_path: Path, prefect_server: str) -> Iterator[Workbench]:
    """An empty home."""
    home = tmp_path / "home"
    home.mkdir()
    bench = Workbench(home, prefect_server)
    yield bench
    bench.end_everything()


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, prefect_server: str) -> Iterator[Workbench]:
    """A home in which the tiny recipe has run to its end. Do not change it: take a copy."""
    bench = Workbench(tmp_path_factory.mktemp("trained"), prefect_server)
    bench.run()
    yield bench
    bench.end_everything()


@pytest.fixture
def copy_of_trained(trained: Workbench, tmp_path: Path) -> Iterator[Workbench]:
    """A home of one's own with all that the tiny recipe made."""
    home = tmp_path / "home"
    shutil.copytree(trained.home, home, ignore=shutil.ignore_patterns("prefect"))
    bench = Workbench(home, trained.api)
    yield bench
    bench.end_everything()
