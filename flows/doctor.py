"""Checks of this machine: what is found, whether it will do, and how to mend what will not."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from trainwright.stages.settings import Settings, settings, without_credentials

if TYPE_CHECKING:
    from rich.console import Console

_GB = 1e9
_MIN_MEMORY = 6.0
"""Gigabytes that a demo run may take at its peak."""
_MIN_DISK, _LOW_DISK = 3.0, 10.0
_MIN_SHM = 0.064
"""A container's default; two gloo ranks need some megabytes, a data loader more."""
_REMOTE_SECONDS = 3.0
_OP = "deepspeed_shm_comm"
_CLOCK_WARN, _CLOCK_FAIL = 30.0, 900.0
"""Seconds. S3 refuses requests that are 15 minutes off."""

Check = Callable[[Settings], "Checked | list[Checked]"]


class State(StrEnum):
    """Whether it will do."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Checked:
    """What a check found."""

    name: str
    state: State
    found: str
    mend: str = ""
    """How to mend it; empty if all is well."""


def ok(name: str, found: str) -> Checked:
    """All is well."""
    return Checked(name, State.OK, found)


def warn(name: str, found: str, mend: str) -> Checked:
    """It will do, for now or for some uses."""
    return Checked(name, State.WARN, found, mend)


def fail(name: str, found: str, mend: str) -> Checked:
    """It will not do."""
    return Checked(name, State.FAIL, found, mend)


# -- this machine


def python_version(place: Settings) -> Checked:
    """Python in an environment of its own. (An older one than 3.11 cannot read this file.)"""
    found = f"{sys.version.split()[0]} at {sys.prefix}"
    if sys.prefix == sys.base_prefix:
        return warn("Python", f"{found} (no virtual environment)", "make one: python -m venv .venv")
    return ok("Python", found)


def compiler(place: Settings) -> Checked:
    """A C++ compiler that really compiles against Python's headers: DeepSpeed builds its ops."""
    name = os.environ.get("CXX") or "c++"
    path = shutil.which(name) or shutil.which("g++")
    mend = "install one (Debian: apt-get install g++ python3-dev), or set CXX to it"
    if path is None:
        return fail("C++ compiler", f"neither {name} nor g++ is in the PATH", mend)
    headers = sysconfig.get_paths()["include"]
    try:
        done = subprocess.run(
            [path, "-x", "c++", "-std=c++17", f"-I{headers}", "-fsyntax-only", "-"],
            input="#include <Python.h>\n#include <vector>\nint main() { return 0; }\n",
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return fail("C++ compiler", f"{path} does not run: {error}", mend)
    if done.returncode != 0:
        first = next(iter(done.stderr.splitlines()), "no message")
        return fail("C++ compiler", f"{path} cannot compile: {first}", mend)
    return ok("C++ compiler", path)


def ninja(place: Settings) -> Checked:
    """ninja, in the environment's own folder or in the PATH."""
    beside = Path(sys.executable).with_name("ninja")
    path = str(beside) if beside.exists() else shutil.which("ninja")
    if path is None:
        return fail("ninja", "not found", "pip install ninja (DeepSpeed compiles its ops with it)")
    return ok("ninja", path)


def memory(place: Settings) -> Checked:
    """Free memory, of the machine or of the container, whichever is less."""
    import psutil

    free = psutil.virtual_memory().available / _GB
    limit = _cgroup_free()
    where = "free"
    if limit is not None and limit < free:
        free, where = limit, "free within this container's limit"
    found = f"{free:.1f} GB {where}"
    if free < _MIN_MEMORY:
        mend = f"end other programs, or raise the limit: a demo run needs {_MIN_MEMORY:.0f} GB"
        # A warning: installing ends with these checks, and the memory may be free by the first run.
        return warn("memory", found, mend)
    return ok("memory", found)


def _cgroup_free() -> float | None:
    """Gigabytes left below the control group's limit; None where there is none."""
    folder = Path("/sys/fs/cgroup")
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            most = (folder / limit).read_text().strip()
            if most.isdigit() and int(most) < 1 << 60:
                return (int(most) - int((folder / used).read_text())) / _GB
        except (OSError, ValueError):
            continue
    return None


def disk(place: Settings) -> list[Checked]:
    """Free disk where state and artifacts go."""
    places = {"disk at home": place.home}
    if place.store.startswith("file://"):
        places["disk at store"] = Path(place.store.removeprefix("file://"))
    return [_disk(name, path) for name, path in places.items()]


def _disk(name: str, path: Path) -> Checked:
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    free = shutil.disk_usage(existing).free / _GB
    found = f"{free:.1f} GB free at {path}"
    if not os.access(existing, os.W_OK):
        mend = "give yourself the right to write there, or set TRAINWRIGHT_HOME / TRAINWRIGHT_STORE"
        return fail(name, f"{existing} is not writable", mend)
    if free < _MIN_DISK:
        return fail(name, found, f"free some: a run needs {_MIN_DISK:.0f} GB; see trainwright gc")
    if free < _LOW_DISK:
        return warn(name, found, "enough for some runs; trainwright gc lists what can go")
    return ok(name, found)


def shared_memory(place: Settings) -> Checked:
    """/dev/shm: ranks on one machine talk through it."""
    path = Path("/dev/shm")
    if not path.is_dir():
        return warn("/dev/shm", "there is none", "ranks then talk over loopback, which is slower")
    size = shutil.disk_usage(path)
    found = f"{size.free / _GB:.2f} of {size.total / _GB:.2f} GB free"
    probe = path / f"trainwright-{uuid.uuid4().hex[:12]}"
    try:
        probe.write_bytes(bytes(1 << 20))
    except OSError as error:
        return fail(
            "/dev/shm", f"not writable: {error}", "mount it writable (docker: --shm-size=1g)"
        )
    finally:
        probe.unlink(missing_ok=True)
    if size.free / _GB < _MIN_SHM:
        return warn(
            "/dev/shm", found, "give it more (docker: --shm-size=1g), or remove stale files"
        )
    return ok("/dev/shm", found)


def ports(place: Settings) -> list[Checked]:
    """The stack's ports: free, ours, or whose."""
    from trainwright.flows import stack
    from trainwright.stages.contract import UsageError

    status = stack.stack_status(place.home)
    found = []
    for name in (stack.PREFECT, stack.MLFLOW):
        title = f"port of {name}"
        service = status.services.get(name)
        if service is not None and service.alive:
            found.append(ok(title, f"the stack's own {name} answers at {service.url}"))
            continue
        try:
            port = stack.port_of(name)
        except UsageError as error:
            found.append(fail(title, str(error), "set it to a free port"))
            continue
        holder = stack.holder_of(port)
        variable = f"TRAINWRIGHT_{name.upper()}_PORT"
        if holder is None:
            found.append(ok(title, f"{port} is free"))
        else:
            mend = f"only trainwright up needs it: end that process, or set {variable}"
            found.append(warn(title, f"{port} is held by {holder}", mend))
    return found


# -- what is installed


def installed_versions(place: Settings) -> list[Checked]:
    """Installed versions against the product's own pins."""
    try:
        requirements = metadata.requires("trainwright") or []
    except metadata.PackageNotFoundError:
        return [fail("packages", "trainwright is not installed", "pip install -e '.[dev]'")]
    return compare_pins(pins(requirements), _installed)


def pins(requirements: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Exactly pinned requirements: name -> (version, extra that asks for it)."""
    found: dict[str, tuple[str, str]] = {}
    for line in requirements:
        match = re.match(r"\s*([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*==\s*([^\s;,]+)", line)
        if match is None:
            continue
        extra = re.search(r"""extra\s*==\s*['"]([^'"]+)""", line)
        found.setdefault(match[1], (match[2], extra[1] if extra else ""))
    return found


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def compare_pins(
    wanted: dict[str, tuple[str, str]], installed: Callable[[str], str | None]
) -> list[Checked]:
    """One finding if all agree; else one for each package that differs or is missing."""
    found = []
    for name, (version, extra) in wanted.items():
        have = installed(name)
        if have is None:
            mend = (
                f"pip install 'trainwright[{extra}]'" if extra else f"pip install {name}=={version}"
            )
            make = warn if extra else fail
            found.append(make(name, f"not installed; {version} is asked for", mend))
        elif have.partition("+")[0] != version:
            mend = f"pip install {name}=={version}"
            found.append(warn(name, f"{have} is installed, {version} was tested", mend))
    return found or [ok("packages", f"all {len(wanted)} pinned versions are installed")]


def deepspeed_ops(place: Settings) -> Checked:
    """Whether the op that CPU ranks need lies compiled in our folder."""
    title, folder = "DeepSpeed ops", place.torch_extensions
    if _installed("deepspeed") is None:
        return warn(title, "deepspeed is not installed here", "pip install 'trainwright[train]'")
    if Path("/proc/driver/nvidia/version").exists():
        return ok(title, "a GPU is here: the op of CPU ranks is not needed")
    compiled = any(folder.glob(f"**/{_OP}.so"))
    made_by = _makers_of_op(folder)
    mend = "the first run compiles it (a minute or more); now: trainwright doctor --prebuild"
    if not compiled or made_by is None:
        return warn(title, f"not compiled yet in {folder}", mend)
    moved = [
        f"{name} {made_by[name]} -> {version}"
        for name in ("deepspeed", "torch")
        if (version := _installed(name)) is not None and made_by.get(name, version) != version
    ]
    if moved:
        return warn(title, f"compiled in {folder} by other versions: {', '.join(moved)}", mend)
    return ok(title, f"compiled, in {folder}")


def _makers_of_op(folder: Path) -> dict[str, str] | None:
    """The versions that compiled the op, as the build that went to its end has left them."""
    try:
        said = json.loads((folder / f"{_OP}.json").read_text())
    except (OSError, ValueError):
        return None
    return said if isinstance(said, dict) else None


def stale_locks(place: Settings) -> Checked:
    """Locks of builds that were killed: every later start would wait on them for ever."""
    locks = sorted(place.torch_extensions.glob("**/lock"))
    if not locks:
        return ok("build locks", "none")
    held = _open_files()
    stale = [str(path) for path in locks if str(path.resolve()) not in held]
    if not stale:
        return warn("build locks", f"a build is under way: {locks[0].parent}", "wait for it")
    names = " ".join(shlex.quote(path) for path in stale)
    return fail("build locks", f"left by a killed build: {names}", f"rm {names}")


def _open_files() -> set[str]:
    """Paths that processes have open: a build holds its lock open until it ends."""
    import psutil

    found: set[str] = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            found.update(file.path for file in process.open_files())
    return found


# -- what is elsewhere


def store(place: Settings) -> Checked:
    """The store takes, gives back, and refuses a second conditional put."""
    mend = "see TRAINWRIGHT_STORE, and for s3:// AWS_ENDPOINT_URL_S3 and the AWS credentials"
    try:
        with _probed(place.store) as uri:
            refused, same = _probe(uri)
    except Exception as error:
        return fail("store", f"{place.store}: {_sentence(error)}", mend)
    if not refused:
        mend = "use a store with conditional writes: without them two writers can spoil an artifact"
        return fail("store", f"{place.store} took two writes of which one had to fail", mend)
    if not same:
        return fail("store", f"{place.store} gave other bytes back than it took", mend)
    return ok("store", f"{place.store} takes conditional writes")


@contextlib.contextmanager
def _probed(uri: str) -> Iterator[str]:
    """The store to probe: the given one, or where its folder is not there yet, one beside it."""
    path = Path(uri.removeprefix("file://"))
    if not uri.startswith("file://") or path.exists():
        yield uri
        return
    existing = next(folder for folder in path.parents if folder.exists())
    with tempfile.TemporaryDirectory(prefix=".trainwright-doctor-", dir=existing) as folder:
        yield f"file://{folder}"


def _probe(uri: str) -> tuple[bool, bool]:
    """Whether a second conditional put is refused, and whether the first one's bytes come back."""
    from trainwright.stages.store import ConditionFailedError, open_store

    target, key = open_store(uri), f"doctor/{uuid.uuid4().hex}"
    target.put(key, b"probe", if_absent=True)
    try:
        target.put(key, b"second", if_absent=True)
        refused = False
    except ConditionFailedError:
        refused = True
    same = target.get(key)[0] == b"probe"
    target.delete(key)
    return refused, same


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text[:300] or type(error).__name__


def servers(place: Settings) -> list[Checked]:
    """The Prefect API and the MLflow server, where they are set; and the clock against theirs."""
    found = []
    urls = {"Prefect": place.prefect_api, "MLflow": place.mlflow_uri}
    for name, url in urls.items():
        if url is None or not url.startswith("http"):
            used = "in-process" if name == "Prefect" else without_credentials(url or "none")
            found.append(ok(name, f"no server is set: {used}"))
            continue
        found += _server(name, url)
    return found


def _server(name: str, url: str) -> list[Checked]:
    import httpx

    variable = {"Prefect": "PREFECT_API_URL", "MLflow": "MLFLOW_TRACKING_URI"}[name]
    try:
        answer = httpx.get(f"{url.rstrip('/')}/health", timeout=_REMOTE_SECONDS)
        answer.raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        mend = f"start it (trainwright up), or set or unset {variable}"
        said = without_credentials(f"{url} does not answer: {_sentence(error)}")
        return [fail(name, said, mend)]
    found = f"answers at {without_credentials(url)}"
    return [ok(name, found), *_clock(name, answer.headers.get("date"))]


def _clock(name: str, date: str | None) -> list[Checked]:
    from email.utils import parsedate_to_datetime

    if date is None:
        return []
    with contextlib.suppress(ValueError, TypeError):
        return [judge_clock(time.time() - parsedate_to_datetime(date).timestamp(), name)]
    return []


def judge_clock(offset: float, against: str) -> Checked:
    """This clock's offset in seconds against a server's."""
    title, mend = f"clock against {against}", "set it by NTP (timedatectl set-ntp true)"
    found = f"{offset:+.0f} s"
    if abs(offset) >= _CLOCK_FAIL:
        return fail(title, f"{found}: object stores refuse requests", mend)
    return warn(title, found, mend) if abs(offset) >= _CLOCK_WARN else ok(title, found)


def clock(place: Settings) -> Checked:
    """The clock is plausible, and no file of ours comes from the future."""
    newest = max((p.stat().st_mtime for p in _own_files(place)), default=0.0)
    ahead = newest - time.time()
    now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    mend = "set it by NTP (timedatectl set-ntp true)"
    if ahead > _CLOCK_WARN:
        return warn("clock", f"{now}, but files at home are {ahead:.0f} s ahead of it", mend)
    built = Path(__file__).stat().st_mtime
    if time.time() < built - 86400:
        return fail("clock", f"{now} is before this program was installed", mend)
    return ok("clock", now)


def _own_files(place: Settings) -> list[Path]:
    try:
        return [path for path in place.home.iterdir() if path.is_file()]
    except OSError:
        return []


# -- all of them

CHECKS: tuple[Check, ...] = (
    python_version, compiler, ninja, memory, disk, shared_memory, clock, installed_versions,
    deepspeed_ops, stale_locks, ports, store, servers,
)  # fmt: skip


def run_checks(place: Settings | None = None) -> list[Checked]:
    """Every check, side by side; a check that itself breaks is a failed one."""
    here = place or settings()
    with ThreadPoolExecutor(max_workers=8) as pool:
        results = list(pool.map(lambda check: _guarded(check, here), CHECKS))
    return [finding for result in results for finding in result]


def _guarded(check: Check, place: Settings) -> list[Checked]:
    try:
        result = check(place)
    except Exception as error:
        name = check.__name__.replace("_", " ")
        return [fail(name, f"the check broke: {_sentence(error)}", "tell us: this is a bug")]
    return result if isinstance(result, list) else [result]


def build_ops() -> Checked:
    """Compile DeepSpeed's op, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "trainwright.stages.pretrain.ops"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    last = lines[-1] if lines else f"ended with code {done.returncode} and no message"
    if done.returncode != 0:
        return fail("prebuild", last, "mend what the lines above say, then try again")
    return ok("prebuild", last)


def print_checks(console: Console, *, prebuild: bool = False) -> int:
    """Check, print a line each, and give the exit code: 1 if something fails."""
    from rich.table import Table
    from rich.text import Text

    findings = [_prebuild(console)] if prebuild else []
    findings += run_checks()
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", ratio=1)
    colours = {State.OK: "green", State.WARN: "yellow", State.FAIL: "bold red"}
    for finding in findings:
        text = Text(finding.found)
        if finding.mend:
            text.append(f"\n→ {finding.mend}", "yellow")
        table.add_row(Text(finding.state.value, style=colours[finding.state]), finding.name, text)
    console.print(table)
    failed = [finding.name for finding in findings if finding.state is State.FAIL]
    console.print(f"to mend: {', '.join(failed)}" if failed else "this machine will do")
    return 1 if failed else 0


def _prebuild(console: Console) -> Checked:
    console.print("compiling DeepSpeed's op (a minute or more, unless it is there)")
    return build_ops()
