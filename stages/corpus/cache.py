"""Intermediate results that survive a kill: a folder is there whole, or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path


def once(folder: Path, name: str, make: Callable[[Path], None]) -> Path:
    """The folder `folder/name`, filled by `make` if an earlier try has not finished it.

    `name` carries the key of everything that `make` depends on. It is filled under another name,
    flushed to disk and renamed, so a name that exists is complete.
    """
    target = folder / name
    if target.is_dir():
        return target
    draft = folder / f"draft-{os.getpid()}-{name}"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    make(draft)
    for path in draft.iterdir():
        _flush(path)
    _flush(draft)
    try:
        draft.rename(target)
    except OSError:
        # An orphan of a killed try was faster: what it made is complete, and the same.
        if not target.is_dir():
            raise
        shutil.rmtree(draft, ignore_errors=True)
    _flush(folder)
    return target


def clear_drafts(folder: Path) -> None:
    """Remove what tries that were killed left unfinished."""
    for draft in folder.glob("draft-*"):
        # Renamed before it is emptied: an orphan that still fills it can no longer finish it.
        trash = draft.with_name(f"trash-{draft.name}")
        try:
            draft.rename(trash)
        except OSError:
            continue
    for trash in folder.glob("trash-*"):
        shutil.rmtree(trash, ignore_errors=True)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
