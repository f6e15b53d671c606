"""Whether a model loads elsewhere: in a fresh Python process that knows nothing of this package."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from trainwright.stages.contract import TransientError
from trainwright.stages.validate.checks import Checklist

PATIENCE = 900.0
"""Seconds until the process is given up."""
LARGEST_GAP = 1e-3
"""Of losses (nats a token) between here and there: more is another model, not another order of sums."""


def check_elsewhere(
    checks: Checklist, folder: Path, *, ids: list[list[int]], loss: float, prompt: str, threads: int
) -> None:
    """Load `folder` in a fresh process; the mean NLL of the windows `ids` there must be `loss`."""
    answer, error = ask(
        {"model": str(folder), "ids": ids, "prompt": prompt, "new_tokens": 8, "threads": threads}
    )
    if not checks.require("loads_elsewhere", error or "loads", "loads", not error):
        return
    there = float(answer["loss"])
    # Rounded: only a gap that is more than rounding may show in the report.
    gap = round(abs(there - loss), 4) if math.isfinite(there) else math.inf
    checks.at_most("loss_gap_elsewhere", gap, LARGEST_GAP, f"{there:.6g} there, {loss:.6g} here")
    checks.none_of("own_modules_elsewhere", answer["trainwright"])


def ask(request: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The process's answer, or in one line why there is none."""
    # -I: neither the working folder nor PYTHONPATH can lend the process a module.
    command = [sys.executable, "-I", str(Path(__file__).with_name("probe.py"))]
    try:
        done = subprocess.run(
            command,
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            env={**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""},
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TransientError(
            f"a fresh process did not load the model within {PATIENCE:.0f} s: the machine is too "
            "loaded; try again"
        ) from None
    lines = done.stdout.strip().splitlines()
    if done.returncode == 0 and lines:
        return dict(json.loads(lines[-1])), ""
    said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return {}, f"ends with: {said[-1].strip()}"
