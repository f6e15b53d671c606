"""The stack on this machine: a Prefect server, a worker and an MLflow server, all on loopback.

Each service leads its own session and has its own log file in `<home>/stack`. `<home>/stack.json` says
which processes there are (`processes`), and where they answer (`urls`, only once all of them do).
Every process of the stack, and whatever it starts, carries the home's path in its environment
(`TRAINWRIGHT_STACK`): so `down` finds those too whose parent was killed.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from trainwright.flows.prefect_local import healthy, prefect_environment
from trainwright.stages.contract import NodeFaultError, TransientError, UsageError
from trainwright.stages.lease import boot_id, process_started
from trainwright.stages.settings import Settings, settings
from trainwright.stages.watch.processes import end_tree

if TYPE_CHECKING:
    from rich.console import Console

WORK_POOL = "trainwright"
MARK = "TRAINWRIGHT_STACK"
PREFECT, MLFLOW, WORKER = "prefect", "mlflow", "worker"
SERVICES = (PREFECT, MLFLOW, WORKER)

_PORTS = {
    PREFECT: ("TRAINWRIGHT_PREFECT_PORT", 4200),
    MLFLOW: ("TRAINWRIGHT_MLFLOW_PORT", 5000),
}
_START_SECONDS = 180.0
_GRACE_SECONDS = 15.0

Deploy = Callable[[str], list[str]]
"""Given the Prefect API's URL, creates the deployments there; returns their names."""


@dataclass(frozen=True)
class Service:
    """A process of the stack."""

    name: str
    pid: int
    started: float
    boot: str
    log: str
    url: str = ""

    @property
    def alive(self) -> bool:
        """Whether this very process lives, not another one that was given its pid."""
        if self.boot != boot_id():
            return False
        started = process_started(self.pid)
        return started is not None and abs(started - self.started) < 1.0


@dataclass
class Stack:
    """What `stack.json` says."""

    home: Path
    services: dict[str, Service] = field(default_factory=dict)
    urls: dict[str, str] = field(default_factory=dict)

    @property
    def alive(self) -> dict[str, bool]:
        """Whether each service's process lives."""
        return {name: name in self.services and self.services[name].alive for name in SERVICES}

    @property
    def up(self) -> bool:
        """Whether every process lives and the stack was once ready."""
        return bool(self.urls) and all(self.alive.values())

    def save(self) -> None:
        """Write `stack.json`, whole or not at all."""
        processes = {
            name: {key: value for key, value in asdict(service).items() if key != "name"}
            for name, service in self.services.items()
        }
        path = self.home / "stack.json"
        temporary = path.with_name(f"stack.json.tmp-{os.getpid()}")
        temporary.write_text(json.dumps({"urls": self.urls, "processes": processes}, indent=1))
        temporary.replace(path)


def stack_status(home: Path | None = None) -> Stack:
    """The stack of a home (default: this one's), as its file says; `alive` asks the processes."""
    home = home or settings().home
    try:
        state = json.loads((home / "stack.json").read_text())
        services = {n: Service(name=n, **values) for n, values in state["processes"].items()}
        return Stack(home, services, dict(state["urls"]))
    except FileNotFoundError:
        return Stack(home)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        # Written by another version, or by hand: the environment's mark still finds the processes.
        return Stack(home)


def port_of(name: str) -> int:
    """The port that a service is to have, from the environment."""
    variable, default = _PORTS[name]
    text = os.environ.get(variable, str(default))
    if not text.isdigit() or not 0 < int(text) < 65536:
        raise UsageError(f"{variable} is {text!r}: give a port number from 1 to 65535")
    return int(text)


