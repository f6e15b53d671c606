"""One writer at a time; a dead one is taken over, a living one never."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from trainwright.stages.contract import TransientError
from trainwright.stages.lease import (
    Lease,
    LeaseLostError,
    boot_id,
    process_gone,
    process_started,
)
from trainwright.stages.store import ConditionFailedError, NotFoundError, Store, StoreError
from workbench import wait_for

KEY = "artifacts/a/b/lease.json"
LONG = 600.0


class Faulty:
    """A store whose puts and gets can be made to fail."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.root = store.root
        self.down = threading.Event()
        self.after_put: Callable[[], None] = lambda: None

    def get(self, key: str) -> tuple[bytes, str]:
        self._fail()
        return self.store.get(key)

    def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        self._fail()
        etag = self.store.put(key, data, if_absent=if_absent, if_match=if_match)
        self.after_put()
        return etag

    def delete(self, key: str, *, if_match: str | None = None) -> None:
        self._fail()
        self.store.delete(key, if_match=if_match)

    def _fail(self) -> None:
        if self.down.is_set():
            raise StoreError("the store is away")


def held_by(store: Store, **changes: object) -> None:
    """Leave a lease as another writer would have written it."""
    body = {
        "token": "other",
        "host": "elsewhere",
        "boot": boot_id(),
        "uid": os.getuid(),
        "pid": os.getpid(),
        "started": process_started(os.getpid()),
        "beat": 1,
    }
    store.put(KEY, json.dumps({**body, **changes}).encode())


def dead_pid() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
        return process.pid


def takes(store: Store, ttl: float = LONG, timeout: float = 0.3) -> bool:
    lease = Lease(store, KEY, ttl=ttl)
    try:
        lease.acquire(timeout=timeout)
    except TransientError:
        return False
    lease.release()
    return True


def test_a_second_writer_waits_while_the_first_lives_and_follows_it(store: Store) -> None:
    first, second = Lease(store, KEY, ttl=2.0), Lease(store, KEY, ttl=2.0)
    with first:
        beat = json.loads(store.get(KEY)[0])["beat"]
        with pytest.raises(TransientError, match=f"held by another writer .process {os.getpid()}"):
            second.acquire(timeout=4.0)
        assert json.loads(store.get(KEY)[0])["beat"] > beat
        first.check()
        waiting = threading.Thread(target=second.acquire)
        waiting.start()
    waiting.join(timeout=30)
    assert not waiting.is_alive()
    assert json.loads(store.get(KEY)[0])["token"] == second.token
    second.release()
    with pytest.raises(NotFoundError):
        store.get(KEY)


def test_of_writers_that_race_for_a_free_or_a_dead_lease_one_wins(store: Store) -> None:
    def race() -> list[Lease]:
        gate = threading.Barrier(8)
        leases = [Lease(store, KEY, ttl=LONG) for _ in range(8)]

        def take(lease: Lease) -> bool:
            gate.wait()
            return lease.try_acquire()

        with ThreadPoolExecutor(8) as pool:
            won = list(pool.map(take, leases))
        return [lease for lease, yes in zip(leases, won, strict=True) if yes]

    (winner,) = race()
    assert race() == []
    winner.release()
    held_by(store, pid=dead_pid())
    (winner,) = race()
    assert json.loads(store.get(KEY)[0])["token"] == winner.token
    winner.release()


def test_a_holder_of_this_machine_that_is_gone_is_taken_over_at_once(store: Store) -> None:
    held_by(store, pid=dead_pid())
    assert takes(store)


def test_another_process_of_the_same_number_is_not_the_holder(store: Store) -> None:
    started = process_started(os.getpid())
    assert started is not None
    held_by(store, started=started - 0.02)
    assert takes(store)


@pytest.mark.parametrize(
    "changes",
    [
        {"boot": "another boot"},
        {"uid": -1},
        {"pid": None},
        {"pid": "12"},
        {"started": None},
        {"started": "yesterday"},
    ],
)
def test_a_holder_of_which_nothing_can_be_told_keeps_its_lease(
    store: Store, changes: dict[str, object]
) -> None:
    held_by(store, **{"pid": dead_pid(), **changes})
    assert not takes(store)


@pytest.mark.parametrize("body", [b"", b"not json", b"[1]", b'{"pid": {}}', b"\xff"])
def test_a_lease_that_cannot_be_read_is_taken_over_after_its_time(
    store: Store, body: bytes
) -> None:
    store.put(KEY, body)
    assert not takes(store)
    assert takes(store, ttl=0.3, timeout=30)


def test_a_heartbeat_that_stands_still_is_taken_over_after_its_time_and_not_before(
    store: Store,
) -> None:
    held_by(store, boot="another machine")
    assert not takes(store, ttl=LONG, timeout=1.0)
    assert takes(store, ttl=0.5, timeout=30)


def test_a_heartbeat_that_moves_is_not_taken_over(store: Store) -> None:
    """By its own count alone: the waiter compares etags, so the clocks do not matter."""
    ended = threading.Event()

    def beat() -> None:
        number = 0
        while not ended.wait(0.1):
            number += 1
            held_by(store, boot="another machine", beat=number)

    held_by(store, boot="another machine")
    thread = threading.Thread(target=beat)
    thread.start()
    try:
        assert not takes(store, ttl=3.0, timeout=5.0)
    finally:
        ended.set()
        thread.join()


def test_a_holder_that_was_taken_over_is_told_and_leaves_the_lease_alone(store: Store) -> None:
    told = threading.Event()
    first = Lease(store, KEY, ttl=0.6, on_lost=told.set)
    first.acquire()
    second = Lease(store, KEY, ttl=0.6)
    assert second.try_acquire(dead_etag=None) is False
    wait_for(lambda: second.try_acquire(dead_etag=second.observe()))
    assert told.wait(30)
    with pytest.raises(LeaseLostError, match="taken over by process"):
        first.check()
    first.release()
    second.check()
    second.release()


