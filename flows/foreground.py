"""A flow run in this process, with live lines on the terminal and the summary at the end."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape

from trainwright.flows.prefect_local import prefect_api
from trainwright.stages.contract import UsageError
from trainwright.stages.settings import Settings, settings, without_credentials

_COMPLETED, _FAILED, _CANCELLED = 0, 1, 130


def run_in_foreground(console: Console, call: Callable[[], Any], what: str) -> int:
    """Call a flow (with `return_state=True`) and show it; the command's exit code."""
    place = settings()
    _check_places(place)
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    signal.signal(signal.SIGTERM, _terminate)
    console.print(f"[bold]trainwright[/] {escape(what)} · home {escape(str(place.home))}")
    if not place.prefect_api:
        console.print("[dim]starting Prefect in-process (trainwright up starts one that stays)[/]")
    with prefect_api(place) as url:
        from trainwright.flows import pipeline  # noqa: F401  (imports Prefect, with our settings)
        from trainwright.flows.console import ConsoleWatcher
        from trainwright.flows.prefect_view import use_watcher

        page = without_credentials(url).removesuffix("/api")
        console.print(f"[dim]watch: {escape(page)}/runs[/]")
        use_watcher(ConsoleWatcher(console))
        with _told_on(console):
            state = call()
        _show_end(console, place, state)
    if state.is_completed():
        return _COMPLETED
    return _CANCELLED if state.is_cancelled() else _FAILED


class _Told(logging.Handler):
    def __init__(self, console: Console) -> None:
        super().__init__(logging.WARNING)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        self._console.print(f"[yellow]{escape(record.getMessage())}[/]")


@contextmanager
def _told_on(console: Console) -> Iterator[None]:
    """Show our own warnings: Prefect's logging, silenced on the terminal, would swallow them."""
    handler = _Told(console)
    logging.getLogger("trainwright").addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger("trainwright").removeHandler(handler)


def _check_places(place: Settings) -> None:
    """Refuse a home or a store that cannot be used now, not after Prefect has been started."""
    from trainwright.stages.store import open_store
    from trainwright.stages.store.probe import probe

    place.home.mkdir(parents=True, exist_ok=True)
    if broken := probe(open_store(place.store)):
        raise UsageError(broken[0])


def _terminate(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


def _show_end(console: Console, place: Settings, state: Any) -> None:
    from trainwright.flows import report
    from trainwright.flows.runs import Runs
    from trainwright.stages.store import open_store

    runs = Runs(open_store(place.store))
    run = runs.of_flow_run(str(state.state_details.flow_run_id))
    if run is None:
        console.print(f"[red]{escape(state.message or 'the run did not start')}[/]")
        return
    console.print()
    report.print_summary(console, run, runs.steps(run.id))
