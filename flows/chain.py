"""The chain: which steps there are, which program each runs, and whose artifacts it reads."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum


class StepName(StrEnum):
    """The steps of a pipeline run, in order."""

    CORPUS = "corpus"
    INITIALIZE = "initialize"
    PRETRAIN = "pretrain"
    VALIDATE = "validate"
    INSTRUCT = "instruct"
    ALIGN = "align"
    QUANTIZE = "quantize"
    ACCEPT = "accept"


@dataclass(frozen=True)
class Step:
    """One step: the program it runs and its inputs (input name -> step that makes it)."""

    name: StepName
    program: str
    inputs: dict[str, StepName] = field(default_factory=dict)


CHAIN: tuple[Step, ...] = (
    Step(StepName.CORPUS, "corpus"),
    Step(StepName.INITIALIZE, "initialize", {"corpus": StepName.CORPUS}),
    Step(
        StepName.PRETRAIN,
        "pretrain",
        {"corpus": StepName.CORPUS, "model": StepName.INITIALIZE},
    ),
    Step(StepName.VALIDATE, "validate", {"corpus": StepName.CORPUS, "model": StepName.PRETRAIN}),
    Step(
        StepName.INSTRUCT,
        "instruct",
        {"corpus": StepName.CORPUS, "model": StepName.PRETRAIN, "gate": StepName.VALIDATE},
    ),
    Step(StepName.ALIGN, "align", {"corpus": StepName.CORPUS, "model": StepName.INSTRUCT}),
    Step(StepName.QUANTIZE, "quantize", {"corpus": StepName.CORPUS, "model": StepName.ALIGN}),
    Step(
        StepName.ACCEPT,
        "validate",
        {"corpus": StepName.CORPUS, "model": StepName.QUANTIZE, "reference": StepName.ALIGN},
    ),
)

STEPS = {step.name: step for step in CHAIN}


class UnknownNameError(ValueError):
    """A name that is not one of the valid ones; the message lists those."""


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """The valid name that is spelled most like `name`, if any is near."""
    found = difflib.get_close_matches(name, list(valid), n=1, cutoff=0.5)
    return found[0] if found else None


def choose(kind: str, name: str, valid_names: Iterable[str]) -> str:
    """`name` if it is valid; else `UnknownNameError` with the nearest and all valid names."""
    names = list(valid_names)
    if name in names:
        return name
    hint = nearest(name, names)
    meant = f"; did you mean {hint!r}?" if hint else ""
    valid = ", ".join(names) or "(none yet)"
    raise UnknownNameError(f"there is no {kind} {name!r}{meant or ';'} valid: {valid}")


def step_named(name: str) -> StepName:
    """The step of that name, or an error that names the valid ones."""
    return StepName(choose("stage", name, [step.value for step in StepName]))


def upstream(name: StepName) -> set[StepName]:
    """All steps that `name` depends on, directly or not."""
    direct = set(STEPS[name].inputs.values())
    return direct.union(*(upstream(step) for step in direct))


def downstream(name: StepName) -> set[StepName]:
    """All steps that depend on `name`, directly or not."""
    return {step.name for step in CHAIN if name in upstream(step.name)}


@dataclass(frozen=True)
class Selection:
    """Which steps a run touches.

    `first`: steps before it must already be done with these parameters. `last`: nothing after it.
    `only`: one step. `force`: run these even if an artifact of the same fingerprint exists.
    """

    first: StepName | None = None
    last: StepName | None = None
    only: StepName | None = None
    force: frozenset[StepName] = frozenset()

    def __post_init__(self) -> None:
        if self.only and (self.first or self.last):
            raise ValueError("--only names one stage: leave --from and --to out")
        order = [step.name for step in CHAIN]
        if self.first and self.last and order.index(self.first) > order.index(self.last):
            raise ValueError(
                f"--from {self.first} comes after --to {self.last}: no stage lies between them"
            )
        for step in sorted(self.force):
            if step not in self.wanted():
                raise ValueError(
                    f"--force {step} is outside the stages that this run may execute "
                    f"({', '.join(self.wanted())})"
                )

    def wanted(self) -> list[StepName]:
        """The steps that may run, in order."""
        order = [step.name for step in CHAIN]
        if self.only:
            return [self.only]
        start = order.index(self.first) if self.first else 0
        stop = order.index(self.last) + 1 if self.last else len(order)
        return order[start:stop]

    def needed(self) -> list[StepName]:
        """The steps that may run, and those before them whose artifacts are read."""
        wanted = self.wanted()
        needed = set(wanted).union(*(upstream(step) for step in wanted))
        return [step.name for step in CHAIN if step.name in needed]
