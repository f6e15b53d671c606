"""Processes that end together: a stage ends when its flow does, and takes its children along."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterable

import psutil

PARENT_PIPE = "TRAINWRIGHT_PARENT_PIPE"
"""Number of an inherited pipe's read end; its other end is held by the flow alone."""


def descendants(pid: int) -> list[psutil.Process]:
    """All living descendants of a process."""
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.Error:
        return []


def end_tree(pid: int, grace: float = 5.0, *, include_root: bool = True) -> None:
    """End a process and all its descendants: SIGTERM, `grace` seconds, then SIGKILL.

    Descendants are found by parentage, so children in sessions of their own (torchrun's workers) are
    ended too.
    """
    victims = descendants(pid)
    if include_root:
        try:
            victims.append(psutil.Process(pid))
        except psutil.Error:
            pass
    _signal_all(victims, signal.SIGTERM)
    _, alive = psutil.wait_procs(victims, timeout=grace)
    late = [child for process in alive for child in descendants(process.pid)]
    _signal_all([*alive, *late], signal.SIGKILL)
    psutil.wait_procs(alive, timeout=grace)


def _signal_all(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.Error:
            continue


def end_with_parent() -> None:
    """From now on, end this process and its descendants when the flow that launched it is gone.

    The flow holds the write end of a pipe; the kernel closes it however the flow ends.
    """
    number = os.environ.pop(PARENT_PIPE, None)
    if number is None:
        return
    threading.Thread(target=_watch_pipe, args=(int(number),), name="parent", daemon=True).start()


def _watch_pipe(descriptor: int) -> None:
    os.set_inheritable(descriptor, False)
    while os.read(descriptor, 64):
        pass
    print("the flow that launched this stage is gone: ending", file=sys.stderr, flush=True)
    end_tree(os.getpid(), grace=3.0, include_root=False)
    os._exit(143)


def end_with_ppid(interval: float = 1.0) -> None:
    """From now on, end this process when its parent is gone (for ranks below a launcher)."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(interval)
        end_tree(os.getpid(), grace=1.0, include_root=False)
        os._exit(143)

    threading.Thread(target=watch, name="parent", daemon=True).start()
