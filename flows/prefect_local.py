"""A Prefect API for flows of this process: the configured one, the running stack's, or our own.

Our own server lives as long as the process. It is started as a process of its own session, with a log
file, so it neither holds the terminal nor dies of Ctrl-C before the flow's last state has been sent.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainwright.stages.contract import TransientError, UsageError
from trainwright.stages.settings import Settings, without_credentials
from trainwright.stages.watch.processes import end_tree

OWN_SERVER_PID = "TRAINWRIGHT_OWN_PREFECT_PID"
"""Set while this process has its own server: the watchdog ends it if the flow is killed."""

_START_SECONDS = 120.0


def prefect_environment(place: Settings) -> dict[str, str]:
    """Variables that every Prefect process of ours gets: state under our home, nothing sent out."""
    return {
        "PREFECT_HOME": str(place.home / "prefect"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
        "DO_NOT_TRACK": "1",
    }


@contextmanager
def prefect_api(place: Settings) -> Iterator[str]:
    """The API's URL, also put into the environment; must come before Prefect is imported."""
    for name, value in prefect_environment(place).items():
        os.environ.setdefault(name, value)
    if place.prefect_api:
        _check(place.prefect_api)
        os.environ["PREFECT_API_URL"] = place.prefect_api
        yield place.prefect_api
        return
    process, url = _start(place)
    os.environ["PREFECT_API_URL"] = url
    os.environ[OWN_SERVER_PID] = str(process.pid)
    try:
        yield url
    finally:
        _send_the_rest()
        os.environ.pop(OWN_SERVER_PID, None)
        os.environ.pop("PREFECT_API_URL", None)
        end_tree(process.pid, grace=10.0)
        process.wait()


def _send_the_rest() -> None:
    """Send queued logs and events while the server lives: at exit, Prefect would wait for it in vain."""
    if "prefect.logging.handlers" not in sys.modules:
        return
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    for worker in (APILogWorker, EventsWorker):
        worker.drain_all(timeout=10)


def _start(place: Settings) -> tuple[subprocess.Popen[bytes], str]:
    folder = place.home / "prefect"
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "server.log"
    for _ in range(3):
        port = free_port()
        with log.open("wb") as output:
            process = subprocess.Popen(
                [
                    sys.executable, "-m", "prefect", "server", "start",
                    "--host", "127.0.0.1", "--port", str(port), "--log-level", "ERROR",
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )  # fmt: skip
        url = f"http://127.0.0.1:{port}/api"
        try:
            if _wait_ready(process, url):
                return process, url
        except BaseException:
            end_tree(process.pid, grace=2.0)
            raise
    raise TransientError(f"the in-process Prefect server did not start; {_tail(log)}")


def _wait_ready(process: subprocess.Popen[bytes], url: str) -> bool:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            return False
        if healthy(url):
            return True
        time.sleep(0.1)
    end_tree(process.pid, grace=2.0)
    return False


def healthy(url: str) -> bool:
    """Whether a Prefect API answers there."""
    import httpx

    try:
        return httpx.get(f"{url}/health", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def _check(url: str) -> None:
    for _ in range(5):
        if healthy(url):
            return
        time.sleep(1.0)
    raise UsageError(
        f"no Prefect server answers at {without_credentials(url)}; start the stack (trainwright up), "
        "or unset PREFECT_API_URL to run without one"
    )


def _tail(path: Path) -> str:
    lines = path.read_text(errors="replace").splitlines()[-5:]
    return f"its log {path} ends: {' | '.join(lines)}"


def free_port() -> int:
    """A free port on loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
