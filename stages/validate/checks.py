"""Checks: what was measured, against which limit, and whether it passed."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, field
from typing import Any

from trainwright.stages.contract import GateError

log = logging.getLogger(__name__)

DIGITS = 6
"""Decimals of a figure in the report: what lies below hangs on the number of threads."""


@dataclass(frozen=True)
class Check:
    """One check of a gate."""

    name: str
    value: float | str
    """What was found."""
    threshold: str
    """What was asked for: a relation and a limit."""
    passed: bool
    detail: str = ""

    def as_row(self) -> dict[str, Any]:
        """As the report has it."""
        return {**asdict(self), "value": rounded(self.value)}

    def __str__(self) -> str:
        value = f"{self.value:.6g}" if isinstance(self.value, float) else str(self.value)
        detail = f" ({self.detail})" if self.detail else ""
        return f"{self.name} is {value}, must be {self.threshold}{detail}"


@dataclass
class Checklist:
    """The checks of a gate, in the order they were made."""

    checks: list[Check] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """What could not be measured, since a check before it failed."""

    def require(
        self, name: str, value: float | str, threshold: str, passed: bool, detail: str = ""
    ) -> bool:
        """Record a check; whether it passed."""
        check = Check(name, value, threshold, bool(passed), "" if passed else detail)
        self.checks.append(check)
        level, word = (logging.INFO, "passed") if check.passed else (logging.ERROR, "FAILED")
        log.log(level, "%s: %s", word, check)
        return check.passed

    def none_of(self, name: str, names: list[str]) -> bool:
        """Passes if there are none; the detail names the first few."""
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        return self.require(name, float(len(names)), "0", not names, shown)

    def at_most(self, name: str, value: float, limit: float, detail: str = "") -> bool:
        """Passes if value <= limit; NaN does not pass."""
        return self.require(name, value, f"at most {limit:.6g}", value <= limit, detail)

    def below(self, name: str, value: float, limit: float, what: str) -> bool:
        """Passes if value < limit; NaN does not pass."""
        return self.require(name, value, f"below {limit:.6g}, {what}", value < limit)

    @property
    def failed(self) -> list[Check]:
        """Those that did not pass."""
        return [check for check in self.checks if not check.passed]

    def rows(self) -> list[dict[str, Any]]:
        """As the report has them."""
        return [check.as_row() for check in self.checks]

    def raise_if_failed(self, way_out: str) -> None:
        """`GateError` that names every failed check with its value and threshold."""
        if not self.failed:
            return
        left_out = f"; not measured for that: {', '.join(self.left_out)}" if self.left_out else ""
        raise GateError(
            f"the model fails {len(self.failed)} of {len(self.checks)} checks: "
            f"{'; '.join(str(check) for check in self.failed)}{left_out}. {way_out}"
        )


def rounded(value: Any) -> Any:
    """Figures of a report to `DIGITS` decimals, within lists and dicts too."""
    if isinstance(value, float):
        return round(value, DIGITS)
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return value
