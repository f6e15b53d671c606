"""gc deletes what nobody needs, and never what somebody reads or writes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from trainwright.stages import gc
from trainwright.stages.artifact import Artifact, Manifest
from trainwright.stages.gc import DAY, Garbage, Kind, collect, sweep
from trainwright.stages.lease import Lease
from trainwright.stages.store import Store, StoreError
from trainwright.stages.store.file import FileStore

Make = Callable[..., Manifest]
Output = Callable[..., Path]
Write = Callable[..., Artifact]
TTL = 1.0
LATER = 30 * DAY


@pytest.fixture
def write(store: Store, output: Output, manifest_of: Make) -> Write:
    """An artifact of a name, with a manifest or with files of a dead try alone."""

    def make(name: str, token: str = "t1", *, commit: bool = True) -> Artifact:
        artifact = Artifact(store, f"artifacts/corpus/{name}")
        files = artifact.upload(output(), token)
        if commit:
            artifact.commit(manifest_of(files))
        return artifact

    return make


def keys(store: Store) -> set[str]:
    return {info.key for info in store.list("")}


def names(garbage: list[Garbage]) -> set[tuple[str, str, str]]:
    return {(g.kind.value, g.artifact.rpartition("/")[2], g.name) for g in garbage}


def swept(store: Store, reachable: set[str], **options: float) -> dict[str, str]:
    plan = collect(store, reachable, ttl=TTL, **options)
    return {f"{g.artifact}/{g.name}": left for g, left in sweep(store, plan, ttl=TTL)}


def dead_lease(artifact: Artifact) -> None:
    """The lease of a process of this machine that was killed."""
    code = (
        "import os, sys\n"
        "from trainwright.stages.lease import Lease\n"
        "from trainwright.stages.store import open_store\n"
        "Lease(open_store(sys.argv[1]), sys.argv[2], ttl=600).acquire()\n"
        "os.kill(os.getpid(), 9)\n"
    )
    command = [sys.executable, "-c", code, artifact.store.root, artifact.lease_key]
    assert subprocess.run(command).returncode == -9


def test_an_empty_store_has_no_garbage(store: Store) -> None:
    assert collect(store, set()).garbage == []


def test_a_listing_deletes_nothing_and_tells_the_sizes(store: Store, write: Write) -> None:
    write("named")
    write("dead", commit=False)
    before = keys(store)
    plan = collect(store, set(), now=time.time() + LATER, ttl=TTL)
    assert keys(store) == before
    sizes = {(g.kind, g.name): g.size for g in plan.garbage}
    assert sizes[Kind.ORPHAN, "data-t1"] == len(b"alpha") + len(b"beta")
    whole = sum(info.size for info in store.list("artifacts/corpus/named/"))
    assert sizes[Kind.UNREACHABLE, "artifact"] == whole
    assert plan.size == sum(sizes.values())


def test_files_of_a_try_that_no_manifest_names_go_and_named_ones_stay(
    store: Store, write: Write
) -> None:
    artifact = write("one", "winner")
    write("one", "loser", commit=False)
    write("two", "dead", commit=False)
    manifest = artifact.manifest()
    assert manifest is not None
    assert swept(store, set()) == {
        "artifacts/corpus/one/data-loser": "",
        "artifacts/corpus/two/data-dead": "",
    }
    artifact.verify(manifest)
    assert {key.split("/")[3] for key in keys(store)} == {"manifest.json", "data-winner"}


def test_an_old_artifact_that_no_run_names_goes_and_all_others_stay(
    store: Store, write: Write
) -> None:
    kept = write("kept")
    write("old")
    reachable = {"artifacts/corpus/kept"}
    assert collect(store, reachable, ttl=TTL).garbage == [], "both are young"
    done = swept(store, reachable, now=time.time() + LATER)
    assert done == {"artifacts/corpus/old/artifact": ""}
    manifest = kept.manifest()
    assert manifest is not None
    kept.verify(manifest)
    assert {key.split("/")[2] for key in keys(store)} == {"kept"}


def test_the_manifest_goes_first(store: Store, write: Write) -> None:
    write("old")
    (garbage,) = collect(store, set(), now=time.time() + LATER, ttl=TTL).garbage
    assert garbage.keys[0] == "artifacts/corpus/old/manifest.json"
    assert len(garbage.keys) == 3


def test_a_deletion_that_was_cut_short_is_finished_by_the_next(
    store: Store, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = write("old")
    plan = collect(store, set(), now=time.time() + LATER, ttl=TTL)
    real, calls = store.delete, []

    def fail_at_second(key: str, **options: str) -> None:
        calls.append(key)
        if len(calls) == 2:
            raise StoreError("the store is away")
        real(key, **options)

    monkeypatch.setattr(store, "delete", fail_at_second)
    ((_, left),) = sweep(store, plan, ttl=TTL)
    assert left == "the store is away"
    monkeypatch.undo()
    assert artifact.manifest() is None
    assert names(collect(store, set(), ttl=TTL).garbage) == {("orphan", "old", "data-t1")}
    assert swept(store, set()) == {"artifacts/corpus/old/data-t1": ""}
    assert keys(store) == set()


@pytest.mark.parametrize("name", ["orphan", "old"])
def test_nothing_is_deleted_under_a_living_lease(store: Store, write: Write, name: str) -> None:
    artifact = write(name, commit=name == "old")
    with Lease(store, artifact.lease_key, ttl=TTL) as lease:
        before = keys(store)
        plan = collect(store, set(), now=time.time() + LATER, ttl=TTL)
        assert plan.garbage == []
        assert f"process {os.getpid()}" in plan.kept[artifact.key]
        assert keys(store) == before
        lease.check()


def test_a_lease_taken_after_the_listing_saves_the_files(store: Store, write: Write) -> None:
    artifact = write("one", commit=False)
    plan = collect(store, set(), ttl=TTL)
    with Lease(store, artifact.lease_key, ttl=TTL) as lease:
        before = keys(store)
        ((_, left),) = sweep(store, plan, ttl=TTL)
        assert left.startswith("held by process")
        assert keys(store) == before
        lease.check()


def test_files_that_a_manifest_names_since_the_listing_stay(
    store: Store, write: Write, output: Output, manifest_of: Make
) -> None:
    artifact = Artifact(store, "artifacts/corpus/one")
    files = artifact.upload(output(), "t1")
    plan = collect(store, set(), ttl=TTL)
    manifest = artifact.commit(manifest_of(files))
    assert [left for _, left in sweep(store, plan, ttl=TTL)] == ["it was written anew"]
    artifact.verify(manifest)


def test_an_artifact_that_was_made_again_since_the_listing_stays(
    store: Store, write: Write
) -> None:
    artifact = write("old")
    plan = collect(store, set(), now=time.time() + LATER, ttl=TTL)
    artifact.set_aside("made again")
    write("old", "t2")
    assert [left for _, left in sweep(store, plan, ttl=TTL)] == ["it was written anew"]
    manifest = artifact.manifest()
    assert manifest is not None
    artifact.verify(manifest)


def test_files_under_the_lease_of_a_killed_writer_go_with_the_lease(
    store: Store, write: Write
) -> None:
    dead_lease(write("one", commit=False))
    dead_lease(Artifact(store, "artifacts/corpus/lease-alone"))
    plan = collect(store, set(), ttl=600.0)
    assert names(plan.garbage) == {
        ("orphan", "one", "data-t1"),
        ("orphan", "lease-alone", "lease.json"),
    }
    assert [left for _, left in sweep(store, plan)] == ["", ""]
    assert keys(store) == set()


def test_a_lease_of_another_machine_is_dead_when_it_stands_still(
    store: Store, write: Write
) -> None:
    artifact = write("one", commit=False)
    store.put(artifact.lease_key, b'{"token": "x", "boot": "another machine", "pid": 1}')
    assert swept(store, set()) == {"artifacts/corpus/one/data-t1": ""}
    assert keys(store) == set()


def test_where_a_manifest_cannot_be_read_no_file_is_an_orphan(store: Store, write: Write) -> None:
    artifact = write("one")
    store.put(f"{artifact.key}/manifest.json", b"garbage")
    plan = collect(store, {artifact.key}, now=time.time() + LATER, ttl=TTL)
    assert plan.garbage == []
    assert plan.kept[artifact.key].startswith("damaged: ")


def test_files_of_a_manifest_that_was_set_aside_go(store: Store, write: Write) -> None:
    artifact = write("one")
    artifact.set_aside("why")
    assert names(collect(store, set(), ttl=TTL).garbage) == {("orphan", "one", "data-t1")}


def test_records_of_runs_and_what_is_not_an_artifact_are_never_touched(
    store: Store, write: Write
) -> None:
    for key in ("runs/r/run.json", "artifacts/README", "artifacts/corpus/file", "other/a/b/c/d"):
        store.put(key, b"x")
    before = keys(store)
    assert collect(store, set(), now=time.time() + LATER, ttl=TTL).garbage == []
    assert keys(store) == before


def test_leftovers_of_broken_writes_go_after_a_day(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store")
    store.put("artifacts/corpus/one/lease.json", b"{}")
    leftover = tmp_path / "store" / "artifacts" / "corpus" / "one" / ".tmp-1"
    leftover.write_bytes(b"x" * 100)
    assert [g for g in collect(store, set(), ttl=TTL).garbage if g.kind is Kind.UNFINISHED] == []
    plan = collect(store, set(), ttl=TTL, now=time.time() + 1.1 * DAY)
    (garbage,) = [g for g in plan.garbage if g.kind is Kind.UNFINISHED]
    assert (garbage.size, garbage.artifact) == (100, "artifacts/corpus/one")
    assert all(left == "" for _, left in sweep(store, plan, ttl=TTL))
    assert not leftover.exists()


@pytest.mark.server
def test_multipart_uploads_that_were_never_finished_go_after_a_day(s3_server) -> None:
    from trainwright.stages.store.s3 import S3Store

    store = S3Store(s3_server.bucket, "gc-uploads")
    key = "artifacts/corpus/one/data-t1/big"
    upload = store._client.create_multipart_upload(Bucket=store.bucket, Key=store._key(key))
    part = {"Bucket": store.bucket, "Key": store._key(key), "UploadId": upload["UploadId"]}
    store._client.upload_part(**part, PartNumber=1, Body=b"x" * 1000)
    assert collect(store, set(), ttl=TTL).garbage == []
    plan = collect(store, set(), ttl=TTL, now=time.time() + 1.1 * DAY)
    assert [(g.kind, g.name, g.size) for g in plan.garbage] == [(Kind.UNFINISHED, key, 1000)]
    assert [left for _, left in sweep(store, plan, ttl=TTL)] == [""]
    assert [*store.unfinished("")] == []


def test_one_wait_is_enough_for_all_leases(
    store: Store, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        artifact = write(f"n{number}", commit=False)
        store.put(artifact.lease_key, b'{"token": "x", "boot": "another machine", "pid": 1}')
    waits: list[float] = []
    monkeypatch.setattr(gc.time, "sleep", waits.append)
    assert len(collect(store, set(), ttl=TTL).garbage) == 4
    assert len(waits) == 1
    assert waits[0] >= TTL
