"""The stack's own bookkeeping: who holds a port, whose process a pid is, what is refused at once."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from trainwright.flows import stack
from trainwright.flows.automations import SILENT_SECONDS, zombie_automation
from trainwright.stages.contract import TransientError, UsageError
from trainwright.stages.lease import boot_id, process_started


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("TRAINWRIGHT_HOME", str(folder))
    for name in ("TRAINWRIGHT_PREFECT_PORT", "TRAINWRIGHT_MLFLOW_PORT"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def listener() -> Iterator[int]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield int(server.getsockname()[1])


def test_who_holds_a_port_is_named(listener: int) -> None:
    assert f"process {os.getpid()} " in (stack.holder_of(listener) or "")


def test_a_port_that_nobody_holds_is_free() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    assert stack.holder_of(port) is None


def test_a_taken_port_is_refused_in_a_sentence_before_anything_starts(
    home: Path, listener: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINWRIGHT_PREFECT_PORT", str(listener))
    with pytest.raises(UsageError) as refused:
        stack.up(Console(quiet=True))
    assert f"port {listener}, wanted by prefect, is held by process {os.getpid()}" in str(
        refused.value
    )
    assert "TRAINWRIGHT_PREFECT_PORT" in str(refused.value)
    assert not (home / "stack.json").exists()
    assert stack.marked(home) == []


@pytest.mark.parametrize("text", ["0", "70000", "http", "-1", ""])
def test_a_port_that_is_none_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINWRIGHT_MLFLOW_PORT", text)
    with pytest.raises(UsageError, match="TRAINWRIGHT_MLFLOW_PORT"):
        stack.port_of(stack.MLFLOW)


def test_a_pid_that_was_given_to_another_process_is_not_ours() -> None:
    started = process_started(os.getpid())
    assert started is not None
    mine = stack.Service("worker", os.getpid(), started, boot_id(), "log")
    assert mine.alive
    assert not stack.Service("worker", os.getpid(), started - 60, boot_id(), "log").alive
    assert not stack.Service("worker", os.getpid(), started, "another boot", "log").alive


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"urls": {}, "processes": {"worker": 3}}', "{"])
def test_a_damaged_state_file_counts_as_no_stack(home: Path, text: str) -> None:
    (home / "stack.json").write_text(text)
    assert not stack.stack_status(home).up


def test_state_is_read_as_it_was_written(home: Path) -> None:
    service = stack.Service("mlflow", 1, 2.5, "boot", "/log", "http://127.0.0.1:1")
    stack.Stack(home, {"mlflow": service}, {"mlflow": "http://127.0.0.1:1"}).save()
    again = stack.stack_status(home)
    assert again.services == {"mlflow": service}
    assert json.loads((home / "stack.json").read_text())["urls"] == again.urls


def test_down_with_nothing_up_says_so_and_creates_nothing(home: Path) -> None:
    home.rmdir()
    assert stack.down(Console(quiet=True)) is False
    assert not home.exists()


def test_down_ends_marked_processes_that_no_record_names(home: Path) -> None:
    stray = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"],
        env={**os.environ, stack.MARK: str(home)},
        start_new_session=True,
    )
    other = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"],
        env={**os.environ, stack.MARK: f"{home}-other"},
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 30
        while not stack.marked(home) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert stack.down(Console(quiet=True)) is True
        assert process_started(stray.pid) is None
        assert other.poll() is None
    finally:
        for process in (stray, other):
            process.kill()
            process.wait()


def test_two_at_a_time_are_refused(home: Path) -> None:
    with stack._only_one(home), pytest.raises(TransientError, match="is at work"):
        stack.up(Console(quiet=True))


def test_a_worker_knows_home_and_servers_and_a_server_knows_no_client_settings(
    monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://elsewhere/api")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    urls = {"prefect": "http://p/api", "prefect_ui": "http://p", "mlflow": "http://m"}
    place = stack.settings()
    worker = stack._environment_of(stack.WORKER, place, urls)
    assert worker["PREFECT_API_URL"] == "http://p/api"
    assert worker["MLFLOW_TRACKING_URI"] == "http://m"
    assert worker["TRAINWRIGHT_HOME"] == worker[stack.MARK] == str(home)
    assert worker["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"] == "30"
    server = stack._environment_of(stack.PREFECT, place, urls)
    assert "PREFECT_API_URL" not in server
    assert server["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"
    assert server["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] == "false"


def test_the_automation_waits_for_two_missed_heartbeats_and_for_every_end() -> None:
    trigger = zombie_automation()["trigger"]
    assert trigger["within"] == SILENT_SECONDS > 60
    assert trigger["after"] == ["prefect.flow-run.heartbeat"]
    ends = {name.rpartition(".")[2] for name in trigger["expect"]}
    assert ends == {"heartbeat", "Completed", "Failed", "Cancelled", "Crashed"}


class Dropped:
    """Python drops what a finalizer raises, a signal's `KeyboardInterrupt` too."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_that_python_dropped_is_not_forgotten() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with stack.Interrupts() as interrupts:
        interrupts.check()
        dropped = Dropped()
        del dropped
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()
        interrupts.hold()
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before