def holder_of(port: int) -> str | None:
    """Who listens on a loopback port, in words; None if it is free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            return None
        except PermissionError:
            return "the system (ports below 1024 need privileges)"
        except OSError:
            pid = _listener(port)
            return f"process {pid} ({_command(pid)})" if pid else "a process of another user"


def _listener(port: int) -> int | None:
    try:
        connections = psutil.net_connections("inet")
    except psutil.Error:
        return None
    for connection in connections:
        listens = connection.status == psutil.CONN_LISTEN
        if listens and connection.laddr and connection.laddr[1] == port and connection.pid:
            return int(connection.pid)
    return None


def _command(pid: int) -> str:
    try:
        text = " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        return "?"
    return text if len(text) <= 60 else f"{text[:57]}..."


def up(console: Console, *, deploy: Deploy | None = None) -> Stack:
    """Start what does not run yet, wait until all of it answers, create the deployments.

    A service that lives is left alone. If the start fails or is interrupted, nothing that it started
    is left running. `UsageError`: a port is taken; `NodeFaultError`: a service died, with the end of
    its log; `TransientError`: it did not answer in time.
    """
    place = settings()
    place.home.mkdir(parents=True, exist_ok=True)
    with _only_one(place.home):
        stack = stack_status(place.home)
        if stack.up:
            console.print("the stack is up already")
            _show(console, stack, [])
            return stack
        with Interrupts() as interrupts:
            starting = Starting(place, console, stack, interrupts)
            try:
                names = starting.run(deploy)
            except BaseException:
                interrupts.hold()
                starting.undo()
                raise
    _show(console, stack, names)
    return stack


@contextmanager
def _only_one(home: Path) -> Iterator[None]:
    """Let one `up` or `down` of a home at a time through."""
    folder = home / "stack"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TransientError(
                f"another `trainwright up` or `down` is at work on {home}: wait for it"
            ) from None
        yield


class Interrupts:
    """Ctrl-C and SIGTERM while the stack starts: both are a `KeyboardInterrupt`, and remembered.

    Python drops an exception that a signal raises within a callback (of an import, say): then the
    start would go on as if nobody had asked. `check` asks again.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                # Who runs us in the background with signals ignored keeps them ignored.
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: object) -> None:
        self.asked = True
        raise KeyboardInterrupt

    def check(self) -> None:
        """`KeyboardInterrupt` if somebody has asked for the end."""
        if self.asked:
            raise KeyboardInterrupt

    def hold(self) -> None:
        """From now on let nothing interrupt: what was begun is being undone."""
        for number in self._before:
            signal.signal(number, signal.SIG_IGN)


