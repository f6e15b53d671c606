"""What a stage program is given: typed parameters, inputs as folders, a folder to fill, reporters."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from trainwright.stages.contract import Params, StageSpec, UsageError
from trainwright.stages.progress import Progress
from trainwright.stages.tracking import Tracker

P = TypeVar("P", bound=Params)


@dataclass
class StageContext:
    """Everything a program may touch.

    `out` is an empty folder that becomes the artifact. `work` outlives this try: snapshots go there,
    and what it holds belongs to this very fingerprint. Nothing in it is trusted unless complete.
    """

    spec: StageSpec
    params: Params
    out: Path
    work: Path
    inputs: dict[str, Path]
    progress: Progress
    tracker: Tracker
    external: dict[str, str] = field(default_factory=dict)

    def typed(self, params_class: type[P]) -> P:
        """The parameters as their own class."""
        if not isinstance(self.params, params_class):
            raise UsageError(
                f"stage {self.spec.program!r} was given {type(self.params).__name__}, "
                f"it takes {params_class.__name__}"
            )
        return self.params

    def input(self, name: str) -> Path:
        """The folder of an input artifact, verified."""
        if name not in self.inputs:
            raise UsageError(
                f"step {self.spec.step!r} needs the input {name!r}; "
                f"it was given {sorted(self.inputs) or 'none'}"
            )
        return self.inputs[name]
