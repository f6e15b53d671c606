"""Writers that are killed or stopped at any point: nothing half-written is read, the next succeeds."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from trainwright.stages.artifact import Artifact, Manifest
from trainwright.stages.lease import Lease, LeaseLostError
from trainwright.stages.store import Store, open_store, split_uri

KEY = "artifacts/corpus/" + "f" * 24
LONG = 600.0
PART = 5 << 20
DATA = {"a": b"alpha", "big": bytes(PART + 1000)}
CHANGES = frozenset({"open", "os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir"})
"""Audit events of what a folder store does to the disk."""

Make = Callable[..., Manifest]
Output = Callable[..., Path]


def open_in_parts(uri: str) -> Store:
    """The store, with parts so small that the big file takes two."""
    scheme, bucket, prefix = split_uri(uri)
    if scheme == "file":
        return open_store(uri)
    from trainwright.stages.store.s3 import S3Store

    return S3Store(bucket, prefix, part_size=PART)


def write(store: Store, key: str, folder: Path, manifest_of: Make) -> Manifest:
    """What a stage does with its output (stages.runner)."""
    artifact = Artifact(store, key)
    lease = Lease(store, artifact.lease_key, ttl=LONG)
    lease.acquire(timeout=60)
    try:
        manifest = artifact.manifest()
        if manifest is None:
            files = artifact.upload(folder, lease.token)
            lease.check()
            manifest = artifact.commit(manifest_of(files))
    finally:
        lease.release()
    return manifest


@dataclass
class Point:
    """The `at`-th step of a writer, at which it kills itself."""

    at: int
    seen: int = 0

    def pass_by(self, *_: object, **__: object) -> None:
        self.seen += 1
        if self.seen == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


def arm(store: Store, point: Point) -> None:
    """Count every change on the disk, or every request and answer, as a step."""
    folder = store.local_path(KEY)
    if folder is None:
        events = store._client.meta.events  # type: ignore[attr-defined]
        events.register("before-send.s3", point.pass_by)
        events.register("after-call.s3", point.pass_by)
        return
    root = store.root.removeprefix("file://")

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in CHANGES and str(arguments[0]).startswith(root):
            point.pass_by()

    sys.addaudithook(hook)


def in_child(act: Callable[[], None]) -> int:
    """Run in a forked child; its pid."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            act()
            code = 0
        finally:
            os._exit(code)
    return pid


def exit_of(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.slow
def test_a_writer_killed_at_any_step_leaves_nothing_to_read_and_the_next_succeeds(
    store_uri: str, output: Output, manifest_of: Make, tmp_path: Path
) -> None:
    for at in range(1, 400):
        key = f"artifacts/corpus/{at}"
        folder = output(**DATA)

        def writer(at: int = at, key: str = key, folder: Path = folder) -> None:
            store = open_in_parts(store_uri)
            arm(store, Point(at))
            write(store, key, folder, manifest_of)

        code = exit_of(in_child(writer))
        store = open_in_parts(store_uri)
        found = Artifact(store, key).manifest()
        if found is not None:
            Artifact(store, key).verify(found)
        if code == 0:
            break
        assert code == -signal.SIGKILL
        manifest = write(store, key, output(**DATA), manifest_of)
        read = Artifact(store, key).read(manifest, tmp_path / "cache")
        assert {p.name: p.read_bytes() for p in read.rglob("*") if p.is_file()} == DATA
    assert code == 0
    assert at > 20, "the kills must have hit every step from the lease to the manifest"
    assert found is not None


def test_a_lease_of_a_killed_process_is_taken_over_at_once(store_uri: str) -> None:
    reader, writer = os.pipe()

    def hold() -> None:
        Lease(open_store(store_uri), f"{KEY}/lease.json", ttl=LONG).acquire()
        os.write(writer, b"1")
        time.sleep(LONG)

    pid = in_child(hold)
    os.read(reader, 1)
    store = open_store(store_uri)
    assert not Lease(store, f"{KEY}/lease.json", ttl=LONG).try_acquire()
    os.kill(pid, signal.SIGKILL)
    assert exit_of(pid) == -signal.SIGKILL
    with Lease(store, f"{KEY}/lease.json", ttl=LONG) as lease:
        lease.check()


def test_a_stopped_holder_is_taken_over_and_finds_out_before_it_commits(
    store_uri: str, output: Output, manifest_of: Make, tmp_path: Path
) -> None:
    ready, ready_writer = os.pipe()
    go, go_writer = os.pipe()
    folder = output(a=b"from the stopped one")
    outcome = tmp_path / "outcome"

    def stopped() -> None:
        artifact = Artifact(open_store(store_uri), KEY)
        lease = Lease(artifact.store, artifact.lease_key, ttl=1.0)
        lease.acquire()
        files = artifact.upload(folder, lease.token)
        os.write(ready_writer, b"1")
        os.read(go, 1)
        try:
            lease.check()
            artifact.commit(manifest_of(files, run_id="stopped"))
            outcome.write_text("committed")
        except LeaseLostError:
            outcome.write_text("lost")
        lease.release()

    pid = in_child(stopped)
    os.read(ready, 1)
    os.kill(pid, signal.SIGSTOP)
    try:
        artifact = Artifact(open_store(store_uri), KEY)
        lease = Lease(artifact.store, artifact.lease_key, ttl=1.0)
        lease.acquire(timeout=60)
        os.write(go_writer, b"1")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert exit_of(pid) == 0
    assert outcome.read_text() == "lost"
    assert artifact.manifest() is None
    files = artifact.upload(output(), lease.token)
    lease.check()
    winner = artifact.commit(manifest_of(files, run_id="second"))
    lease.release()
    assert artifact.manifest() == winner
    artifact.verify(winner)


def test_a_holder_stopped_between_its_last_check_and_its_commit_cannot_undo_the_winner(
    store_uri: str, output: Output, manifest_of: Make
) -> None:
    """The one gap that a lease cannot close: the manifest's conditional put does."""
    ready, ready_writer = os.pipe()
    go, go_writer = os.pipe()
    folder = output(a=b"from the stopped one")

    def stopped() -> None:
        artifact = Artifact(open_store(store_uri), KEY)
        with Lease(artifact.store, artifact.lease_key, ttl=1.0) as lease:
            files = artifact.upload(folder, lease.token)
            lease.check()
            os.write(ready_writer, b"1")
            os.read(go, 1)
            assert artifact.commit(manifest_of(files, run_id="stopped")).run_id == "second"

    pid = in_child(stopped)
    os.read(ready, 1)
    os.kill(pid, signal.SIGSTOP)
    try:
        artifact = Artifact(open_store(store_uri), KEY)
        with Lease(artifact.store, artifact.lease_key, ttl=1.0) as lease:
            files = artifact.upload(output(), lease.token)
            winner = artifact.commit(manifest_of(files, run_id="second"))
        os.write(go_writer, b"1")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert exit_of(pid) == 0
    assert artifact.manifest() == winner
    artifact.verify(winner)
