"""DeepSpeed's compiled op for CPU ranks: built ahead, in a folder of our own, never waited on for ever.

    python -m trainwright.stages.pretrain.ops

DeepSpeed compiles `deepspeed_shm_comm` at the first start of a process group. A build that was killed
leaves a `lock` file on which every later start would hang.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil

from trainwright.stages.contract import NodeFaultError
from trainwright.stages.settings import settings

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
    """Lock files of builds that no process is doing any more."""
    found = sorted(extensions_folder().glob("**/lock"))
    return [path for path in found if not _building()]


def _building() -> bool:
    """Whether a compile that could hold the lock is under way for this user."""
    for process in psutil.process_iter(["cmdline", "uids"]):
        line = " ".join(process.info["cmdline"] or [])
        if process.pid != os.getpid() and ("ninja" in line or "build_shm_op" in line):
            return True
    return False


def clear_stale_locks() -> list[Path]:
    """Remove them; those that were removed."""
    stale = stale_locks()
    for path in stale:
        path.unlink(missing_ok=True)
    return stale


def prebuilt() -> bool:
    """Whether the op lies compiled in our folder."""
    return any(extensions_folder().glob("**/deepspeed_shm_comm.so"))


def prebuild(timeout: float = 900.0) -> bool:
    """Compile the op unless it is there; True if it was compiled now.

    `NodeFaultError` says what the compiler said, or that it took longer than `timeout` seconds.
    """
    clear_stale_locks()
    if accelerator() != "cpu" or prebuilt():
        return False
    extensions_folder().mkdir(parents=True, exist_ok=True)
    try:
        done = subprocess.run(
            [sys.executable, "-c", _BUILD],
            env={**os.environ, **environment(), "MAX_JOBS": "2"},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        clear_stale_locks()
        raise NodeFaultError(
            f"compiling DeepSpeed's op took over {timeout:.0f} s; try: trainwright doctor --prebuild"
        ) from None
    if done.returncode != 0 or not prebuilt():
        tail = " | ".join((done.stdout + done.stderr).strip().splitlines()[-3:])
        raise NodeFaultError(
            f"DeepSpeed's op deepspeed_shm_comm cannot be compiled: {tail}; "
            "it needs a C++ compiler and ninja: trainwright doctor says what is missing"
        )
    return True


if __name__ == "__main__":
    print("compiled" if prebuild() else "nothing to do")
