"""Artifacts: a folder in the store whose `manifest.json`, written last, alone means done.

    <artifact>/manifest.json          what it is; a conditional put that one writer wins
    <artifact>/data-<token>/...       the files of one try
    <artifact>/lease.json             who writes it now (stages.lease)
    <artifact>/damaged-<digest>.json  a manifest that was set aside, and `.reason.txt` beside it

The files of a try lie in a folder of that try, so an orphan that still writes cannot touch what a
manifest names.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import Field, ValidationError

from trainwright.stages.contract import ArtifactRef, DataError, StageResult, Strict, TransientError
from trainwright.stages.fingerprint import sha256_of
from trainwright.stages.store import (
    ChecksumError,
    ConditionFailedError,
    NotFoundError,
    Store,
    join_uri,
)

MANIFEST = "manifest.json"
LEASE = "lease.json"
_COMMIT_TRIES = 5


class FileEntry(Strict):
    """One file of an artifact."""

    path: str = Field(description="Path within the artifact")
    key: str = Field(description="Key below the artifact's folder: data-<token>/<path>")
    size: int = Field(description="Bytes")
    sha256: str


class Manifest(Strict):
    """What an artifact is, and how it came to be."""

    program: str
    step: str
    run_id: str
    fingerprint: str
    identity: dict[str, Any] = Field(description="What the fingerprint is the hash of")
    params: dict[str, Any]
    inputs: dict[str, ArtifactRef]
    external: dict[str, str]
    files: list[FileEntry]
    content: str = Field(description="sha256 over paths, sizes and sha256 of all files")
    result: StageResult
    code_version: str
    image: str | None = Field(default=None, description="Digest of the image it ran in, if any")
    environment: dict[str, str]
    started_at: datetime
    ended_at: datetime
    digest: str = Field(default="", description="sha256 of this manifest without this field")

    def sealed(self) -> Manifest:
        """A copy that carries its own digest."""
        return self.model_copy(update={"digest": _seal(json.loads(self.model_dump_json()))})


def _seal(values: dict[str, Any]) -> str:
    return sha256_of({name: value for name, value in values.items() if name != "digest"})


class DamagedArtifactError(DataError):
    """An artifact whose manifest or files are not what was written."""


def read_manifest(data: bytes, uri: str) -> Manifest:
    """The manifest in `data`; `DamagedArtifactError` (with the reason) if it cannot be trusted.

    The digest is compared over the JSON as it stands, so that a field which a later version of
    trainwright adds does not make an older manifest look changed.
    """
    try:
        manifest = Manifest.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise DamagedArtifactError(
            f"{uri} is not a manifest ({where or 'JSON'}: {first['msg']})"
        ) from None
    try:
        intact = manifest.digest == _seal(json.loads(data))
    except ValueError:
        intact = False
    if not intact:
        raise DamagedArtifactError(f"{uri} was changed after it was written (its digest differs)")
    _check_files(manifest, uri)
    return manifest


def _check_files(manifest: Manifest, uri: str) -> None:
    """A seal is no signature: whoever writes a manifest can seal it. No path may leave its folder."""
    folders = set()
    for entry in manifest.files:
        safe_relative(entry.path)
        folder, _, path = entry.key.partition("/")
        folders.add(folder)
        if path != entry.path or not re.fullmatch(r"data-[\w-]+", folder):
            raise DamagedArtifactError(
                f"{uri} is not a manifest (file {entry.path!r} has the key {entry.key!r})"
            )
    if len(folders) > 1 or len({entry.path for entry in manifest.files}) < len(manifest.files):
        raise DamagedArtifactError(f"{uri} is not a manifest (files of two tries, or named twice)")
    if manifest.content != content_digest(manifest.files):
        raise DamagedArtifactError(f"{uri} is not a manifest (its content digest differs)")


@dataclass(frozen=True)
class Artifact:
    """An artifact's place: a store and the key of its folder."""

    store: Store
    key: str

    @property
    def uri(self) -> str:
        """URI of the folder."""
        return join_uri(self.store.root, self.key)

    @property
    def lease_key(self) -> str:
        """Key of the lease that a writer of this artifact holds."""
        return f"{self.key}/{LEASE}"

    def manifest(self) -> Manifest | None:
        """The manifest; None if there is none yet. `DamagedArtifactError` if it is not trusted."""
        try:
            data, _ = self.store.get(f"{self.key}/{MANIFEST}")
        except NotFoundError:
            return None
        manifest = read_manifest(data, f"{self.uri}/{MANIFEST}")
        # Folders of the product are named by the fingerprint's first letters (flows.execute).
        name = self.key.rpartition("/")[2]
        if re.fullmatch(r"[0-9a-f]{16,64}", name) and not manifest.fingerprint.startswith(name):
            raise DamagedArtifactError(
                f"{self.uri}/{MANIFEST} is that of another artifact ({manifest.fingerprint[:24]})"
            )
        return manifest

    def verify(self, manifest: Manifest) -> None:
        """Check every file against the manifest: size and sha256 (`Store.verify` says how)."""
        for entry in manifest.files:
            try:
                self.store.verify(f"{self.key}/{entry.key}", size=entry.size, sha256=entry.sha256)
            except (NotFoundError, ChecksumError) as error:
                raise self._damaged(entry, error) from None

    def _damaged(self, entry: FileEntry, error: Exception) -> DamagedArtifactError:
        if isinstance(error, NotFoundError):
            return DamagedArtifactError(f"{self.uri}: the file {entry.path!r} is missing")
        return DamagedArtifactError(
            f"{self.uri}: the file {entry.path!r} is not what was written ({error})"
        )

    def set_aside(self, reason: str) -> str:
        """Move a damaged manifest out of the way, so that the artifact is made again; its new key.

        A manifest that another writer has put there in the meantime stays. `NotFoundError` if there
        is none.
        """
        key = f"{self.key}/{MANIFEST}"
        data, etag = self.store.get(key)
        aside = f"{self.key}/damaged-{hashlib.sha256(data).hexdigest()[:12]}.json"
        self.store.put(aside, data)
        self.store.put(f"{aside}.reason.txt", reason.encode())
        try:
            self.store.delete(key, if_match=etag)
        except ConditionFailedError:
            pass  # Somebody else was faster, and may have written a new one already.
        return aside

    def read(self, manifest: Manifest, cache: Path) -> Path:
        """A local folder with the artifact's files, verified.

        In a `file://` store it is the folder itself; else a copy below `cache`, keyed by content.
        """
        folder = self._local_folder(manifest)
        if folder is not None:
            self.verify(manifest)
            return folder
        return self._download(manifest, cache / manifest.content)

    def _local_folder(self, manifest: Manifest) -> Path | None:
        if not manifest.files:
            return None
        folder = manifest.files[0].key.partition("/")[0]
        return self.store.local_path(f"{self.key}/{folder}")

    def _download(self, manifest: Manifest, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for entry in manifest.files:
            target = folder / safe_relative(entry.path)
            if target.is_file() and target.stat().st_size == entry.size:
                if file_sha256(target) == entry.sha256:
                    continue
                target.unlink(missing_ok=True)
            try:
                self.store.get_file(f"{self.key}/{entry.key}", target, sha256=entry.sha256)
            except (NotFoundError, ChecksumError) as error:
                raise self._damaged(entry, error) from None
        return folder

    def upload(self, folder: Path, token: str) -> list[FileEntry]:
        """Put every file below `folder` under this try's own keys; the folder may be emptied."""
        entries = []
        for path in _files_below(folder):
            relative = path.relative_to(folder).as_posix()
            entry = FileEntry(
                path=relative,
                key=f"data-{token}/{relative}",
                size=path.stat().st_size,
                sha256=file_sha256(path),
            )
            self.store.put_file(f"{self.key}/{entry.key}", path, sha256=entry.sha256, move=True)
            entries.append(entry)
        return entries

    def commit(self, manifest: Manifest) -> Manifest:
        """Write the manifest, unless another try has won: then the winner's manifest is returned."""
        sealed = manifest.sealed()
        data = sealed.model_dump_json(indent=1).encode()
        for _ in range(_COMMIT_TRIES):
            try:
                self.store.put(f"{self.key}/{MANIFEST}", data, if_absent=True)
                return sealed
            except ConditionFailedError:
                # A server may also say so of two puts at once, of which neither went through.
                if (winner := self.manifest()) is not None:
                    return winner
        raise TransientError(
            f"{self.uri}/{MANIFEST} could not be written: others write and remove it"
        )


def _files_below(folder: Path) -> Iterator[Path]:
    """All files, in order of path. What could not be kept is refused, not left out in silence."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path
        elif path.is_symlink() or not path.is_dir():
            raise DataError(f"{path} in a stage's output is neither a file nor a folder")


def content_digest(files: list[FileEntry]) -> str:
    """sha256 over (path, size, sha256) of all files, in path order."""
    return sha256_of([[f.path, f.size, f.sha256] for f in sorted(files, key=lambda f: f.path)])


def file_sha256(path: Path) -> str:
    """The sha256 of a file, read once."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def safe_relative(path: str) -> Path:
    """The path, refused if it could leave the folder it is joined to."""
    parts = PurePosixPath(path).parts
    if path != "/".join(parts) or not parts or path.startswith("/") or ".." in parts:
        raise DamagedArtifactError(f"a manifest names the path {path!r}, which leaves its folder")
    return Path(path)


def key_of(ref: ArtifactRef) -> str:
    """The key of an artifact's folder in its store."""
    return "artifacts/" + "/".join(ref.uri.rstrip("/").split("/")[-2:])


def open_artifact(uri: str) -> Artifact:
    """The artifact at a URI: the last two parts are its key, what is before is the store."""
    from trainwright.stages.store import open_store

    root, _, tail = uri.rstrip("/").rpartition("/artifacts/")
    if not root or tail.count("/") != 1:
        raise DataError(f"{uri!r} is not an artifact's URI (STORE/artifacts/PROGRAM/FINGERPRINT)")
    return Artifact(open_store(root), f"artifacts/{tail}")
