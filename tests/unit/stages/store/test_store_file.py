"""What holds for a folder as the store alone, and for URIs."""

from __future__ import annotations

import fcntl
import hashlib
import os
from pathlib import Path

import pytest

from trainwright.stages.contract import UsageError
from trainwright.stages.store import NotFoundError, StoreError, file, open_store, split_uri
from trainwright.stages.store.file import FileStore

DIGEST = hashlib.sha256(b"good").hexdigest()


@pytest.mark.parametrize(
    ("uri", "parts"),
    [
        ("file:///data/store", ("file", "", "/data/store")),
        ("file:///data/run #3?", ("file", "", "/data/run #3?")),
        ("file://localhost/data/", ("file", "", "/data")),
        ("/data/a%20b", ("file", "", "/data/a%20b")),
        ("s3://bucket", ("s3", "bucket", "")),
        ("s3://bucket/a/b/", ("s3", "bucket", "a/b")),
    ],
)
def test_a_uri_is_split_without_loss(uri: str, parts: tuple[str, str, str]) -> None:
    assert split_uri(uri) == parts


def test_a_bare_relative_path_is_made_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert split_uri("store") == ("file", "", str(tmp_path / "store"))


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("file://host/data", "file:///absolute/path"),
        ("file://", "names no folder"),
        ("s3://", "names no bucket"),
        ("gs://bucket/x", "use file:// or s3://"),
        ("s3://bucket/../x", "not a plain relative path"),
    ],
)
def test_a_uri_that_cannot_be_a_store_is_refused_with_the_way_out(uri: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        open_store(uri)


def test_names_that_the_store_keeps_for_itself_are_refused(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    for key in (".lock", "a/.tmp-1", "a/.lock"):
        with pytest.raises(UsageError, match="keeps for itself"):
            store.put(key, b"x")


def test_a_key_cannot_be_an_object_and_a_folder(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store")
    store.put("a/b", b"x")
    for key in ("a", "a/b/c"):
        with pytest.raises(UsageError, match="both an object and a folder"):
            store.put(key, b"x")
    assert [info.key for info in store.list("")] == ["a/b"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir(mode=0o500)
    with pytest.raises(UsageError, match="right to write"):
        FileStore(tmp_path / "store").put("a", b"x")


def test_a_store_whose_root_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("not a folder")
    with pytest.raises(UsageError):
        FileStore(tmp_path / "store").put("a", b"x")
    with pytest.raises(NotFoundError):
        FileStore(tmp_path / "store").get("a")


def test_moving_takes_the_file_and_copying_leaves_it(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store")
    source = tmp_path / "source"
    source.write_bytes(b"good")
    number = source.stat().st_ino
    store.put_file("copy", source, sha256=DIGEST)
    assert source.read_bytes() == store.get("copy")[0] == b"good"
    store.put_file("moved", source, sha256=DIGEST, move=True)
    assert not source.exists()
    assert (tmp_path / "store" / "moved").stat().st_ino == number


@pytest.mark.parametrize("kind", ["hard link", "symbolic link"])
def test_a_moved_file_cannot_be_changed_through_another_name(tmp_path: Path, kind: str) -> None:
    """A snapshot linked into the output must not stay the same file as the artifact's."""
    store = FileStore(tmp_path / "store")
    snapshot, source = tmp_path / "snapshot", tmp_path / "source"
    snapshot.write_bytes(b"good")
    if kind == "hard link":
        source.hardlink_to(snapshot)
    else:
        source.symlink_to(snapshot)
    store.put_file("file", source, sha256=DIGEST, move=True)
    snapshot.write_bytes(b"evil")
    assert store.get("file")[0] == b"good"


def test_a_stopped_holder_of_the_lock_is_reported_and_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileStore(tmp_path)
    store.put("a", b"x")
    monkeypatch.setattr(file, "_LOCK_TIMEOUT", 0.1)
    with (tmp_path / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(StoreError, match="lock"):
            store.put("a", b"y")
    store.put("a", b"z")
    assert store.get("a")[0] == b"z"
    assert [*store.unfinished("")] == []


def test_a_folder_that_another_writers_delete_removes_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, made = file._make_folder, []

    def make_and_lose(folder: Path) -> None:
        real(folder)
        made.append(folder)
        if len(made) < 3:
            folder.rmdir()

    monkeypatch.setattr(file, "_make_folder", make_and_lose)
    FileStore(tmp_path / "store").put("a/b", b"x")
    assert len(made) == 3
    assert FileStore(tmp_path / "store").get("a/b")[0] == b"x"


def test_what_a_killed_writer_left_is_listed_as_unfinished_and_can_go(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store")
    store.put("a/b", b"x")
    pid = os.fork()
    if pid == 0:
        try:
            file._fsync = lambda path: os.kill(os.getpid(), 9)  # type: ignore[assignment]
            (tmp_path / "source").write_bytes(b"y" * 10)
            store.put_file("a/c", tmp_path / "source", sha256="", move=True)
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 9
    assert [info.key for info in store.list("")] == ["a/b"]
    (leftover,) = store.unfinished("a/")
    assert leftover.size == 10
    store.discard(leftover)
    assert [*store.unfinished("")] == []
    assert store.get("a/b")[0] == b"x"


def test_a_folder_that_cannot_be_read_does_not_look_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """gc deletes what no manifest names: a manifest that could not be listed must not count."""
    store = FileStore(tmp_path)
    store.put("a/b", b"x")
    real = os.scandir

    def failing(path: str | os.PathLike[str]) -> object:
        if str(path).endswith("/a"):
            raise OSError(5, "Input/output error", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", failing)
    with pytest.raises(StoreError, match="Input/output error"):
        list(store.list(""))
