"""Every check is shown a machine that is sick in its way, and says how to mend it."""

import json
import os
import platform
import socket
import sys
import threading
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import version
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from trainwright.flows import doctor
from trainwright.flows.doctor import State
from trainwright.stages.settings import Settings, settings


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("TRAINWRIGHT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "ops"))
    for name in ("TRAINWRIGHT_STORE", "PREFECT_API_URL", "MLFLOW_TRACKING_URI",
                 "TRAINWRIGHT_PREFECT_PORT", "TRAINWRIGHT_MLFLOW_PORT"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    return settings()


def executable(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_this_machine_is_checked_and_nothing_is_left_behind(
    place: Settings, tmp_path: Path
) -> None:
    console = Console(file=StringIO(), width=200)
    code = doctor.print_checks(console)
    findings = doctor.run_checks()
    failed = [f for f in findings if f.state is State.FAIL]
    assert code == (1 if failed else 0)
    for finding in findings:
        assert finding.name in console.file.getvalue()
        assert bool(finding.mend) == (finding.state is not State.OK)
    assert list(tmp_path.iterdir()) == []


def test_a_compiler_that_is_missing_or_broken_fails(
    place: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert doctor.compiler(place).state is State.OK
    monkeypatch.setenv(
        "CXX", str(executable(tmp_path / "cxx", "#!/bin/sh\necho sick >&2\nexit 1\n"))
    )
    sick = doctor.compiler(place)
    assert sick.state is State.FAIL and "cannot compile: sick" in sick.found
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("PATH", str(tmp_path))
    missing = doctor.compiler(place)
    assert missing.state is State.FAIL and "apt-get install g++" in missing.mend


def test_ninja_that_is_missing_fails(
    place: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor.ninja(place).state is State.FAIL
    executable(tmp_path / "ninja", "#!/bin/sh\n")
    assert doctor.ninja(place).found == str(tmp_path / "ninja")


def test_too_little_memory_warns_and_too_little_disk_fails(
    place: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_MIN_MEMORY", 1e9)
    assert doctor.memory(place).state is State.WARN
    assert {f.name for f in doctor.disk(place)} == {"disk at home", "disk at store"}
    monkeypatch.setattr(doctor, "_LOW_DISK", 1e9)
    assert {f.state for f in doctor.disk(place)} == {State.WARN}
    monkeypatch.setattr(doctor, "_MIN_DISK", 1e9)
    assert {f.state for f in doctor.disk(place)} == {State.FAIL}


def test_a_containers_memory_limit_counts(place: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_cgroup_free", lambda: 0.5)
    found = doctor.memory(place)
    assert found.state is State.WARN and found.found == "0.5 GB free within this container's limit"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_home_that_cannot_be_written_fails(place: Settings) -> None:
    place.home.mkdir()
    place.home.chmod(0o500)
    assert doctor.disk(place)[0].state is State.FAIL


def test_a_small_shared_memory_warns_and_the_probe_is_taken_away(
    place: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = set(Path("/dev/shm").glob("trainwright-*"))
    monkeypatch.setattr(doctor, "_MIN_SHM", 1e9)
    assert doctor.shared_memory(place).state is State.WARN
    assert set(Path("/dev/shm").glob("trainwright-*")) == before


def test_a_held_port_is_told_with_who_holds_it(
    place: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        monkeypatch.setenv("TRAINWRIGHT_MLFLOW_PORT", str(port))
        held = next(f for f in doctor.ports(place) if f.name == "port of mlflow")
    assert held.state is State.WARN
    assert f"{port} is held by process {os.getpid()}" in held.found
    assert "TRAINWRIGHT_MLFLOW_PORT" in held.mend
    monkeypatch.setenv("TRAINWRIGHT_MLFLOW_PORT", "many")
    assert State.FAIL in {f.state for f in doctor.ports(place)}


REQUIRES = [
    "boto3==1.44.8",
    "psutil>=7",
    'torch==2.13.0; extra == "train"',
    "trainwright[train]; extra == 'align'",
    'fsspec[s3]==2.0 ; extra == "corpus"',
]


def test_pins_are_the_exact_requirements_with_the_extra_that_asks() -> None:
    assert doctor.pins(REQUIRES) == {
        "boto3": ("1.44.8", ""),
        "torch": ("2.13.0", "train"),
        "fsspec": ("2.0", "corpus"),
    }


@pytest.mark.parametrize(
    ("have", "states"),
    [
        ({"boto3": "1.44.8", "torch": "2.13.0+cpu", "fsspec": "2.0"}, {"packages": State.OK}),
        ({"boto3": "1.44.8", "torch": "2.13.0"}, {"fsspec": State.WARN}),
        ({"torch": "2.14.0", "fsspec": "2.0"}, {"boto3": State.FAIL, "torch": State.WARN}),
    ],
)
def test_versions_are_held_against_the_pins(have: dict[str, str], states: dict[str, State]) -> None:
    found = doctor.compare_pins(doctor.pins(REQUIRES), have.get)
    assert {f.name: f.state for f in found} == states


def test_the_products_own_pins_are_read_from_its_metadata(place: Settings) -> None:
    assert [f.state for f in doctor.installed_versions(place)] == [State.OK]


def test_a_lock_of_a_killed_build_fails_and_is_named(place: Settings) -> None:
    assert doctor.stale_locks(place).state is State.OK
    lock = place.torch_extensions / "py311_cpu" / "deepspeed_shm_comm" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    found = doctor.stale_locks(place)
    assert found.state is State.FAIL and str(lock) in found.mend
    with lock.open():
        assert doctor.stale_locks(place).state is State.WARN, "a build that holds it is under way"


def test_ops_that_are_not_compiled_warn_until_they_are(place: Settings) -> None:
    if Path("/proc/driver/nvidia/version").exists():
        pytest.skip("a GPU is here")
    assert doctor.deepspeed_ops(place).state is State.WARN
    pretend_compiled(place.torch_extensions, version("torch"))
    assert doctor.deepspeed_ops(place).state is State.OK


def test_ops_that_other_versions_compiled_warn(place: Settings) -> None:
    if Path("/proc/driver/nvidia/version").exists():
        pytest.skip("a GPU is here")
    pretend_compiled(place.torch_extensions, "1.0")
    found = doctor.deepspeed_ops(place)
    assert found.state is State.WARN and f"torch 1.0 -> {version('torch')}" in found.found


def pretend_compiled(folder: Path, torch: str) -> None:
    """Leave in `folder` what a build leaves that went to its end."""
    makers = {
        "deepspeed": version("deepspeed"),
        "torch": torch,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    folder.mkdir()
    (folder / "deepspeed_shm_comm.json").write_text(json.dumps(makers, sort_keys=True))
    (folder / "deepspeed_shm_comm.so").touch()


def test_a_store_that_answers_is_left_as_it_was(place: Settings, tmp_path: Path) -> None:
    assert doctor.store(place).state is State.OK
    assert list(tmp_path.iterdir()) == []
    folder = Path(place.store.removeprefix("file://"))
    folder.mkdir(parents=True)
    assert doctor.store(place).state is State.OK
    assert [p for p in folder.rglob("*") if p.is_file() and p.name != ".lock"] == []


@pytest.mark.server
def test_an_s3_store_is_probed_too(
    place: Settings, s3_server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINWRIGHT_STORE", s3_server.uri("doctor-test"))
    assert doctor.store(settings()).state is State.OK


def test_a_store_that_cannot_be_reached_fails(
    place: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    for uri in (f"file://{tmp_path}/file", "ftp://somewhere/else"):
        monkeypatch.setenv("TRAINWRIGHT_STORE", uri)
        found = doctor.store(settings())
        assert found.state is State.FAIL and "TRAINWRIGHT_STORE" in found.mend


class Server(BaseHTTPRequestHandler):
    status, offset = 200, 0.0

    def do_GET(self) -> None:
        import time

        self.send_response_only(self.status)
        self.send_header("Date", formatdate(time.time() + self.offset, usegmt=True))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    Server.status, Server.offset = 200, 0.0


def test_servers_that_are_set_must_answer_and_agree_on_the_time(
    place: Settings, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [f.state for f in doctor.servers(place)] == [State.OK, State.OK]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", url)
    states = {f.name: f.state for f in doctor.servers(settings())}
    assert states["MLflow"] is states["clock against MLflow"] is State.OK
    Server.offset = 3600.0
    states = {f.name: f.state for f in doctor.servers(settings())}
    assert states["clock against MLflow"] is State.FAIL
    Server.status = 500
    assert {f.name: f.state for f in doctor.servers(settings())}["MLflow"] is State.FAIL
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    found = next(f for f in doctor.servers(settings()) if f.name == "Prefect")
    assert found.state is State.FAIL and "PREFECT_API_URL" in found.mend


@pytest.mark.parametrize(
    ("offset", "state"), [(2, State.OK), (-40, State.WARN), (3600, State.FAIL), (-901, State.FAIL)]
)
def test_the_clock_is_judged_by_its_offset(offset: float, state: State) -> None:
    assert doctor.judge_clock(offset, "x").state is state


def test_files_from_the_future_warn(place: Settings) -> None:
    place.home.mkdir()
    file = place.home / "mlflow.db"
    file.touch()
    assert doctor.clock(place).state is State.OK
    os.utime(file, (4e9, 4e9))
    assert doctor.clock(place).state is State.WARN


def test_a_check_that_breaks_is_a_failed_check_not_a_traceback(place: Settings) -> None:
    def broken_check(place: Settings) -> doctor.Checked:
        raise RuntimeError("oops")

    found = doctor._guarded(broken_check, place)
    assert [f.state for f in found] == [State.FAIL]
    assert found[0].name == "broken check" and "oops" in found[0].found


def test_the_exit_code_says_that_something_fails(
    place: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    console = Console(file=StringIO(), width=200)
    monkeypatch.setattr(doctor, "CHECKS", (lambda place: doctor.fail("x", "sick", "mend"),))
    assert doctor.print_checks(console) == 1
    monkeypatch.setattr(doctor, "CHECKS", (lambda place: doctor.warn("x", "so so", "mend"),))
    assert doctor.print_checks(console) == 0


@pytest.mark.slow
def test_prebuild_compiles_nothing_twice(place: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_compiled(place.torch_extensions, version("torch"))
    found = doctor.build_ops()
    assert found.state is State.OK and found.found == "nothing to do"
