"""What every store must do: one suite, run against a folder and against a real S3 server."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from trainwright.stages.contract import UsageError
from trainwright.stages.store import (
    ChecksumError,
    ConditionFailedError,
    NotFoundError,
    Store,
    open_store,
)

WRITERS = 16


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def put_bytes(store: Store, key: str, data: bytes, tmp_path: Path, *, move: bool = False) -> None:
    path = tmp_path / "source.bin"
    path.write_bytes(data)
    store.put_file(key, path, sha256=digest(data), move=move)


def race(act: Callable[[int], bool], writers: int = WRITERS) -> list[int]:
    """The numbers of those who won when all began at once."""
    gate = threading.Barrier(writers)

    def enter(number: int) -> bool:
        gate.wait()
        return act(number)

    with ThreadPoolExecutor(writers) as pool:
        won = list(pool.map(enter, range(writers)))
    return [number for number, yes in enumerate(won) if yes]


def race_of_processes(act: Callable[[int], bool], writers: int = WRITERS) -> list[int]:
    """The same with processes, which begin when a pipe's last write end is closed."""
    reader, writer = os.pipe()
    children = []
    for number in range(writers):
        pid = os.fork()
        if pid == 0:
            code = 2
            try:
                os.close(writer)
                os.read(reader, 1)
                code = 0 if act(number) else 1
            finally:
                os._exit(code)
        children.append(pid)
    os.close(writer)
    os.close(reader)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    assert set(codes) <= {0, 1}
    return [number for number, code in enumerate(codes) if code == 0]


def wins(put: Callable[[], object]) -> bool:
    try:
        put()
    except ConditionFailedError:
        return False
    return True


def test_what_was_put_is_got_with_the_same_etag(store: Store) -> None:
    etag = store.put("a/b.json", b"one")
    assert store.get("a/b.json") == (b"one", etag)


def test_a_put_replaces_what_was_there_and_moves_the_etag(store: Store) -> None:
    first = store.put("a", b"one")
    second = store.put("a", b"two")
    assert first != second
    assert store.get("a")[0] == b"two"


def test_an_empty_object_is_an_object(store: Store) -> None:
    store.put("empty", b"")
    assert store.get("empty")[0] == b""
    assert store.head("empty").size == 0


@pytest.mark.parametrize("call", ["get", "head", "get_file", "verify"])
def test_what_is_not_there_is_not_found(store: Store, call: str, tmp_path: Path) -> None:
    store.put("folder/object", b"x")
    for key in ("missing", "folder", "folder/object/below"):
        with pytest.raises(NotFoundError):
            if call == "get_file":
                store.get_file(key, tmp_path / "target")
            elif call == "verify":
                store.verify(key, size=1, sha256=digest(b"x"))
            else:
                getattr(store, call)(key)
    assert not (tmp_path / "target").exists()


def test_put_if_absent_fails_when_there_is_one(store: Store) -> None:
    store.put("a", b"one", if_absent=True)
    with pytest.raises(ConditionFailedError):
        store.put("a", b"two", if_absent=True)
    assert store.get("a")[0] == b"one"


def test_put_if_match_fails_when_it_changed_or_is_gone(store: Store) -> None:
    etag = store.put("a", b"one")
    newer = store.put("a", b"two", if_match=etag)
    with pytest.raises(ConditionFailedError):
        store.put("a", b"three", if_match=etag)
    store.delete("a")
    with pytest.raises(ConditionFailedError):
        store.put("a", b"three", if_match=newer)
    assert [*store.list("")] == []


def test_delete_if_match_fails_when_it_changed_or_is_gone(store: Store) -> None:
    etag = store.put("a", b"one")
    newer = store.put("a", b"two")
    with pytest.raises(ConditionFailedError):
        store.delete("a", if_match=etag)
    assert store.get("a")[0] == b"two"
    store.delete("a", if_match=newer)
    with pytest.raises(ConditionFailedError):
        store.delete("a", if_match=newer)


def test_of_racing_threads_one_puts_if_absent(store: Store) -> None:
    for trial in range(3):
        key = f"lease-{trial}"
        winners = race(lambda n, k=key: wins(lambda: store.put(k, str(n).encode(), if_absent=True)))
        assert len(winners) == 1
        assert store.get(key)[0] == str(winners[0]).encode()


def test_of_racing_threads_one_puts_if_match(store: Store) -> None:
    etag = store.put("lease", b"start")
    for trial in range(3):
        # No two puts write the same bytes: S3's etag is a digest, and would be matched again.
        winners = race(
            lambda n, e=etag, t=trial: wins(
                lambda: store.put("lease", b"%d-%d" % (t, n), if_match=e)
            )
        )
        assert len(winners) == 1
        data, etag = store.get("lease")
        assert data == b"%d-%d" % (trial, winners[0])


def test_of_threads_that_race_to_put_and_to_delete_one_wins(store: Store) -> None:
    def act(number: int, etag: str) -> bool:
        if number % 2:
            return wins(lambda: store.put("lease", b"%d" % number, if_match=etag))
        return wins(lambda: store.delete("lease", if_match=etag))

    for trial in range(3):
        etag = store.put("lease", b"start %d" % trial)
        winners = race(lambda n, e=etag: act(n, e))
        assert len(winners) == 1
        there = [info.key for info in store.list("")]
        assert there == (["lease"] if winners[0] % 2 else [])