def test_check_asks_the_store_and_does_not_wait_for_the_heartbeat(store: Store) -> None:
    first = Lease(store, KEY, ttl=LONG)
    first.acquire()
    second = Lease(store, KEY, ttl=LONG)
    assert second.try_acquire(dead_etag=second.observe())
    with pytest.raises(LeaseLostError):
        first.check()
    first.release()
    second.check()
    second.release()


def test_a_short_outage_of_the_store_is_survived(store: Store) -> None:
    faulty = Faulty(store)
    lost = threading.Event()
    with Lease(faulty, KEY, ttl=6.0, on_lost=lost.set) as lease:  # type: ignore[arg-type]
        faulty.down.set()
        time.sleep(2.5)  # One heartbeat falls into the outage.
        faulty.down.clear()
        lease.check()
        assert not lost.is_set()


def test_an_outage_longer_than_the_time_to_live_loses_the_lease(store: Store) -> None:
    faulty = Faulty(store)
    lost = threading.Event()
    lease = Lease(faulty, KEY, ttl=0.6, on_lost=lost.set)  # type: ignore[arg-type]
    lease.acquire()
    faulty.down.set()
    assert lost.wait(30)
    with pytest.raises(LeaseLostError, match="cannot be asked for now"):
        lease.check()
    lease.release()


def test_a_heartbeat_whose_answer_was_lost_does_not_lose_the_lease(store: Store) -> None:
    faulty = Faulty(store)
    lost, answers = threading.Event(), []

    def lose() -> None:
        answers.append(1)
        raise ConditionFailedError if len(answers) % 2 else StoreError("timed out")

    with Lease(faulty, KEY, ttl=2.0, on_lost=lost.set) as lease:  # type: ignore[arg-type]
        faulty.after_put = lose
        wait_for(lambda: len(answers) >= 4)
        faulty.after_put = lambda: None
        lease.check()
        assert not lost.is_set()
    with pytest.raises(NotFoundError):
        store.get(KEY)


def test_a_lease_whose_first_answer_was_lost_is_ours(store: Store) -> None:
    faulty = Faulty(store)

    def lose_once() -> None:
        faulty.after_put = lambda: None
        raise ConditionFailedError

    faulty.after_put = lose_once
    with Lease(faulty, KEY, ttl=LONG) as lease:  # type: ignore[arg-type]
        lease.check()


def test_a_store_that_fails_on_release_does_not_hide_the_error_within(store: Store) -> None:
    faulty = Faulty(store)
    with pytest.raises(ZeroDivisionError), Lease(faulty, KEY, ttl=LONG):  # type: ignore[arg-type]
        faulty.down.set()
        raise ZeroDivisionError


def test_a_store_that_fails_on_release_does_not_spoil_what_was_done(store: Store) -> None:
    faulty = Faulty(store)
    with Lease(faulty, KEY, ttl=LONG):  # type: ignore[arg-type]
        faulty.down.set()
    assert not takes(store), "this process still lives, so the lease stands until its time is up"
    assert takes(store, ttl=0.3, timeout=30)


def test_a_released_lease_calls_nobody_lost(store: Store) -> None:
    lost = threading.Event()
    with Lease(store, KEY, ttl=0.3, on_lost=lost.set):
        pass
    other = Lease(store, KEY, ttl=0.3)
    other.acquire()
    assert not lost.wait(1.0)
    other.release()


def test_a_heartbeat_that_hung_over_the_release_calls_nobody_lost(store: Store) -> None:
    """Else the heartbeat's late answer would end a stage that has finished well."""
    faulty = Faulty(store)
    hung, resume, lost = threading.Event(), threading.Event(), threading.Event()
    lease = Lease(faulty, KEY, ttl=0.6, on_lost=lost.set)  # type: ignore[arg-type]
    lease.acquire()

    def hang() -> None:
        hung.set()
        resume.wait()
        raise ConditionFailedError

    faulty.after_put = hang
    assert hung.wait(30)
    lease.release()
    resume.set()
    assert lease._thread is not None
    lease._thread.join(timeout=30)
    assert not lost.is_set()


def test_a_process_started_when_it_started_and_a_zombie_is_gone() -> None:
    assert process_started(os.getpid()) == process_started(os.getpid())
    first = process_started(1)
    mine = process_started(os.getpid())
    assert first is not None
    assert mine is not None
    assert first < mine
    zombie = subprocess.Popen([sys.executable, "-c", ""])
    wait_for(lambda: process_started(zombie.pid) is None)
    zombie.wait()
    assert process_started(zombie.pid) is None


def test_a_name_with_spaces_and_brackets_does_not_confuse_the_start_time() -> None:
    name = "import ctypes, time; ctypes.CDLL(None).prctl(15, b'a) Z (b', 0, 0, 0); "
    with subprocess.Popen(
        [sys.executable, "-c", name + "print(1, flush=True); time.sleep(60)"],
        stdout=subprocess.PIPE,
    ) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            assert process_started(process.pid) is not None
        finally:
            process.kill()


def test_a_pid_of_another_container_says_nothing() -> None:
    """The kernel's boot id is shared by containers; the pid namespace and the host's name are not."""
    boot, namespace, host = boot_id().split("/")
    for other in (f"{boot}/pid:[1]/{host}", f"{boot}/{namespace}/other", f"x/{namespace}/{host}"):
        assert not process_gone(
            {"boot": other, "uid": os.getuid(), "pid": dead_pid(), "started": 1.0}
        )
    assert process_gone({"boot": boot_id(), "uid": os.getuid(), "pid": dead_pid(), "started": 1.0})
