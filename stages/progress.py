"""Progress of a stage as JSON lines in a local file: what the live line and `status` show."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)


class Progress:
    """Writes a line at most every `interval` seconds, and whenever the phase changes.

    Each line: `time` (s since the epoch), `phase`, `step`, `total`, `eta` (s), and any figures.
    """

    def __init__(self, path: Path, interval: float = 0.5) -> None:
        self._interval = interval
        self._last = 0.0
        self._warned = False
        self._phase: str | None = None
        self._phase_started = 0.0
        self._phase_first = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", buffering=1)

    def __call__(
        self, phase: str, step: int | None = None, total: int | None = None, **figures: float
    ) -> None:
        """Report `step` of `total` in `phase`, with figures such as loss and tokens_per_s."""
        now = time.monotonic()
        if phase != self._phase or (step is not None and step < self._phase_first):
            self._phase, self._phase_started, self._phase_first = phase, now, step or 0
        elif now - self._last < self._interval and (step is None or step != total):
            return
        self._last = now
        line: dict[str, Any] = {"time": round(time.time(), 3), "phase": phase}
        if step is not None:
            line["step"] = step
        if total is not None:
            line["total"] = total
        if step is not None and total is not None and step > self._phase_first:
            pace = (now - self._phase_started) / (step - self._phase_first)
            line["eta"] = round(pace * (total - step), 1)
        line.update({name: float(value) for name, value in figures.items()})
        self._write(json.dumps(line) + "\n")

    def _write(self, line: str) -> None:
        try:
            self._file.write(line)
        except (OSError, ValueError) as error:
            # A full disk, or a late thread after `close`: no reason to end a training.
            if not self._warned:
                log.warning("progress cannot be written: %s", error)
                self._warned = True

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):
            self._file.close()


def last_progress(path: Path) -> dict[str, Any] | None:
    """The last whole line of a progress file, if there is one."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            size = file.tell()
            file.seek(max(0, size - 4096))
            lines = file.read().splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            return value
    return None
