"""Where a stage runs: one small Protocol, one file a launcher."""

from trainwright.flows.launchers.base import Handle, Job, Launcher, make_launcher

__all__ = ["Handle", "Job", "Launcher", "make_launcher"]
