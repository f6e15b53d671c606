import pytest
import torch
from transformers import AutoModelForSequenceClassification

from posttrain import make_tokenizer, save_model
from trainwright.stages.align.baselines import by_kind, length, outcome, outcomes, overlap
from trainwright.stages.align.branches import Group, branch_rewards, lay_side_by_side
from trainwright.stages.align.reward import new_reward_model, pad_right, reward_at_end, rewards_of
from trainwright.stages.align.reward_training import PairOrder, encode_pairs, paired
from trainwright.stages.contract import DataError
from trainwright.stages.instruct.chat import ChatFormat
from trainwright.stages.instruct.pairs import Preference

CPU = torch.device("cpu")
SEQUENCES = [[1, 9, 10, 5], [1, 9, 5, 11, 12, 5], [1, 5], [1, 30, 31, 32, 33, 34, 35, 5]]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = save_model(tmp_path_factory.mktemp("model"))
    return new_reward_model(folder / "model", CPU, seed=0)


def test_a_batch_gives_what_each_sequence_gives_alone(model):
    together = rewards_of(model, SEQUENCES)
    alone = torch.cat([rewards_of(model, [sequence]) for sequence in SEQUENCES])
    assert torch.allclose(together, alone, atol=1e-6)
    assert len(set(together.tolist())) == 4


def test_the_reward_is_read_at_the_end_by_length_whatever_fills_the_row(model):
    ids, lengths = pad_right(SEQUENCES, CPU)
    expected = reward_at_end(model, ids, lengths)
    for filler in (5, 0, 17):
        filled = ids.clone()
        for row, n in enumerate(lengths.tolist()):
            filled[row, n:] = filler
        assert torch.equal(reward_at_end(model, filled, lengths), expected)


def test_a_padding_token_that_ends_answers_too_does_no_harm(model):
    ids, lengths = pad_right(SEQUENCES, CPU)
    expected = reward_at_end(model, ids, lengths)
    before = model.config.pad_token_id
    try:
        model.config.pad_token_id = 5
        assert torch.equal(reward_at_end(model, ids, lengths), expected)
    finally:
        model.config.pad_token_id = before


def test_answers_side_by_side_have_the_rewards_they_have_alone(model):
    rng = torch.Generator().manual_seed(0)

    def some(n):
        return torch.randint(6, 60, (n,), generator=rng).tolist()

    groups = [Group([1, *some(40)], [[*some(n), 5], [*some(2 * n), 5]]) for n in range(1, 12)]
    branches = lay_side_by_side(groups, CPU)
    assert 1 < len(branches.ids) < len(groups)
    found = branch_rewards(model, branches)
    alone = rewards_of(model, [g.prompt + a for g in groups for a in g.answers], batch=1)
    assert torch.allclose(found, alone, atol=1e-6)
    assert len(set(found.tolist())) == 22


def test_an_answer_does_not_see_the_other(model):
    def rewards(other):
        groups = [Group([1, 8], [[9, 5], other]), Group([1, 7], [[9, 5], [9, 5]])]
        return branch_rewards(model, lay_side_by_side(groups, CPU))

    one, two = rewards([20, 5]), rewards([30, 5])
    assert torch.equal(one[[0, 2, 3]], two[[0, 2, 3]])
    assert one[1] != two[1]


def test_the_saved_model_is_a_sequence_classifier_with_the_same_rewards(model, tmp_path):
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    assert loaded.config.num_labels == 1
    ids, lengths = pad_right(SEQUENCES, CPU)
    mask = (torch.arange(ids.shape[1])[None] < lengths[:, None]).long()
    with torch.no_grad():
        theirs = loaded(input_ids=ids, attention_mask=mask).logits[:, 0]
        assert torch.allclose(theirs, reward_at_end(model, ids, lengths), atol=1e-6)


def test_the_head_repeats_with_its_seed(tmp_path):
    folder = save_model(tmp_path) / "model"
    one, two, other = (new_reward_model(folder, CPU, seed).score.weight for seed in (1, 1, 2))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


def row(prompt, chosen, rejected, kind="other"):
    return Preference(id="x", prompt=prompt, chosen=chosen, rejected=rejected, kind=kind)


def test_baselines_count_ties_as_half():
    rows = [
        row("read the file", "Read the file", "close a path", "other"),
        row("read the file", "a b", "b a", "shuffled"),
        row("read the file", "x", "read file", "spliced"),
    ]
    assert outcomes(rows, overlap) == [1.0, 0.5, 0.0]
    assert outcomes(rows, length) == [1.0, 0.5, 0.0]
    assert by_kind(rows, [1.0, 0.5, 0.0]) == {"other": 1.0, "shuffled": 0.5, "spliced": 0.0}
    assert (outcome(2, 1), outcome(1, 1), outcome(1, 2)) == (1.0, 0.5, 0.0)


def test_overlap_is_the_share_of_the_answers_words():
    assert overlap("get_name of x", "Get the NAME") == pytest.approx(2 / 3)
    assert overlap("anything", "") == 0


def test_every_pair_is_taken_once_an_epoch_whatever_the_step_asked_first():
    order = PairOrder(10, 4, seed=1)
    taken = [i for step in range(5) for i in order.indices(step)]
    assert sorted(taken[:10]) == list(range(10))
    assert sorted(taken[10:]) == list(range(10))
    assert PairOrder(10, 4, seed=1).indices(3) == taken[12:16]


def test_both_sides_share_the_prompt_and_close_with_the_end_token():
    chat = ChatFormat(make_tokenizer())
    pairs, left_out = encode_pairs(
        chat, [row("read", "the file", "a b c"), row("read " * 40, "x", "y")], longest=30
    )
    assert left_out == 1
    prompt = chat.prompt("read")
    assert pairs[0].group.prompt == prompt
    for ids, text in zip(pairs[0].group.answers, ("the file", "a b c"), strict=True):
        assert ids == [*chat.content(text), chat.end_id]
    with pytest.raises(DataError, match="no preference pair fits into 3 tokens"):
        encode_pairs(chat, [row("read", "the file", "a")], longest=3)


def test_paired_gives_mean_and_standard_error_of_the_differences():
    mean, error = paired([1.0, 1.0, 0.0, 0.5], [0.0, 1.0, 0.5, 0.5])
    assert mean == pytest.approx(0.125)
    assert error == pytest.approx((((0.875**2 + 0.125**2 * 2 + 0.625**2) / 3) / 4) ** 0.5)
    assert paired([1.0], [0.0]) == (1.0, 0.0)
