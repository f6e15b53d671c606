"""A folder as the object store, with the same guarantees as S3: atomic puts, conditional puts."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainwright.stages.contract import UsageError
from trainwright.stages.store.base import (
    ConditionFailedError,
    NotFoundError,
    ObjectInfo,
    StoreError,
    Unfinished,
    check_digest,
    check_key,
    check_prefix,
    check_size,
)

_TEMPORARY = ".tmp-"
_LOCK = ".lock"
_LOCK_TIMEOUT = 30.0
"""Seconds. The lock is held for a rename: whoever holds it longer was stopped in the midst."""


class FileStore:
    """Objects as files under one folder. An object appears whole (write, fsync, rename).

    Whatever replaces or removes an object does it under one lock file at the root, so a condition
    and the change that rests on it are one step for all threads and processes.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = f"file://{folder}"

    def _path(self, key: str) -> Path:
        if any(part.startswith(_TEMPORARY) or part == _LOCK for part in key.split("/")):
            raise UsageError(f"store key {key!r} has a name that the store keeps for itself")
        return self.folder / check_key(key)

    def get(self, key: str) -> tuple[bytes, str]:
        """The object's bytes and its etag (sha256 of the bytes)."""
        path = self._path(key)
        with self._reading(key):
            data = path.read_bytes()
        return data, hashlib.sha256(data).hexdigest()

    def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        """Write at once, under the store's lock."""
        path = self._path(key)
        with self._writing(key), _temporary_in(path.parent) as temporary:
            _write(temporary, data)
            with self._locked():
                if if_absent:
                    _link(temporary, path)
                else:
                    if if_match is not None:
                        self._require(key, if_match)
                    temporary.replace(path)
            _fsync_folder(path.parent)
        return hashlib.sha256(data).hexdigest()

    def _require(self, key: str, etag: str) -> None:
        try:
            _, now = self.get(key)
        except NotFoundError:
            raise ConditionFailedError(f"{self.root}/{key} is gone") from None
        if now != etag:
            raise ConditionFailedError(f"{self.root}/{key} changed")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        deadline = time.monotonic() + _LOCK_TIMEOUT
        with (self.folder / _LOCK).open("a") as lock:
            while not _try_lock(lock.fileno()):
                if time.monotonic() > deadline:
                    raise StoreError(
                        f"store {self.root}: the lock {self.folder / _LOCK} was held for "
                        f"{_LOCK_TIMEOUT:.0f} s; is the process that holds it stopped?"
                    )
                time.sleep(0.002)
            yield

    def put_file(self, key: str, path: Path, *, sha256: str, move: bool = False) -> None:
        """Copy the file in, or move it: on the same filesystem, when no other name leads to it."""
        target = self._path(key)
        with self._writing(key), _temporary_in(target.parent) as temporary:
            if not (move and _moved(path, temporary)):
                _copy_checked(path, temporary, sha256)
            _fsync(temporary)
            temporary.replace(target)
            _fsync_folder(target.parent)

    def get_file(self, key: str, path: Path, *, sha256: str | None = None) -> None:
        """Copy the object to `path`."""
        source = self._path(key)
        with self._reading(key), _temporary_in(path.parent) as temporary:
            _copy_checked(source, temporary, sha256)
            temporary.replace(path)

    def head(self, key: str) -> ObjectInfo:
        """Size, time, and a tag made of both (cheap; not the etag of `get`)."""
        path = self._path(key)
        with self._reading(key):
            found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise NotFoundError(f"{self.root}/{key}")
        tag = f"{found.st_size:x}-{found.st_mtime_ns:x}"
        return ObjectInfo(key, found.st_size, tag, found.st_mtime)

    def verify(self, key: str, *, size: int, sha256: str) -> None:
        """Compare the size, then read and hash the file."""
        check_size(self.root, self.head(key), size)
        with self._reading(key), self._path(key).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        check_digest(self.root, key, digest, sha256)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """All objects whose key begins with `prefix`, in the order of their keys."""
        check_prefix(prefix)
        for key in sorted(key for key, ours in self._walk(prefix) if not ours):
            try:
                yield self.head(key)
            except NotFoundError:
                continue

    def _walk(self, prefix: str) -> Iterator[tuple[str, bool]]:
        """Keys that begin with `prefix`, and whether the file is the store's own."""
        top = self.folder / prefix.rpartition("/")[0]
        with self._reading(prefix):
            for base, _, names in os.walk(top, onerror=_raise_unless_gone):
                for name in names:
                    key = (Path(base) / name).relative_to(self.folder).as_posix()
                    if key.startswith(prefix):
                        yield key, name.startswith(_TEMPORARY) or name == _LOCK

    def delete(self, key: str, *, if_match: str | None = None) -> None:
        """Delete the file, and folders that became empty."""
        path = self._path(key)
        if not path.is_file():
            if if_match is not None:
                raise ConditionFailedError(f"{self.root}/{key} is gone")
            return
        with self._writing(key), self._locked():
            if if_match is not None:
                self._require(key, if_match)
            path.unlink(missing_ok=True)
            self._remove_empty(path.parent)

    def _remove_empty(self, folder: Path) -> None:
        while folder != self.folder:
            try:
                folder.rmdir()
            except OSError:
                return
            folder = folder.parent

    def unfinished(self, prefix: str) -> Iterator[Unfinished]:
        """Temporary files: what a killed writer left."""
        check_prefix(prefix)
        for key, _ in self._walk(prefix):
            path = self.folder / key
            if path.name.startswith(_TEMPORARY):
                try:
                    found = path.stat()
                except FileNotFoundError:
                    continue
                yield Unfinished(key, path.name, found.st_size, found.st_mtime)

    def discard(self, leftover: Unfinished) -> None:
        """Delete a temporary file."""
        path = self.folder / check_key(leftover.key)
        with self._writing(leftover.key), self._locked():
            path.unlink(missing_ok=True)
            self._remove_empty(path.parent)

    def local_path(self, key: str) -> Path | None:
        """The file itself."""
        return self._path(key)

    @contextmanager
    def _reading(self, key: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise NotFoundError(f"{self.root}/{key}") from None
        except OSError as error:
            raise _refusal(self.root, key, error) from error

    @contextmanager
    def _writing(self, key: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise NotFoundError(str(error.filename)) from None
        except (NotADirectoryError, IsADirectoryError, FileExistsError):
            raise UsageError(
                f"store {self.root}: {key!r} would be both an object and a folder of objects"
            ) from None
        except OSError as error:
            raise _refusal(self.root, key, error) from error


def _refusal(root: str, key: str, error: OSError) -> UsageError | StoreError:
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return UsageError(
            f"store {root}: {error.strerror} at {key!r}; give this user the right to write there, "
            "or name another store in TRAINWRIGHT_STORE"
        )
    return StoreError(f"store {root}: {error.strerror or error} at {key!r}")


def _raise_unless_gone(error: OSError) -> None:
    # A folder that cannot be read must not look like an empty one.
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _temporary_in(folder: Path) -> Iterator[Path]:
    """An empty file of our own in `folder`, which cannot be removed as empty while it is there."""
    temporary = folder / f"{_TEMPORARY}{uuid.uuid4().hex}"
    tries = 100
    while True:
        try:
            _make_folder(folder)
            temporary.touch(exist_ok=False)
            break
        except FileNotFoundError:
            # Another writer's delete removed the folder that we had just made sure of.
            tries -= 1
            if not tries:
                raise
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _make_folder(folder: Path) -> None:
    missing = []
    while not folder.is_dir() and folder != folder.parent:
        missing.append(folder)
        folder = folder.parent
    for new in reversed(missing):
        new.mkdir(exist_ok=True)
        _fsync_folder(new.parent)


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _link(temporary: Path, path: Path) -> None:
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise ConditionFailedError(f"{path} exists") from None
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP):
            raise
        # A filesystem without hard links: the store's lock, which is held, has to do.
        if path.exists():
            raise ConditionFailedError(f"{path} exists") from None
        temporary.replace(path)


def _copy_checked(source: Path, target: Path, sha256: str | None) -> None:
    digest = hashlib.sha256()
    with source.open("rb") as reader, target.open("wb") as writer:
        while chunk := reader.read(1 << 20):
            digest.update(chunk)
            writer.write(chunk)
    if sha256 is not None:
        check_digest("", str(source), digest.hexdigest(), sha256)


def _moved(source: Path, target: Path) -> bool:
    found = source.lstat()
    # A link, or a file with a second name, could still be written to from outside the store.
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        return False
    try:
        source.replace(target)
    except OSError:
        return False
    return True


def _fsync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _fsync_folder(folder: Path) -> None:
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
