"""A folder as the object store, with the same guarantees as S3: atomic puts, conditional puts."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainwright.stages.store.base import (
    ConditionFailedError,
    NotFoundError,
    ObjectInfo,
    StoreError,
    check_key,
)

_TEMPORARY = ".tmp-"
_LOCK = ".lock"


class FileStore:
    """Objects as files under one folder. An object appears whole (write, fsync, rename)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = f"file://{folder}"

    def _path(self, key: str) -> Path:
        return self.folder / check_key(key)

    def get(self, key: str) -> tuple[bytes, str]:
        """The object's bytes and its etag (sha256 of the bytes)."""
        with _errors(self.root, key):
            data = self._path(key).read_bytes()
        return data, hashlib.sha256(data).hexdigest()

    def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        """Write at once; conditional puts are serialized by a lock file on the store's root."""
        path = self._path(key)
        with _errors(self.root, key):
            temporary = self._write_temporary(path, data)
            try:
                if if_absent:
                    self._link(temporary, path)
                elif if_match is not None:
                    self._swap(temporary, path, key, if_match)
                else:
                    temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)
            _fsync_folder(path.parent)
        return hashlib.sha256(data).hexdigest()

    def _write_temporary(self, path: Path, data: bytes) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.parent / f"{_TEMPORARY}{uuid.uuid4().hex}"
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return temporary

    def _link(self, temporary: Path, path: Path) -> None:
        try:
            os.link(temporary, path)
        except FileExistsError:
            raise ConditionFailedError(str(path)) from None

    def _swap(self, temporary: Path, path: Path, key: str, if_match: str) -> None:
        with self._locked():
            try:
                _, etag = self.get(key)
            except NotFoundError:
                raise ConditionFailedError(str(path)) from None
            if etag != if_match:
                raise ConditionFailedError(str(path))
            temporary.replace(path)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.folder / _LOCK).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def put_file(self, key: str, path: Path, *, sha256: str, move: bool = False) -> None:
        """Copy the file in (or move it, on the same filesystem)."""
        target = self._path(key)
        with _errors(self.root, key):
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = target.parent / f"{_TEMPORARY}{uuid.uuid4().hex}"
            try:
                if not (move and _moved(path, temporary)):
                    _copy_checked(path, temporary, sha256)
                with temporary.open("rb") as file:
                    os.fsync(file.fileno())
                temporary.replace(target)
            finally:
                temporary.unlink(missing_ok=True)
            _fsync_folder(target.parent)

    def get_file(self, key: str, path: Path, *, sha256: str | None = None) -> None:
        """Copy the object to `path`."""
        source = self._path(key)
        with _errors(self.root, key):
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.parent / f"{_TEMPORARY}{uuid.uuid4().hex}"
            try:
                _copy_checked(source, temporary, sha256)
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)

    def head(self, key: str) -> ObjectInfo:
        """Size, and a tag made of size and time of change (cheap; not the etag of `get`)."""
        with _errors(self.root, key):
            stat = self._path(key).stat()
        return ObjectInfo(key, stat.st_size, f"{stat.st_size:x}-{stat.st_mtime_ns:x}")

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """All objects whose key begins with `prefix`, in key order."""
        folder = self.folder / prefix.rpartition("/")[0]
        found = []
        for base, _, names in os.walk(folder):
            for name in names:
                if name.startswith(_TEMPORARY) or name == _LOCK:
                    continue
                key = (Path(base) / name).relative_to(self.folder).as_posix()
                if key.startswith(prefix):
                    found.append(key)
        for key in sorted(found):
            try:
                yield self.head(key)
            except NotFoundError:
                continue

    def delete(self, key: str) -> None:
        """Delete the file, and folders that became empty."""
        path = self._path(key)
        with _errors(self.root, key):
            path.unlink(missing_ok=True)
            for folder in path.parents:
                if folder == self.folder:
                    break
                try:
                    folder.rmdir()
                except OSError:
                    break

    def local_path(self, key: str) -> Path | None:
        """The file itself."""
        return self._path(key)


@contextmanager
def _errors(root: str, key: str) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError(f"{root}/{key}") from None
    except OSError as error:
        raise StoreError(f"store {root}: {error.strerror or error} at {key!r}") from error


def _copy_checked(source: Path, target: Path, sha256: str | None) -> None:
    digest = hashlib.sha256()
    with source.open("rb") as reader, target.open("wb") as writer:
        while chunk := reader.read(1 << 20):
            digest.update(chunk)
            writer.write(chunk)
    shutil.copymode(source, target)
    if sha256 is not None and digest.hexdigest() != sha256:
        raise StoreError(f"{source} has sha256 {digest.hexdigest()[:12]}, not {sha256[:12]}")


def _moved(source: Path, target: Path) -> bool:
    try:
        source.rename(target)
    except OSError:
        return False
    return True


def _fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
