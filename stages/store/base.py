"""What every store can do. Policy (manifests, leases, gc) is built on these calls alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from trainwright.stages.contract import TransientError, UsageError


class StoreError(TransientError):
    """The store failed for now: another try can help."""


class NotFoundError(Exception):
    """There is no object of that key."""


class ConditionFailedError(Exception):
    """A conditional put lost: the object exists, or changed since it was read."""


@dataclass(frozen=True)
class ObjectInfo:
    """An object as listed: key relative to the store's root, size in bytes, version tag."""

    key: str
    size: int
    etag: str


class Store(Protocol):
    """Objects under one root. Keys are relative, with `/`, without `..`.

    All calls raise `StoreError` when the store cannot be reached or refuses for now, and
    `NotFoundError` when the object is not there.
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
        `ConditionFailedError` for whoever loses.
        """

    def put_file(self, key: str, path: Path, *, sha256: str, move: bool = False) -> None:
        """Upload a file whose digest is known; `move` allows the store to take the file itself."""

    def get_file(self, key: str, path: Path, *, sha256: str | None = None) -> None:
        """Download to `path` (atomically: the file appears whole); the digest is checked if given."""

    def head(self, key: str) -> ObjectInfo:
        """Size and etag."""

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """All objects whose key begins with `prefix`, in key order."""

    def delete(self, key: str) -> None:
        """Delete an object; nothing happens if it is not there."""

    def local_path(self, key: str) -> Path | None:
        """The object as a local file, for stores that have one."""


def split_uri(uri: str) -> tuple[str, str, str]:
    """(scheme, bucket or "", path) of a store URI; a bare path means `file://`."""
    if "://" not in uri:
        uri = f"file://{Path(uri).expanduser().resolve()}"
    parts = urlsplit(uri)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise UsageError(
                f"store {uri!r} names the host {parts.netloc!r}: write file:///absolute/path"
            )
        return "file", "", parts.path
    if parts.scheme == "s3":
        if not parts.netloc:
            raise UsageError(f"store {uri!r} names no bucket: write s3://bucket/prefix")
        return "s3", parts.netloc, parts.path.strip("/")
    raise UsageError(f"store {uri!r} has the scheme {parts.scheme!r}: use file:// or s3://")


def join_uri(root: str, *parts: str) -> str:
    """`root/part/part`."""
    return "/".join([root.rstrip("/"), *(part.strip("/") for part in parts if part)])


def check_key(key: str) -> str:
    """The key itself; refused if it could leave the root."""
    parts = key.split("/")
    if not key or key.startswith("/") or any(part in ("", ".", "..") for part in parts):
        raise UsageError(f"store key {key!r} is not a plain relative path")
    if "\x00" in key or "\\" in key:
        raise UsageError(f"store key {key!r} has a character that no store key may have")
    return key


def open_store(uri: str) -> Store:
    """The store at a URI: `file:///path`, a bare path, or `s3://bucket/prefix`."""
    scheme, bucket, path = split_uri(uri)
    if scheme == "file":
        from trainwright.stages.store.file import FileStore

        return FileStore(Path(path))
    from trainwright.stages.store.s3 import S3Store

    return S3Store(bucket, path)
