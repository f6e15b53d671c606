import pytest
from pydantic import ValidationError

from trainwright.stages.pretrain.params import PretrainParams


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"global_batch": 10, "ranks": 4}, "must be a multiple of ranks"),
        ({"global_batch": 16, "ranks": 2, "micro_batch": 3}, "must divide that"),
        ({"steps": 10}, "must be below steps"),
        ({"stepps": 3}, "Extra inputs"),
    ],
)
def test_contradictions_are_refused_with_a_sentence(
    values: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ValidationError, match=sentence):
        PretrainParams.model_validate(values)


def test_how_a_batch_is_spread_does_not_bear_on_the_identity() -> None:
    one = PretrainParams(ranks=1, zero_stage=3, micro_batch=4, snapshot_every=7)
    two = PretrainParams(ranks=2)
    assert one.identity() == two.identity()
    assert one.accumulation == 4 and two.accumulation == 1
    assert PretrainParams(seed=1).identity() != two.identity()
