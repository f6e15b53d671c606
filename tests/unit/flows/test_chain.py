import pytest

from trainwright.flows.chain import (
    CHAIN,
    STEPS,
    Selection,
    StepName,
    UnknownNameError,
    downstream,
    step_named,
    upstream,
)
from trainwright.stages.registry import PROGRAMS


def test_every_step_reads_only_steps_before_it() -> None:
    seen: set[StepName] = set()
    for step in CHAIN:
        assert set(step.inputs.values()) <= seen
        seen.add(step.name)
    assert seen == set(StepName)


def test_every_step_runs_a_program_that_exists() -> None:
    assert {step.program for step in CHAIN} == set(PROGRAMS)


def test_a_wrong_stage_name_is_answered_with_the_valid_ones_and_the_nearest() -> None:
    with pytest.raises(UnknownNameError) as caught:
        step_named("pretran")
    message = str(caught.value)
    assert "did you mean 'pretrain'?" in message
    assert all(step.value in message for step in StepName)


def test_what_depends_on_align_is_what_a_changed_align_reruns() -> None:
    assert downstream(StepName.ALIGN) == {StepName.QUANTIZE, StepName.ACCEPT}
    assert upstream(StepName.INSTRUCT) == {
        StepName.CORPUS,
        StepName.INITIALIZE,
        StepName.PRETRAIN,
        StepName.VALIDATE,
    }


def test_selection_wants_a_range_and_needs_what_it_reads() -> None:
    selection = Selection(first=StepName.ALIGN, last=StepName.QUANTIZE)
    assert selection.wanted() == [StepName.ALIGN, StepName.QUANTIZE]
    assert selection.needed() == [step.name for step in CHAIN][:7]
    assert Selection(only=StepName.INITIALIZE).needed() == [StepName.CORPUS, StepName.INITIALIZE]
    assert Selection().wanted() == list(STEPS)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({"only": StepName.ALIGN, "first": StepName.CORPUS}, "--only"),
        ({"first": StepName.QUANTIZE, "last": StepName.CORPUS}, "comes after"),
        ({"last": StepName.CORPUS, "force": frozenset({StepName.ALIGN})}, "--force align"),
    ],
)
def test_a_contradictory_selection_is_refused_with_a_sentence(
    arguments: dict[str, object], part: str
) -> None:
    with pytest.raises(ValueError, match=part):
        Selection(**arguments)  # type: ignore[arg-type]
