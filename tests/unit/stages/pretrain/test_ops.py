import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trainwright.stages.contract import NodeFaultError
from trainwright.stages.pretrain import ops
from trainwright.stages.watch.processes import descendants


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "extensions"
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(place))
    (place / "py311_cpu" / ops.OP).mkdir(parents=True)
    return place


def lock_of(folder: Path) -> Path:
    return folder / "py311_cpu" / ops.OP / "lock"


def hold(path: Path) -> subprocess.Popen[str]:
    """A process that has taken the lock as torch does, and lives."""
    program = (
        f"import os, time; os.open({str(path)!r}, os.O_CREAT | os.O_EXCL); "
        "print('held', flush=True); time.sleep(600)"
    )
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None and child.stdout.readline() == "held\n"
    return child


def test_a_lock_is_stale_once_the_process_that_built_is_dead(folder: Path) -> None:
    child = hold(lock_of(folder))
    try:
        assert ops.clear_stale_locks() == []
        assert lock_of(folder).exists()
    finally:
        child.kill()
        child.wait()
    assert ops.clear_stale_locks() == [lock_of(folder)]
    assert not lock_of(folder).exists()


def test_an_op_counts_as_built_only_with_the_mark_of_these_versions(folder: Path) -> None:
    (folder / "py311_cpu" / ops.OP / f"{ops.OP}.so").write_bytes(b"half")
    assert not ops.prebuilt()
    mark = folder / f"{ops.OP}.json"
    mark.write_text(json.dumps(ops._makers()))
    assert ops.prebuilt()
    mark.write_text(json.dumps({**ops._makers(), "torch": "1.0"}))
    assert not ops.prebuilt()


def test_a_compiler_that_is_missing_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "_BUILD", "raise SystemExit('no g++')")
    with pytest.raises(NodeFaultError, match="no g\\+\\+"):
        ops.prebuild()
    assert not ops.prebuilt()


def test_a_build_that_hangs_ends_with_its_children_and_leaves_no_lock(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = lock_of(folder)
    inner = f"import os, time; os.open({str(lock)!r}, os.O_CREAT); time.sleep(600)"
    monkeypatch.setattr(
        ops, "_BUILD", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    )
    with pytest.raises(NodeFaultError, match="took over"):
        ops.prebuild(timeout=3.0)
    assert not lock.exists()
    assert not [p for p in descendants(os.getpid()) if "time.sleep(600)" in str(p.cmdline())]


@pytest.mark.slow
@pytest.mark.skipif(ops.accelerator() != "cpu", reason="the op is for CPU ranks")
def test_a_killed_build_does_not_block_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    child = subprocess.Popen(
        [sys.executable, "-c", ops._BUILD],
        env={**os.environ, **ops.environment()},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 300
    while not list(tmp_path.glob("**/lock")) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    assert list(tmp_path.glob("**/lock")), "killed before it took the lock"
    started = time.monotonic()
    assert ops.prebuild()
    print(f"cold build: {time.monotonic() - started:.0f} s")
    assert ops.prebuilt() and not list(tmp_path.glob("**/lock"))
    assert not ops.prebuild()