def test_of_racing_processes_one_puts_if_absent_and_one_if_match(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path / 'store'}")
    for trial in range(5):
        key, etag = f"deep/{trial}/lease", ""

        def absent(number: int, key: str = key) -> bool:
            return wins(lambda: store.put(key, b"%d" % number, if_absent=True))

        (first,) = race_of_processes(absent)
        data, etag = store.get(key)
        assert data == b"%d" % first

        def match(number: int, key: str = key, etag: str = etag) -> bool:
            return wins(lambda: store.put(key, b"x%d" % number, if_match=etag))

        (second,) = race_of_processes(match)
        assert store.get(key)[0] == b"x%d" % second


def test_deletes_beside_puts_in_one_folder_lose_no_put(store: Store) -> None:
    """A delete removes a folder that became empty: a put that has just made it must not fail."""

    def act(number: int) -> bool:
        for turn in range(10):
            store.put(f"folder/deep/{number}", b"%d" % turn)
            assert store.get(f"folder/deep/{number}")[0] == b"%d" % turn
            store.delete(f"folder/deep/{number}")
        return True

    assert len(race(act, writers=8)) == 8
    assert [*store.list("")] == []


def test_a_list_has_the_keys_of_a_prefix_in_order(store: Store) -> None:
    keys = ["a-b", "a.b", "a/b", "a/b-c/d", "a/c", "b", "é/ü", "z z/y"]
    for key in reversed(keys):
        store.put(key, key.encode())
    assert [info.key for info in store.list("")] == sorted(keys)
    assert [info.key for info in store.list("a/")] == ["a/b", "a/b-c/d", "a/c"]
    assert [info.key for info in store.list("a/b")] == ["a/b", "a/b-c/d"]
    assert [info.key for info in store.list("a")] == sorted(k for k in keys if k.startswith("a"))
    assert [*store.list("nothing/")] == []
    assert {info.key: info.size for info in store.list("")} == {k: len(k.encode()) for k in keys}


def test_a_listed_object_has_the_tag_and_the_time_that_head_gives(store: Store) -> None:
    store.put("a/b", b"x")
    assert [*store.list("")] == [store.head("a/b")]


def test_a_deleted_object_is_gone_and_a_second_delete_does_nothing(store: Store) -> None:
    store.put("a/b", b"x")
    store.delete("a/b")
    store.delete("a/b")
    store.delete("never/there")
    with pytest.raises(NotFoundError):
        store.get("a/b")
    assert [*store.list("")] == []


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/etc/passwd",
        "../x",
        "a/../../x",
        "a/./b",
        "a//b",
        "a/",
        "a\\b",
        "a\0b",
        "a\nb",
        "x" * 300,
    ],
)
def test_a_key_that_could_leave_the_root_is_refused(store: Store, key: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"x")
    with pytest.raises(UsageError):
        store.put(key, b"x")
    with pytest.raises(UsageError):
        store.get(key)
    with pytest.raises(UsageError):
        store.head(key)
    with pytest.raises(UsageError):
        store.delete(key)
    with pytest.raises(UsageError):
        store.put_file(key, source, sha256=digest(b"x"))
    with pytest.raises(UsageError):
        store.get_file(key, tmp_path / "target")
    assert source.read_bytes() == b"x"


@pytest.mark.parametrize("prefix", ["../", "/", "a/../../", "..", "a//"])
def test_a_prefix_that_could_leave_the_root_is_refused(store: Store, prefix: str) -> None:
    with pytest.raises(UsageError):
        list(store.list(prefix))
    with pytest.raises(UsageError):
        list(store.unfinished(prefix))


@pytest.mark.parametrize("move", [False, True])
def test_a_file_comes_back_byte_for_byte(store: Store, move: bool, tmp_path: Path) -> None:
    data = os.urandom(300_000)
    put_bytes(store, "model/weights.bin", data, tmp_path, move=move)
    target = tmp_path / "deep" / "target.bin"
    store.get_file("model/weights.bin", target, sha256=digest(data))
    assert target.read_bytes() == data
    assert store.head("model/weights.bin").size == len(data)
    store.verify("model/weights.bin", size=len(data), sha256=digest(data))


@pytest.mark.parametrize("damage", ["truncated", "one bit", "longer", "empty"])
def test_damaged_bytes_are_never_handed_out(
    store: Store, spoil: Callable[[str, bytes], None], damage: str, tmp_path: Path
) -> None:
    data = os.urandom(100_000)
    put_bytes(store, "file", data, tmp_path)
    damaged = {
        "truncated": data[:-1],
        "one bit": bytes([data[0] ^ 1]) + data[1:],
        "longer": data + b"x",
        "empty": b"",
    }[damage]
    spoil("file", damaged)
    target = tmp_path / "target"
    target.write_bytes(b"what was there before")
    with pytest.raises(ChecksumError):
        store.get_file("file", target, sha256=digest(data))
    assert target.read_bytes() == b"what was there before"
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".tmp")] == []
    if damage != "one bit" or store.local_path("file") is not None:
        with pytest.raises(ChecksumError):
            store.verify("file", size=len(data), sha256=digest(data))


def test_an_object_that_was_not_uploaded_as_a_file_is_verified_by_its_bytes(store: Store) -> None:
    store.put("file", b"other bytes")
    store.verify("file", size=11, sha256=digest(b"other bytes"))
    with pytest.raises(ChecksumError, match="was changed"):
        store.verify("file", size=11, sha256=digest(b"these bytes"))


def test_a_finished_write_leaves_nothing_unfinished(store: Store, tmp_path: Path) -> None:
    put_bytes(store, "a/file", b"x" * 1000, tmp_path)
    store.put("a/object", b"x", if_absent=True)
    with pytest.raises(ConditionFailedError):
        store.put("a/object", b"y", if_absent=True)
    assert [*store.unfinished("")] == []
