import os
import subprocess
import sys
import time

import psutil

from trainwright.stages.watch.processes import PARENT_PIPE, end_tree

GRANDCHILD = """
import subprocess, sys, time
sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
child = subprocess.Popen(sleeper, start_new_session=True)
{before}
print(child.pid, flush=True)
time.sleep(600)
"""


def gone(pid: int, within: float = 20.0) -> bool:
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.05)
    return False


def start(before: str = "", **options: object) -> tuple[subprocess.Popen[str], int]:
    parent = subprocess.Popen(
        [sys.executable, "-c", GRANDCHILD.format(before=before)],
        stdout=subprocess.PIPE,
        text=True,
        **options,  # type: ignore[call-overload]
    )
    assert parent.stdout is not None
    return parent, int(parent.stdout.readline())


def test_ending_a_tree_ends_a_grandchild_in_a_session_of_its_own() -> None:
    parent, grandchild = start()
    end_tree(parent.pid, grace=2.0)
    parent.wait()
    assert gone(grandchild)


def test_a_process_that_ignores_sigterm_is_killed() -> None:
    parent, grandchild = start("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    end_tree(parent.pid, grace=0.5)
    assert gone(parent.pid)
    assert gone(grandchild)


def test_a_stage_and_its_children_end_when_the_flow_lets_go_of_the_pipe() -> None:
    read_end, write_end = os.pipe()
    before = "from trainwright.stages.watch.processes import end_with_parent; end_with_parent()"
    parent, grandchild = start(
        before,
        pass_fds=[read_end],
        start_new_session=True,
        env={**os.environ, PARENT_PIPE: str(read_end)},
        stderr=subprocess.DEVNULL,
    )
    os.close(read_end)
    time.sleep(0.5)
    assert parent.poll() is None
    os.close(write_end)
    assert parent.wait(timeout=20) == 143
    assert gone(grandchild)
