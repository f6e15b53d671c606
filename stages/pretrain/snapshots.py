"""Snapshots of all ranks in one folder; `COMPLETE`, written last with every file's digest, makes it one.

snapshots/step-000000400/state/...    what DeepSpeed writes, a file or more a rank
snapshots/step-000000400/COMPLETE     {"meta": {...}, "files": {name: sha256}}
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

from trainwright.stages.artifact import file_sha256
from trainwright.stages.durable import sync_folder, write_durably

log = logging.getLogger(__name__)

COMPLETE = "COMPLETE"
TAG = "state"


class Snapshots:
    """The snapshots of one run, newest last; the newest `keep` complete ones stay."""

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self._keep = keep
        folder.mkdir(parents=True, exist_ok=True)

    def place(self, step: int) -> Path:
        """Folder of a step's snapshot."""
        return self.folder / f"step-{step:09d}"

    def begin(self, step: int) -> Path:
        """An empty folder for a new snapshot (one rank calls this)."""
        place = self.place(step)
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        return place

    def complete(self, step: int, meta: dict[str, Any]) -> None:
        """Sync all files, then mark the snapshot complete and drop older ones (one rank calls this)."""
        place = self.place(step)
        files = {}
        for path in _files(place):
            with path.open("rb") as file:
                os.fsync(file.fileno())
            files[path.relative_to(place).as_posix()] = file_sha256(path)
        sync_folder(place)
        mark = json.dumps({"meta": meta, "files": files}, sort_keys=True)
        write_durably(place / COMPLETE, mark.encode())
        sync_folder(self.folder)
        self._prune(step)

    def newest(self, meta: dict[str, Any]) -> tuple[int, Path] | None:
        """The newest snapshot that is complete, unharmed and of the same layout (`meta`)."""
        for place in sorted(self.folder.glob("step-*"), reverse=True):
            fault = self._fault(place, meta)
            if fault is None:
                return int(place.name.removeprefix("step-")), place
            log.warning("snapshot %s is passed over: %s", place.name, fault)
        return None

    def _fault(self, place: Path, meta: dict[str, Any]) -> str | None:
        try:
            mark = json.loads((place / COMPLETE).read_text())
            said, files = mark["meta"], mark["files"]
        except FileNotFoundError:
            return "it was never completed"
        except (OSError, ValueError, KeyError, TypeError):
            return "its mark cannot be read"
        if said != meta:
            return f"it was taken with {said}, this run has {meta}"
        for name, digest in files.items():
            path = place / name
            if not path.is_file():
                return f"{name} is missing"
            if file_sha256(path) != digest:
                return f"{name} was damaged (its sha256 differs)"
        return None

    def _prune(self, newest: int) -> None:
        places = sorted(self.folder.glob("step-*"))
        done = [p for p in places if (p / COMPLETE).is_file()]
        for place in done[: -self._keep]:
            # The mark goes first: a kill in between must not leave a half that says complete.
            (place / COMPLETE).unlink()
            shutil.rmtree(place, ignore_errors=True)
        for place in places:
            if place not in done and int(place.name.removeprefix("step-")) < newest:
                shutil.rmtree(place, ignore_errors=True)


def _files(place: Path) -> list[Path]:
    return sorted(p for p in place.rglob("*") if p.is_file() and p.name != COMPLETE)
