"""Who writes an output holds a lease there: one writer at a time, and a dead one is taken over.

The lease is a small object with a heartbeat. A second writer waits while the heartbeat moves. It
takes over when the heartbeat has stood still for the lease's time to live, by its own clock (so clocks
of two machines need not agree), or at once when the holder ran on this machine and its process is
gone. Every change of the lease is conditional on the state that was read before, so of many that try
one wins.

A lease saves work; it does not guard the artifact. A holder that was stopped, taken over and then
goes on can still write for a moment: that is why files lie in a folder of their try and the manifest
is a put that one writer wins (`stages.artifact`).
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from trainwright.stages.contract import TransientError
from trainwright.stages.store import ConditionFailedError, NotFoundError, Store, StoreError

log = logging.getLogger(__name__)


class LeaseLostError(TransientError):
    """Another writer has taken the lease over: this one must stop."""


def boot_id() -> str:
    """Tells this boot of this machine, and this container on it, from any other.

    The kernel's boot id is the same in all containers of a machine, so the pid namespace and the
    host's name stand beside it: a pid means a process only where all three agree. (A namespace's
    number is used again, but not before all its processes are gone, so what it says of them holds.)
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = Path("/proc/self/ns/pid").readlink().name
    except OSError:
        boot, namespace = f"{psutil.boot_time():.0f}", ""
    return f"{boot}/{namespace}/{os.uname().nodename}"


def process_started(pid: int) -> float | None:
    """When a process of this machine started, in seconds; None if it is gone (a zombie is gone).

    On Linux in seconds since boot, as the kernel keeps it: seconds since the epoch would move with
    every step of the machine's clock, and a living process would look like another.
    """
    try:
        # Fields as proc(5) numbers them, from the third on; the second may hold spaces.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return None if fields[0] in "ZX" else int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (ProcessLookupError, FileNotFoundError, PermissionError):
        return None if Path("/proc/self/stat").exists() else _started_by_psutil(pid)


def _started_by_psutil(pid: int) -> float | None:
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return float(process.create_time())
    except psutil.Error:
        return None


