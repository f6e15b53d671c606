"""Who writes an output holds a lease there: one writer at a time, and a dead one is taken over.

The lease is a small object with a heartbeat. A second writer waits while the heartbeat moves. It takes
over when the heartbeat has stood still for the lease's time to live, by its own clock (so clocks of
two machines need not agree), or at once when the holder ran on this machine and its process is gone.
"""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from trainwright.stages.contract import TransientError
from trainwright.stages.store import ConditionFailedError, NotFoundError, Store, StoreError


class LeaseLostError(TransientError):
    """Another writer has taken the lease over: this one must stop."""


def boot_id() -> str:
    """Tells this boot of this machine from any other (and one container from another)."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = f"{psutil.boot_time():.0f}"
    try:
        namespace = Path("/proc/self/ns/pid").readlink().name
    except OSError:
        namespace = ""
    return f"{boot}/{namespace}"


def process_started(pid: int) -> float | None:
    """When a process of this machine started; None if it is gone (a zombie is gone)."""
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
    on_lost: Any = None
    """Called once, from the heartbeat's thread, when the lease is lost."""

    def __post_init__(self) -> None:
        self._etag = ""
        self._beat = 0
        self._lost = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Lease:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def acquire(self, timeout: float | None = None) -> None:
        """Wait for the lease, take it and keep it alive; `TransientError` after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        seen, since = "", time.monotonic()
        while not self._try_take(seen if time.monotonic() - since > self.ttl else None):
            _, etag = self._read()
            if etag != seen:
                seen, since = etag, time.monotonic()
            if deadline is not None and time.monotonic() > deadline:
                raise TransientError(
                    f"{self.store.root}/{self.key} is held by another writer ({self.holder()})"
                )
            time.sleep(min(1.0, self.ttl / 10))
        self._thread = threading.Thread(target=self._heartbeat, name="lease", daemon=True)
        self._thread.start()

    def holder(self) -> str:
        """Who holds it, in words."""
        holder, _ = self._read()
        if not holder:
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
        holder, etag = self._read()
        try:
            if not etag:
                self._etag = self.store.put(self.key, self._body(), if_absent=True)
                return True
            if etag == dead_etag or self._process_gone(holder):
                self._etag = self.store.put(self.key, self._body(), if_match=etag)
                return True
        except ConditionFailedError:
            return False
        return False

    @staticmethod
    def _process_gone(holder: dict[str, Any]) -> bool:
        pid = holder.get("pid")
        if holder.get("boot") != boot_id() or not isinstance(pid, int):
            return False
        started = process_started(pid)
        return started is None or abs(started - float(holder.get("started", 0))) > 1.0

    def _body(self) -> bytes:
        self._beat += 1
        body = {
            "token": self.token,
            "host": os.uname().nodename,
            "boot": boot_id(),
            "pid": os.getpid(),
            "started": process_started(os.getpid()),
            "beat": self._beat,
        }
        return json.dumps(body).encode()

    def _heartbeat(self) -> None:
        last = time.monotonic()
        while not self._stop.wait(self.ttl / 3):
            try:
                self._etag = self.store.put(self.key, self._body(), if_match=self._etag)
                last = time.monotonic()
            except ConditionFailedError:
                if not self._recovered():
                    self._mark_lost()
                    return
                last = time.monotonic()
            except StoreError:
                # Past its time to live another writer may have it: to go on would be two writers.
                if time.monotonic() - last > self.ttl:
                    self._mark_lost()
                    return

    def _recovered(self) -> bool:
        """Whether the lease is still ours: a put that timed out may have arrived all the same."""
        try:
            holder, etag = self._read()
        except StoreError:
            return False
        if holder.get("token") != self.token:
            return False
        self._etag = etag
        return True

    def _mark_lost(self) -> None:
        self._lost.set()
        if self.on_lost is not None:
            self.on_lost()

    def check(self) -> None:
        """Raise `LeaseLostError` if the lease is lost."""
        if self._lost.is_set():
            raise LeaseLostError(f"{self.store.root}/{self.key} was taken over by {self.holder()}")

    def release(self) -> None:
        """Stop the heartbeat and let go."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=self.ttl)
        if not self._lost.is_set():
            holder, _ = self._read()
            if holder.get("token") == self.token:
                self.store.delete(self.key)
