import math

import pytest

from trainwright.stages.pretrain.params import Optimization
from trainwright.stages.pretrain.schedule import learning_rate


def test_warmup_is_a_line_to_the_peak_and_cosine_falls_to_the_final_share() -> None:
    what = Optimization(learning_rate=1.0, warmup_steps=10, final_share=0.1)
    assert [learning_rate(step, 111, what) for step in (0, 4, 9)] == [0.1, 0.5, 1.0]
    assert learning_rate(110, 111, what) == pytest.approx(0.1)
    middle = 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi / 2))
    assert learning_rate(60, 111, what) == pytest.approx(middle)


@pytest.mark.parametrize(("schedule", "halfway", "end"), [("linear", 0.6, 0.2), ("constant", 1, 1)])
def test_other_schedules(schedule: str, halfway: float, end: float) -> None:
    what = Optimization(learning_rate=1.0, warmup_steps=0, final_share=0.2, schedule=schedule)
    assert learning_rate(50, 101, what) == pytest.approx(halfway)
    assert learning_rate(100, 101, what) == pytest.approx(end)
