"""What a launcher does: start a stage program somewhere, follow it, end it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from trainwright.stages.contract import StageSpec


@dataclass(frozen=True)
class Job:
    """One attempt of a stage."""

    spec: StageSpec
    spec_path: Path
    log: Path
    environment: dict[str, str] = field(default_factory=dict)


class Handle(Protocol):
    """A job that was started."""

    def poll(self) -> int | None:
        """The return code as `contract.exit_code_of` reads it; None while it runs."""

    def cancel(self, grace: float = 10.0) -> None:
        """End it and all it started: politely, then for good after `grace` seconds."""


class Launcher(Protocol):
    """Starts stages in one kind of place."""

    name: str

    def start(self, job: Job) -> Handle:
        """Start the job; returns at once."""

    def identify(self, program: str, params_path: Path) -> dict[str, str]:
        """Ask the program, where it would run, for digests of what it reads from outside."""


def make_launcher(name: str) -> Launcher:
    """The launcher of that name."""
    from trainwright.flows.launchers.process import ProcessLauncher

    launchers: dict[str, type[Launcher]] = {"process": ProcessLauncher}
    return launchers[name]()
