"""The stage programs, by name. Importing this file is cheap: a program's room is imported on use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, cast

from trainwright.stages.contract import Params, StageResult

if TYPE_CHECKING:
    from trainwright.stages.context import StageContext


@dataclass(frozen=True)
class Program:
    """A stage program.

    `trainwright.stages.<room>.params` has the class `params_name`; `trainwright.stages.<room>.main`
    has `run(context) -> StageResult` and, where the program reads what is outside the store,
    `identify(params) -> dict[str, str]`: digests of that by name.
    """

    name: str
    version: int
    """Raised when the code makes another output from the same parameters and inputs."""
    params_name: str

    @property
    def params_class(self) -> type[Params]:
        """The pydantic model of the program's parameters (needs pydantic only)."""
        module = import_module(f"trainwright.stages.{self.name}.params")
        return cast(type[Params], getattr(module, self.params_name))

    @property
    def run(self) -> Callable[[StageContext], StageResult]:
        """The program's entry."""
        module = import_module(f"trainwright.stages.{self.name}.main")
        return cast(Callable[["StageContext"], StageResult], module.run)

    @property
    def identify(self) -> Callable[[Params], dict[str, str]]:
        """Digests of what the program reads from outside the store."""
        module = import_module(f"trainwright.stages.{self.name}.main")
        return cast(Callable[[Params], dict[str, str]], module.identify)


PROGRAMS = {
    program.name: program
    for program in (
        Program("corpus", 5, "CorpusParams"),
        Program("initialize", 1, "InitializeParams"),
        Program("pretrain", 1, "PretrainParams"),
        Program("validate", 1, "ValidateParams"),
        Program("instruct", 1, "InstructParams"),
        Program("align", 2, "AlignParams"),
        Program("quantize", 1, "QuantizeParams"),
    )
}
