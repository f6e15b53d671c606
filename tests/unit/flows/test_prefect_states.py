"""Flow runs of dead flows, set right on a server that pretends; and no password anywhere."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from trainwright.flows import session
from trainwright.flows.mlflow_runs import MlflowRuns
from trainwright.flows.prefect_states import mark_crashed
from trainwright.flows.prefect_view import PrefectWatcher
from trainwright.flows.runs import Owner, RunRecord, Runs, RunState
from trainwright.stages.contract import StageRecord, StageState, utcnow
from trainwright.stages.settings import without_credentials
from trainwright.stages.store.file import FileStore


class Server:
    """One flow run's state, and what was asked of it."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {"type": "RUNNING", "timestamp": utcnow().isoformat()}
        self.asked: list[tuple[str, str | None]] = []
        self.broken = False


@pytest.fixture
def server() -> Iterator[Server]:
    known = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known.asked.append((self.path, self.headers.get("Authorization")))
            self.answer(500 if known.broken else 200, {"state": known.state})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            known.asked.append((self.path, self.headers.get("Authorization")))
            known.state = {**body["state"], "timestamp": utcnow().isoformat()}
            self.answer(201, {})

        def answer(self, code: int, value: object) -> None:
            data = json.dumps(value).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    known.api = f"http://127.0.0.1:{http.server_port}/api"  # type: ignore[attr-defined]
    yield known
    http.shutdown()
    http.server_close()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("RUNNING", "CRASHED"),
        ("PENDING", "CRASHED"),
        ("CANCELLING", "CANCELLED"),
        ("COMPLETED", "COMPLETED"),
        ("SCHEDULED", "SCHEDULED"),
    ],
)
def test_only_a_flow_run_that_counts_as_going_on_is_marked(
    server: Any, before: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_KEY", "key-1")
    server.state["type"] = before
    mark_crashed(server.api, "f1", "gone", since=utcnow())
    assert server.state["type"] == after
    assert {said for _, said in server.asked} == {"Bearer key-1"}
    assert server.asked[0][0] == "/api/flow_runs/f1"


def test_a_retry_that_has_begun_is_left_alone(server: Any) -> None:
    mark_crashed(server.api, "f1", "gone", since=utcnow() - timedelta(minutes=1))
    assert server.state["type"] == "RUNNING"


def test_a_server_that_fails_is_told_without_its_password(
    server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server.broken = True
    mark_crashed(server.api.replace("//", "//me:hunter2@"), "f1", "gone")
    assert "could not be marked" in caplog.text and "hunter2" not in caplog.text


def test_a_run_whose_whole_tree_was_killed_is_crashed_in_prefect_too(
    server: Any, tmp_path: Path
) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    from trainwright.stages.lease import process_started

    owner = Owner.me().model_copy(
        update={"pid": child.pid, "started": process_started(child.pid)}
    )  # fmt: skip
    child.kill()
    child.wait()
    runs = Runs(FileStore(tmp_path))
    run = RunRecord(
        id="tiny-20260101-000000-aaaa", recipe_name="tiny", recipe={}, state=RunState.RUNNING,
        owner=owner, started_at=utcnow(), prefect_flow_run_id="f1",
    )  # fmt: skip
    runs.save(run)
    tracking = MlflowRuns(f"sqlite:///{tmp_path / 'mlflow.db'}")
    spared = session.sweep(runs, tracking, server.api, spare="f1")
    assert [one.state for one in spared] == ["crashed"] and server.state["type"] == "RUNNING"
    runs.save(run)
    session.sweep(runs, tracking, server.api)
    assert server.state["type"] == "CRASHED"


def test_a_page_that_cannot_be_reached_does_not_end_the_stage(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    watcher = PrefectWatcher()

    def away(*_: object) -> None:
        raise ConnectionError("http://me:hunter2@prefect/api is away")

    monkeypatch.setattr(watcher, "_move_bar", away)
    record = StageRecord(
        run_id="r", step="corpus", program="corpus", state=StageState.RUNNING, started_at=utcnow()
    )
    with caplog.at_level(logging.WARNING):
        watcher.progressed(record, {"phase": "read", "step": 1, "total": 2})
    assert "stands still" in caplog.text and "hunter2" not in caplog.text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://me:pa%40ss@host:5000/x", "http://host:5000/x"),
        ("API request to https://token@host/ failed", "API request to https://host/ failed"),
        ("postgresql://me:p@ss@db/mlflow", "postgresql://db/mlflow"),
        ("sqlite:////home/a@b/mlflow.db", "sqlite:////home/a@b/mlflow.db"),
        ("http://host/path?mail=a@b", "http://host/path?mail=a@b"),
        ("file:///a/b", "file:///a/b"),
    ],
)
def test_a_url_loses_user_and_password_alone(text: str, shown: str) -> None:
    assert without_credentials(text) == shown