class Starting:
    """One start of a stack: what it started is known, so that it can be undone."""

    def __init__(
        self, place: Settings, console: Console, stack: Stack, interrupts: Interrupts
    ) -> None:
        self.interrupts = interrupts
        self.place = place
        self.console = console
        self.stack = stack
        self.started: list[subprocess.Popen[bytes]] = []

    def run(self, deploy: Deploy | None) -> list[str]:
        """Start what is missing and wait for it; names of the deployments."""
        alive = self.stack.alive
        missing = [name for name in SERVICES if not alive[name]]
        if dead := [name for name in missing if name in self.stack.services]:
            self.console.print(f"not running any more: {', '.join(dead)}")
        urls = self._addresses(missing)
        for name in (PREFECT, MLFLOW):
            if name in missing:
                self._start(name, urls)
        self._wait(PREFECT, lambda: healthy(urls["prefect"]))
        self._wait(MLFLOW, lambda: _answers(f"{urls['mlflow']}/health"))
        if WORKER in missing:
            # Before the deployments: it creates the work pool, with its job template.
            self._start_worker(urls)
        names = self._prepare(urls["prefect"], deploy)
        self.interrupts.check()
        self.stack.urls = urls
        self.stack.save()
        return names

    def undo(self) -> None:
        """End what this start has started, and forget it."""
        for process in reversed(self.started):
            end_tree(process.pid, _GRACE_SECONDS)
            process.wait()
        gone = {process.pid for process in self.started}
        self.stack.services = {
            name: service
            for name, service in self.stack.services.items()
            if service.pid not in gone and service.alive
        }
        if self.stack.services:
            self.stack.save()
        else:
            (self.stack.home / "stack.json").unlink(missing_ok=True)

    def _addresses(self, missing: list[str]) -> dict[str, str]:
        """Where services answer: those that live stay where they are."""
        base = {
            name: self._free_address(name) if name in missing else self.stack.services[name].url
            for name in (PREFECT, MLFLOW)
        }
        return {
            "prefect": f"{base[PREFECT]}/api",
            "prefect_ui": base[PREFECT],
            "mlflow": base[MLFLOW],
        }

    def _free_address(self, name: str) -> str:
        port = port_of(name)
        pid = _listener(port)
        if pid is not None and pid in {process.pid for process in marked(self.stack.home)}:
            # A child of a server that was killed: it holds the port, and answers no more.
            end_tree(pid, _GRACE_SECONDS)
        if (holder := holder_of(port)) is not None:
            raise UsageError(
                f"port {port}, wanted by {name}, is held by {holder}: end that, or set "
                f"{_PORTS[name][0]} to a free port"
            )
        return f"http://127.0.0.1:{port}"

    def _prepare(self, api: str, deploy: Deploy | None) -> list[str]:
        from trainwright.flows.automations import ensure_automations

        ensure_automations(api)
        if deploy is None:
            return []
        self.console.print("creating the deployments")
        # `deploy` imports Prefect, which takes its home from the environment.
        for name, value in prefect_environment(self.place).items():
            os.environ.setdefault(name, value)
        return deploy(api)

    def _start_worker(self, urls: dict[str, str]) -> None:
        name = f"trainwright-{secrets.token_hex(3)}"
        self._start(WORKER, urls, name)
        self._wait(WORKER, lambda: _worker_online(urls["prefect"], name))

    def _start(self, name: str, urls: dict[str, str], worker_name: str = "") -> None:
        self.console.print(f"starting {name}")
        log = self.stack.home / "stack" / f"{name}.log"
        if log.exists():
            log.replace(log.with_suffix(".previous.log"))
        with log.open("wb") as output:
            process = subprocess.Popen(
                _command_of(name, self.place, urls, worker_name),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.place.home.parent,
                env=_environment_of(name, self.place, urls),
                start_new_session=True,
            )
        self.started.append(process)
        started = process_started(process.pid) or 0.0
        url = {PREFECT: urls["prefect_ui"], MLFLOW: urls["mlflow"]}.get(name, "")
        self.stack.services[name] = Service(name, process.pid, started, boot_id(), str(log), url)
        # At once, so that `down` finds it even if this start is killed.
        self.stack.save()

    def _wait(self, name: str, ready: Callable[[], bool]) -> None:
        service = self.stack.services[name]
        deadline = time.monotonic() + _START_SECONDS
        while not ready():
            self.interrupts.check()
            self._refuse_dead(service)
            if time.monotonic() > deadline:
                raise TransientError(
                    f"{name} did not answer within {_START_SECONDS:.0f} s; {_tail(service.log)}"
                )
            time.sleep(0.2)
        # What answers may be another program, if ours could not have the port.
        self._refuse_dead(service)

    def _refuse_dead(self, service: Service) -> None:
        if not service.alive:
            raise NodeFaultError(f"{service.name} ended while it started; {_tail(service.log)}")


def _command_of(name: str, place: Settings, urls: dict[str, str], worker_name: str) -> list[str]:
    if name == PREFECT:
        return [
            sys.executable, "-m", "prefect", "server", "start",
            "--host", "127.0.0.1", "--port", _port_in(urls["prefect_ui"]), "--log-level", "WARNING",
        ]  # fmt: skip
    if name == WORKER:
        return [
            sys.executable, "-m", "prefect", "worker", "start",
            "--pool", WORK_POOL, "--type", "process", "--name", worker_name,
        ]  # fmt: skip
    # The same file and folder that runs without a server use: both see each other's runs. A root that
    # clients write to themselves (no proxy) can be read again when the server is down.
    return [
        sys.executable, "-m", "mlflow", "server",
        "--host", "127.0.0.1", "--port", _port_in(urls["mlflow"]), "--workers", "1",
        "--backend-store-uri", f"sqlite:///{place.home / 'mlflow.db'}",
        "--default-artifact-root", (place.home / "mlartifacts").as_uri(),
    ]  # fmt: skip


def _port_in(url: str) -> str:
    return url.rpartition(":")[2]


