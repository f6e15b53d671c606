"""Snapshots that survive `kill -9`: written aside, synced, renamed, and only then marked complete."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch

from trainwright.stages.artifact import file_sha256
from trainwright.stages.durable import sync_folder, write_durably

State = dict[str, Any]


class Snapshots:
    """Snapshots in a folder, the newest `keep` of them. States hold tensors and plain values only."""

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self._folder = folder
        self._keep = keep
        folder.mkdir(parents=True, exist_ok=True)

    def save(self, step: int, state: State) -> None:
        """Write the state after `step` steps; whole or not at all."""
        name = f"step-{step:09d}"
        temporary = self._folder / f"{name}.tmp"
        with temporary.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        mark = {"size": temporary.stat().st_size, "sha256": file_sha256(temporary)}
        temporary.rename(self._folder / f"{name}.pt")
        sync_folder(self._folder)
        write_durably(self._folder / f"{name}.json", json.dumps(mark).encode())
        self._prune()

    def newest(self) -> tuple[int, State] | None:
        """Step and state of the newest snapshot that is complete and unharmed; None if there is none."""
        for mark in sorted(self._folder.glob("step-*.json"), reverse=True):
            data = mark.with_suffix(".pt")
            if _intact(mark, data):
                step = int(mark.stem.removeprefix("step-"))
                return step, torch.load(data, map_location="cpu", weights_only=True)
        return None

    def _prune(self) -> None:
        marks = sorted(self._folder.glob("step-*.json"))
        for mark in marks[: -self._keep]:
            # The mark first: a kill between the two leaves data that nothing calls complete.
            mark.unlink()
            mark.with_suffix(".pt").unlink(missing_ok=True)


def _intact(mark: Path, data: Path) -> bool:
    try:
        said = json.loads(mark.read_text())
        return data.stat().st_size == said["size"] and file_sha256(data) == said["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
