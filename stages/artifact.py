"""Artifacts: a folder in the store whose `manifest.json`, written last, alone means done.

The files of a try lie in a folder of that try (`data-<token>/`), so an orphan that still writes
cannot touch what a manifest names; the manifest itself is a conditional put that one try wins.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from trainwright.stages.contract import ArtifactRef, DataError, StageResult, Strict, TransientError
from trainwright.stages.fingerprint import sha256_of
from trainwright.stages.store import ConditionFailedError, NotFoundError, Store, join_uri

MANIFEST = "manifest.json"


class FileEntry(Strict):
    """One file of an artifact."""

    path: str = Field(description="Path within the artifact")
    key: str = Field(description="Key below the artifact's folder")
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
        return self.model_copy(update={"digest": self._own_digest()})

    def _own_digest(self) -> str:
        return sha256_of(self.model_dump(mode="json", exclude={"digest"}))

    @property
    def intact(self) -> bool:
        """Whether the manifest is the one that was sealed."""
        return self.digest == self._own_digest()


class DamagedArtifactError(DataError):
    """An artifact whose manifest or files are not what was written."""


@dataclass(frozen=True)
class Artifact:
    """An artifact's place: a store and the key of its folder."""

    store: Store
    key: str

    @property
    def uri(self) -> str:
        """URI of the folder."""
        return join_uri(self.store.root, self.key)

    def manifest(self) -> Manifest | None:
        """The manifest; None if there is none yet. `DamagedArtifactError` if it cannot be trusted."""
        try:
            data, _ = self.store.get(f"{self.key}/{MANIFEST}")
        except NotFoundError:
            return None
        try:
            manifest = Manifest.model_validate_json(data)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise DamagedArtifactError(
                f"{self.uri}/{MANIFEST} is not a manifest ({where or 'JSON'}: {first['msg']})"
            ) from None
        if not manifest.intact:
            raise DamagedArtifactError(
                f"{self.uri}/{MANIFEST} was changed after it was written (its digest differs)"
            )
        return manifest

    def verify(self, manifest: Manifest) -> None:
        """Check every file against the manifest: size first, then sha256."""
        for entry in manifest.files:
            self._verify_file(entry)

    def _verify_file(self, entry: FileEntry) -> None:
        key = f"{self.key}/{entry.key}"
        try:
            info = self.store.head(key)
        except NotFoundError:
            raise DamagedArtifactError(
                f"{self.uri}: the file {entry.path!r} is missing"
            ) from None
        if info.size != entry.size:
            raise DamagedArtifactError(
                f"{self.uri}: the file {entry.path!r} has {info.size} bytes, "
                f"its manifest says {entry.size}"
            )
        path = self.store.local_path(key)
        if path is not None and file_sha256(path) != entry.sha256:
            raise DamagedArtifactError(
                f"{self.uri}: the file {entry.path!r} was changed (its sha256 differs)"
            )

    def set_aside(self, reason: str) -> str:
        """Move a damaged manifest out of the way, so that the artifact is made again; its new key."""
        data, _ = self.store.get(f"{self.key}/{MANIFEST}")
        aside = f"{self.key}/damaged-{hashlib.sha256(data).hexdigest()[:12]}.json"
        self.store.put(aside, data)
        self.store.put(f"{aside}.reason.txt", reason.encode())
        self.store.delete(f"{self.key}/{MANIFEST}")
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
        entry = manifest.files[0]
        path = self.store.local_path(f"{self.key}/{entry.key}")
        return None if path is None else Path(str(path)[: -len(entry.path)])

    def _download(self, manifest: Manifest, folder: Path) -> Path:
        for entry in manifest.files:
            target = folder / safe_relative(entry.path)
            if target.is_file() and target.stat().st_size == entry.size:
                if file_sha256(target) == entry.sha256:
                    continue
                target.unlink()
            try:
                self.store.get_file(f"{self.key}/{entry.key}", target, sha256=entry.sha256)
            except NotFoundError:
                raise DamagedArtifactError(
                    f"{self.uri}: the file {entry.path!r} is missing"
                ) from None
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def upload(self, folder: Path, token: str) -> list[FileEntry]:
        """Put every file below `folder` under this try's own keys; the folder may be emptied."""
        entries = []
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
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
        try:
            self.store.put(f"{self.key}/{MANIFEST}", data, if_absent=True)
        except ConditionFailedError:
            winner = self.manifest()
            if winner is None:
                raise TransientError(f"{self.uri}/{MANIFEST} appeared and vanished") from None
            return winner
        return sealed


def content_digest(files: list[FileEntry]) -> str:
    """sha256 over (path, size, sha256) of all files, in path order."""
    return sha256_of([[f.path, f.size, f.sha256] for f in sorted(files, key=lambda f: f.path)])


def file_sha256(path: Path) -> str:
    """The sha256 of a file, read once."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def safe_relative(path: str) -> Path:
    """The path, refused if it could leave the folder it is joined to."""
    parts = Path(path).parts
    if not parts or Path(path).is_absolute() or ".." in parts:
        raise DataError(f"a manifest names the path {path!r}, which leaves its folder")
    return Path(path)


def open_artifact(uri: str) -> Artifact:
    """The artifact at a URI: the last two parts are its key, what is before is the store."""
    from trainwright.stages.store import open_store

    root, _, tail = uri.rstrip("/").rpartition("/artifacts/")
    if not root or tail.count("/") != 1:
        raise DataError(f"{uri!r} is not an artifact's URI (STORE/artifacts/PROGRAM/FINGERPRINT)")
    return Artifact(open_store(root), f"artifacts/{tail}")