def _environment_of(name: str, place: Settings, urls: dict[str, str]) -> dict[str, str]:
    """What a service and its children get: our home and interpreter, nothing sent out."""
    from trainwright.flows.automations import HEARTBEAT_SECONDS

    values = {**os.environ, **prefect_environment(place)}
    values |= {
        MARK: str(place.home),
        "TRAINWRIGHT_HOME": str(place.home),
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT_SECONDS),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONUNBUFFERED": "1",
    }
    if name == WORKER:
        values["PREFECT_API_URL"] = urls["prefect"]
        values.setdefault("MLFLOW_TRACKING_URI", urls["mlflow"])
    else:
        values.pop("PREFECT_API_URL", None)
        values.pop("MLFLOW_TRACKING_URI", None)
    return values


def _answers(url: str) -> bool:
    import httpx

    try:
        return httpx.get(url, timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def _worker_online(api: str, name: str) -> bool:
    import httpx

    condition = {"workers": {"status": {"any_": ["ONLINE"]}}}
    try:
        answer = httpx.post(
            f"{api}/work_pools/{WORK_POOL}/workers/filter", json=condition, timeout=5
        )
        return answer.status_code == 200 and any(w["name"] == name for w in answer.json())
    except (httpx.HTTPError, ValueError):
        return False


def _tail(path: str, lines: int = 12) -> str:
    try:
        text = Path(path).read_text(errors="replace").splitlines()[-lines:]
    except OSError:
        return f"its log {path} cannot be read"
    return "\n".join([f"its log {path} ends:", *text]) if text else f"its log {path} is empty"


def down(console: Console) -> bool:
    """End the stack and whatever it started; whether there was anything to end.

    The worker goes first, and its flow runs with it, while the servers can still be told of it.
    """
    home = settings().home
    if not home.is_dir():
        console.print("the stack is not up")
        return False
    with _only_one(home):
        stack = stack_status(home)
        found = False
        for name in (WORKER, MLFLOW, PREFECT):
            service = stack.services.get(name)
            if service is not None and service.alive:
                console.print(f"ending {name}")
                end_tree(service.pid, _GRACE_SECONDS)
                found = True
            if name == WORKER:
                found |= _end_strays(console, home, spare=stack)
        found |= _end_strays(console, home)
        (home / "stack.json").unlink(missing_ok=True)
    console.print("the stack is down" if found else "the stack is not up")
    return found


def _end_strays(console: Console, home: Path, spare: Stack | None = None) -> bool:
    """End marked processes that no longer hang below a service (their parent was killed)."""
    spared: set[int] = set()
    for service in spare.services.values() if spare is not None else ():
        if service.alive:
            spared.add(service.pid)
            spared |= {child.pid for child in psutil.Process(service.pid).children(recursive=True)}
    strays = [process for process in marked(home) if process.pid not in spared]
    for process in strays:
        console.print(f"ending process {process.pid}, left over from the stack")
        end_tree(process.pid, _GRACE_SECONDS)
    return bool(strays)


def marked(home: Path) -> list[psutil.Process]:
    """Living processes that carry the stack's mark: its services and all that they started."""
    found = []
    for process in psutil.process_iter():
        try:
            mine = process.environ().get(MARK) == str(home)
            if mine and process.status() != psutil.STATUS_ZOMBIE and process.pid != os.getpid():
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def _show(console: Console, stack: Stack, deployments: list[str]) -> None:
    page = stack.urls.get("prefect_ui", "")
    lines: list[tuple[str, Any]] = [
        ("Prefect", page),
        ("MLflow", stack.urls.get("mlflow", "")),
        ("logs", stack.home / "stack"),
    ]
    if deployments:
        lines.append(("deployments", ", ".join(deployments)))
    lines += [
        ("start a run", f"{page}/deployments: pipeline, Run, Custom run; its form has every knob"),
        ("run it again", "the same page: rerun-stage, with run and stage; or Retry on a flow run"),
        ("compare runs", "on MLflow's page: experiment trainwright, tick two runs, Compare"),
        ("end it with", "trainwright down (make down)"),
    ]
    for name, value in lines:
        console.print(f"  {name:<13}{value}", markup=False, soft_wrap=True)
