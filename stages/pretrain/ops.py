"""DeepSpeed's compiled op for CPU ranks: built ahead, in a folder of our own, never waited on for ever.

`python -m trainwright.stages.pretrain.ops` builds it.

DeepSpeed compiles `deepspeed_shm_comm` at the first start of a process group. A build that was killed
leaves a `lock` file on which every later start would wait without end.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import psutil

from trainwright.stages.contract import NodeFaultError
from trainwright.stages.durable import write_durably
from trainwright.stages.settings import settings
from trainwright.stages.watch.processes import end_tree

OP = "deepspeed_shm_comm"

_BUILD = (
    "from deepspeed.comm.torch import build_shm_op; import sys; "
    "sys.exit(0 if build_shm_op() is not None else 3)"
)


def extensions_folder() -> Path:
    """Where compiled ops are kept."""
    return settings().torch_extensions


def environment() -> dict[str, str]:
    """Variables for every process that imports DeepSpeed."""
    return {"TORCH_EXTENSIONS_DIR": str(extensions_folder()), "DS_ACCELERATOR": accelerator()}


def accelerator() -> str:
    """`cuda` where the driver is, else `cpu`; asked without loading torch."""
    return "cuda" if Path("/proc/driver/nvidia/version").exists() else "cpu"


def stale_locks() -> list[Path]:
    """Lock files of builds that no process is doing any more: a build holds its lock open."""
    found = sorted(extensions_folder().glob("**/lock"))
    held = _open_files() if found else set()
    return [path for path in found if str(path.resolve()) not in held]


def _open_files() -> set[str]:
    """Paths of the files that this user's processes have open."""
    found: set[str] = set()
    for process in psutil.process_iter():
        try:
            found.update(file.path for file in process.open_files())
        except (psutil.Error, OSError):
            continue
    return found


def clear_stale_locks() -> list[Path]:
    """Remove them; those that were removed."""
    stale = stale_locks()
    for path in stale:
        path.unlink(missing_ok=True)
    return stale


def prebuilt() -> bool:
    """Whether the op lies compiled in our folder, by these versions of its makers, and to the end."""
    try:
        said = json.loads(_mark().read_text())
    except (OSError, ValueError):
        return False
    return bool(said == _makers() and any(extensions_folder().glob(f"**/{OP}.so")))


def prebuild(timeout: float = 900.0) -> bool:
    """Compile the op unless it is there; True if it was compiled or looked over now.

    `NodeFaultError` says what the compiler said, or that it took longer than `timeout` seconds.
    """
    clear_stale_locks()
    if accelerator() != "cpu" or prebuilt():
        return False
    _drop_other_versions()
    extensions_folder().mkdir(parents=True, exist_ok=True)
    code, said = _build(timeout)
    if code != 0:
        raise NodeFaultError(
            f"DeepSpeed's op {OP} cannot be compiled: {_tail(said)}; it needs a C++ compiler and "
            "ninja: trainwright doctor says what is missing"
        )
    write_durably(_mark(), json.dumps(_makers(), sort_keys=True).encode())
    return True


def _build(timeout: float) -> tuple[int, str]:
    process = subprocess.Popen(
        [sys.executable, "-c", _BUILD],
        env={**os.environ, **environment(), "MAX_JOBS": "2"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    try:
        said, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        raise NodeFaultError(
            f"compiling DeepSpeed's op {OP} took over {timeout:.0f} s; on a less busy machine try: "
            "trainwright doctor --prebuild"
        ) from None
    finally:
        # ninja and the compiler too: what lives on would hold the lock.
        end_tree(process.pid, grace=2.0)
        clear_stale_locks()
    return process.returncode, said


def _mark() -> Path:
    """Says which versions built the op; written when a build has ended well."""
    return extensions_folder() / f"{OP}.json"


def _makers() -> dict[str, str]:
    """What a compiled op belongs to."""
    makers = {name: version(name) for name in ("torch", "deepspeed")}
    return {**makers, "python": platform.python_version(), "machine": platform.machine()}


def _drop_other_versions() -> None:
    """An op of other versions would be taken for ours: the compiler sees the same sources and flags."""
    folders = list(extensions_folder().glob(f"**/{OP}"))
    if _mark().exists() and not any((folder / "lock").exists() for folder in folders):
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        _mark().unlink(missing_ok=True)


def _tail(text: str, lines: int = 3) -> str:
    return " | ".join(text.strip().splitlines()[-lines:]) or "it said nothing"


if __name__ == "__main__":
    print("compiled" if prebuild() else "nothing to do")
