"""The terminal while a run goes: one live line a stage; plain lines where there is no terminal."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from trainwright.flows.prefect_view import describe_progress
from trainwright.stages.contract import StageRecord, StageState

_PLAIN_EVERY = 15.0

_MARKS = {
    StageState.COMPLETED: "[green]✓[/]",
    StageState.REUSED: "[cyan]↺[/]",
    StageState.FAILED: "[red]✗[/]",
    StageState.CANCELLED: "[yellow]■[/]",
    StageState.CRASHED: "[red]✗[/]",
}


class ConsoleWatcher:
    """Shows steps on a rich console."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status: Status | None = None
        self._plain_at = 0.0

    def started(self, record: StageRecord) -> None:
        """Begin the step's live line."""
        self._stop()
        again = f", try {record.attempts}" if record.attempts > 1 else ""
        if self._console.is_terminal:
            self._status = self._console.status(f"{record.step:<11}starting{again}")
            self._status.start()
        else:
            self._console.print(f"  {record.step:<11}starting{again}: {escape(record.why or '')}")
        self._plain_at = time.monotonic()

    def progressed(self, record: StageRecord, progress: dict[str, Any]) -> None:
        """Renew the live line."""
        line = f"{record.step:<11}{escape(describe_progress(progress))} · {record.seconds:.0f} s"
        if self._status is not None:
            self._status.update(line)
        elif time.monotonic() - self._plain_at > _PLAIN_EVERY:
            self._plain_at = time.monotonic()
            self._console.print(f"  {line}")

    def ended(self, record: StageRecord) -> None:
        """Replace the live line by the outcome."""
        self._stop()
        if record.error:
            tail = escape(record.error)
        elif record.state is StageState.REUSED:
            tail = escape(record.why or "")
        else:
            tail = f"{record.seconds:.1f} s"
        self._console.print(
            f"{_MARKS[record.state]} {record.step:<11}{record.state.value:<10}{tail}"
        )

    def _stop(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None
