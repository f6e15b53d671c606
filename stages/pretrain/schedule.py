"""The learning rate as a pure function of the step."""

from __future__ import annotations

import math

from trainwright.stages.pretrain.params import Optimization


def learning_rate(step: int, steps: int, what: Optimization) -> float:
    """The rate of `step` (from 0) of `steps`.

    Linear warmup from peak / warmup_steps to the peak, then to final_share of it by the last step:
    cosine (Loshchilov and Hutter 2017, SGDR, eq. 5, one period), a straight line, or not at all.
    """
    if step < what.warmup_steps:
        return what.learning_rate * (step + 1) / what.warmup_steps
    if what.schedule == "constant":
        return what.learning_rate
    done = (step - what.warmup_steps) / max(1, steps - 1 - what.warmup_steps)
    fall = 0.5 * (1 + math.cos(math.pi * done)) if what.schedule == "cosine" else 1 - done
    return what.learning_rate * (what.final_share + (1 - what.final_share) * fall)
