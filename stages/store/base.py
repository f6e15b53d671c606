"""What every store can do. Policy (manifests, leases, gc) is built on these calls alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trainwright.stages.contract import TransientError, UsageError


class StoreError(TransientError):
    """The store failed for now: another try can help."""


class ChecksumError(StoreError):
    """The object's bytes are not those that were meant to be there."""


class NotFoundError(Exception):
    """There is no object of that key."""


class ConditionFailedError(Exception):
    """A conditional put or delete lost: the object exists, is gone, or has changed."""


@dataclass(frozen=True)
class ObjectInfo:
    """An object as listed."""

    key: str
    """Relative to the store's root."""
    size: int
    """Bytes."""
    etag: str
    """Moves with the content. Conditions take the etag of `get` or `put`, not this one."""
    modified: float
    """When it was written, in seconds since the epoch, by the store's clock."""


@dataclass(frozen=True)
class Unfinished:
    """What a broken write left behind: no object, and never read, but it takes room."""

    key: str
    id: str
    """The store's own name for it."""
    size: int
    """Bytes."""
    started: float
    """Seconds since the epoch, by the store's clock."""


class Store(Protocol):
    """Objects under one root. Keys are relative, with `/`, without `..`.

    All calls raise `StoreError` when the store cannot be reached or fails for now, `UsageError`
    when it never can (credentials, bucket, permission, key), and `NotFoundError` when the object is
    not there. A key cannot be both an object and a folder of other keys.
    """

    root: str
    """URI of the root, without a slash at the end."""

    def get(self, key: str) -> tuple[bytes, str]:
        """The object's bytes and its etag."""

    def put(
        self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None
    ) -> str:
        """Write a small object at once; the new etag.

        With `if_absent` or `if_match` (an etag) it is atomic among all writers:
        `ConditionFailedError` for whoever loses. A put whose answer was lost is tried again, so the
        winner itself can be told that it lost: compare the content before believing it.
        """

    def put_file(self, key: str, path: Path, *, sha256: str, move: bool = False) -> None:
        """Upload a file whose digest is known; `move` allows the store to take the file itself."""

    def get_file(self, key: str, path: Path, *, sha256: str | None = None) -> None:
        """Download to `path`, which appears whole; `ChecksumError` if a given digest differs."""

    def head(self, key: str) -> ObjectInfo:
        """Size, etag and time."""

    def verify(self, key: str, *, size: int, sha256: str) -> None:
        """`ChecksumError` unless the object is of this size and digest.

        A local file is read and hashed. S3 compares the digest that the object was uploaded with,
        and reads it only where it has none; its bytes are checked when they are downloaded.
        """

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """All objects whose key begins with `prefix`, in the order of their keys."""

    def delete(self, key: str, *, if_match: str | None = None) -> None:
        """Delete an object; nothing happens if it is not there.

        With `if_match` (an etag), `ConditionFailedError` if it changed or is gone.
        """

    def unfinished(self, prefix: str) -> Iterator[Unfinished]:
        """Leftovers of broken writes (and writes that go on now: look at their age)."""

    def discard(self, leftover: Unfinished) -> None:
        """Delete a leftover."""

    def local_path(self, key: str) -> Path | None:
        """The object as a local file, for stores that have one."""


def split_uri(uri: str) -> tuple[str, str, str]:
    """(scheme, bucket or "", path) of a store URI; a bare path means `file://`."""
    if uri.startswith(("file:", "s3:")) and "://" not in uri:
        scheme = uri.partition(":")[0]
        raise UsageError(f"store {uri!r} is no URI: write {scheme}://, or ./{uri} for a folder")
    if "://" not in uri:
        return "file", "", str(Path(uri).expanduser().resolve())
    # By hand: a URL parser would cut a folder's name at its first `#` or `?`.
    scheme, _, rest = uri.partition("://")
    host, slash, path = rest.partition("/")
    if scheme == "file":
        return "file", "", _local_folder(uri, host, slash + path)
    if scheme == "s3":
        if "@" in host:
            raise UsageError(
                "a store's URI holds no credentials (s3://bucket/prefix): set AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
            )
        if not host:
            raise UsageError(f"store {uri!r} names no bucket: write s3://bucket/prefix")
        return "s3", host, path.strip("/")
    raise UsageError(f"store {uri!r} has the scheme {scheme!r}: use file:// or s3://")


def _local_folder(uri: str, host: str, path: str) -> str:
    if host not in ("", "localhost"):
        raise UsageError(f"store {uri!r} names the host {host!r}: write file:///absolute/path")
    if not path.strip("/"):
        raise UsageError(f"store {uri!r} names no folder: write file:///absolute/path")
    return path.rstrip("/")


def join_uri(root: str, *parts: str) -> str:
    """`root/part/part`."""
    return "/".join([root.rstrip("/"), *(part.strip("/") for part in parts if part)])


def check_key(key: str) -> str:
    """The key itself; refused if it could leave the root, or if not every store can hold it."""
    parts = key.split("/")
    if not key or any(part in ("", ".", "..") for part in parts):
        raise UsageError(f"store key {key!r} is not a plain relative path")
    if not key.isprintable() or "\\" in key:
        raise UsageError(f"store key {key!r} has a character that no store key may have")
    if len(key.encode()) > 900 or any(len(part.encode()) > 200 for part in parts):
        raise UsageError(f"store key {key[:60]!r}... is too long: 900 bytes, 200 a part")
    return key


def check_prefix(prefix: str) -> str:
    """The prefix itself (it may be empty, or end with a slash); refused if it leaves the root."""
    if prefix.strip("/"):
        check_key(prefix.removesuffix("/"))
    elif prefix:
        raise UsageError(f"store prefix {prefix!r} is not a plain relative path")
    return prefix


def check_size(root: str, info: ObjectInfo, size: int) -> None:
    """`ChecksumError` unless the object has `size` bytes."""
    if info.size != size:
        raise ChecksumError(f"{root}/{info.key} has {info.size} bytes, not {size}")


def check_digest(root: str, key: str, found: str, sha256: str) -> None:
    """`ChecksumError` unless the digest is the one that is wanted."""
    if found != sha256:
        where = join_uri(root, key) if root else key
        raise ChecksumError(f"{where} was changed: its sha256 is {found[:12]}, not {sha256[:12]}")


def open_store(uri: str) -> Store:
    """The store at a URI: `file:///path`, a bare path, or `s3://bucket/prefix`."""
    scheme, bucket, path = split_uri(uri)
    if scheme == "file":
        from trainwright.stages.store.file import FileStore

        return FileStore(Path(path))
    from trainwright.stages.store.s3 import S3Store

    return S3Store(bucket, path)