@dataclass
class Lease:
    """A lease on the key `<artifact>/lease.json`; use as a context manager.

    `ttl` is in seconds; the heartbeat is three times as fast. `check()` raises `LeaseLostError` once
    another writer has taken over.
    """

    store: Store
    key: str
    ttl: float = 20.0
    token: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    on_lost: Callable[[], None] | None = None
    """Called once, from the heartbeat's thread, when the lease is lost."""

    def __post_init__(self) -> None:
        self._etag = ""
        self._beat = 0
        self._renewed = 0.0
        self._lost = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._changing = threading.Lock()

    def __enter__(self) -> Lease:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def acquire(self, timeout: float | None = None) -> None:
        """Wait for the lease, take it and keep it alive; `TransientError` after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        seen, since = self.observe(), time.monotonic()
        first = True
        while not self.try_acquire(seen if time.monotonic() - since > self.ttl else None):
            etag = self.observe()
            if etag != seen:
                seen, since = etag, time.monotonic()
            if deadline is not None and time.monotonic() > deadline:
                raise TransientError(f"{self._uri} is held by another writer ({self.holder()})")
            if first:
                log.info("%s is held by %s: waiting", self._uri, self.holder())
                first = False
            time.sleep(min(1.0, self.ttl / 10))

    def observe(self) -> str:
        """The etag of the lease as it is now ("" if nobody holds it): it moves with each heartbeat."""
        return self._read()[1]

    def free(self) -> bool:
        """Whether nobody holds it, or a process of this machine that is gone."""
        holder, etag = self._read()
        return not etag or process_gone(holder)

    def try_acquire(self, dead_etag: str | None = None) -> bool:
        """Take the lease if it is free or its holder is dead; whether it was taken.

        `dead_etag` is one that `observe` gave at least `ttl` seconds ago: if it still stands, the
        holder counts as dead.
        """
        if not self._try_take(dead_etag):
            return False
        self._thread = threading.Thread(target=self._heartbeat, name="lease", daemon=True)
        self._thread.start()
        return True

    @property
    def _uri(self) -> str:
        return f"{self.store.root}/{self.key}"

    def holder(self) -> str:
        """Who holds it, in words."""
        try:
            holder, etag = self._read()
        except StoreError:
            return "a writer that cannot be asked for now"
        if not etag:
            return "nobody"
        return f"process {holder.get('pid')} on {holder.get('host')}"

    def _read(self) -> tuple[dict[str, Any], str]:
        try:
            data, etag = self.store.get(self.key)
        except NotFoundError:
            return {}, ""
        try:
            value = json.loads(data)
        except ValueError:
            value = {}
        return (value if isinstance(value, dict) else {}), etag

    def _try_take(self, dead_etag: str | None) -> bool:
        now = time.monotonic()
        holder, etag = self._read()
        if holder.get("token") == self.token:
            # Our own put, whose answer was lost: it was tried again and then found itself.
            self._etag, self._renewed = etag, now
            return True
        try:
            if not etag:
                self._etag = self.store.put(self.key, self._body(), if_absent=True)
            elif etag == dead_etag or process_gone(holder):
                self._etag = self.store.put(self.key, self._body(), if_match=etag)
            else:
                return False
        except ConditionFailedError:
            return False
        self._renewed = now
        return True

    def _body(self) -> bytes:
        self._beat += 1
        body = {
            "token": self.token,
            "host": os.uname().nodename,
            "boot": boot_id(),
            "uid": os.getuid(),
            "pid": os.getpid(),
            "started": process_started(os.getpid()),
            "beat": self._beat,
        }
        return json.dumps(body).encode()

    def _heartbeat(self) -> None:
        while not self._stop.wait(self.ttl / 3):
            try:
                kept = self._renew()
            except Exception as error:
                # Past its time to live another writer may have it: to go on would be two writers.
                kept = time.monotonic() - self._renewed < self.ttl
                log.warning("the heartbeat of %s failed: %s", self._uri, error)
            if not kept:
                self._mark_lost()
                return

    def _renew(self) -> bool:
        """Write a heartbeat; whether the lease is still ours."""
        with self._changing:
            now = time.monotonic()
            try:
                self._etag = self.store.put(self.key, self._body(), if_match=self._etag)
            except ConditionFailedError:
                # A put whose answer was lost may have arrived all the same.
                holder, etag = self._read()
                if holder.get("token") != self.token:
                    return False
                self._etag = etag
            self._renewed = now
            return True

    def _mark_lost(self) -> None:
        if self._stop.is_set():
            return
        self._lost.set()
        if self.on_lost is not None:
            self.on_lost()

    def check(self) -> None:
        """Raise `LeaseLostError` if the lease is lost.

        Asks the store, since a process that was stopped for a while does not know what it missed.
        """
        if self._lost.is_set() or not self._renew():
            self._lost.set()
            raise LeaseLostError(f"{self._uri} was taken over by {self.holder()}")

    def release(self) -> None:
        """Stop the heartbeat and let go. A store that fails here is only logged.

        What the holder did is done, or has an error of its own to show; the lease dies by itself.
        """
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=self.ttl)
        if self._lost.is_set():
            return
        try:
            holder, etag = self._read()
            if holder.get("token") == self.token:
                self.store.delete(self.key, if_match=etag)
        except ConditionFailedError:
            log.warning("%s was taken over as it was let go", self._uri)
        except Exception as error:
            log.warning("%s could not be released, it ends by itself: %s", self._uri, error)


def process_gone(holder: dict[str, Any]) -> bool:
    """Whether the process that wrote a lease ran here and is gone; False where that cannot be told.

    Its start time guards against another process of the same number. Only processes of the same user
    are judged: /proc may hide those of others (hidepid).
    """
    pid, started = holder.get("pid"), holder.get("started")
    if holder.get("boot") != boot_id() or holder.get("uid") != os.getuid():
        return False
    if not isinstance(pid, int) or not isinstance(started, int | float):
        return False
    now = process_started(pid)
    return now is None or abs(now - started) > 0.005
