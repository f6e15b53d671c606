import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posttrain import make_model
from trainwright.stages.instruct.chat import Rendered
from trainwright.stages.instruct.loss import answer_nll, mean_answer_loss
from trainwright.stages.instruct.packing import PackedOrder, collate, pack


def chat(*ids: int, answer_from: int) -> Rendered:
    return Rendered(list(ids), [i >= answer_from for i in range(len(ids))])


CHATS = [
    chat(1, 10, 11, 12, 5, answer_from=3),
    chat(1, 20, 21, 5, answer_from=2),
    chat(1, 30, 31, 32, 33, 34, 5, answer_from=4),
]


def test_targets_are_the_next_tokens_of_the_answers_and_cross_no_border():
    batch = collate([CHATS])
    assert batch.ids.tolist() == [[i for c in CHATS for i in c.ids]]
    no = -100
    assert batch.targets.tolist() == [[no, no, 12, 5, no, no, 21, 5, no, no, no, no, 33, 34, 5, no]]
    assert batch.positions.tolist() == [[*range(5), *range(4), *range(7)]]
    assert batch.answer_tokens == sum(sum(c.answer) for c in CHATS)


def test_attention_stays_within_a_chat_and_looks_back_only():
    seen = collate([CHATS[:2]]).attention()[0, 0]
    owner = [0] * 5 + [1] * 4
    for i in range(9):
        for j in range(9):
            assert bool(seen[i, j]) == (owner[i] == owner[j] and j <= i)


def test_changing_a_chat_leaves_its_neighbours_logits_bitwise_alone():
    model = make_model(64)
    other = [chat(1, 40, 41, 42, 5, answer_from=3), *CHATS[1:]]

    def logits(chats):
        batch = collate([chats])
        return model(
            input_ids=batch.ids, position_ids=batch.positions, attention_mask=batch.attention()
        ).logits

    one, two = logits(CHATS), logits(other)
    assert not torch.equal(one[:, 1:5], two[:, 1:5])
    assert torch.equal(one[:, 5:], two[:, 5:])


def test_packed_loss_equals_the_mean_over_chats_alone():
    model = make_model(64).double()
    total, tokens = 0.0, 0
    for one in CHATS:
        ids = torch.tensor([one.ids])
        logprobs = model(input_ids=ids).logits[0].log_softmax(-1)
        for at in range(1, len(one.ids)):
            if one.answer[at]:
                total -= float(logprobs[at - 1, one.ids[at]])
                tokens += 1
    assert abs(float(answer_nll(model, collate([CHATS]))) - total) < 1e-5
    found = mean_answer_loss(model, CHATS, row_tokens=9, rows=1, device=torch.device("cpu"))
    assert abs(found - total / tokens) < 1e-6


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=60))
def test_packing_keeps_every_item_once_in_order_within_the_row(lengths):
    rows = pack(lengths, range(len(lengths)), 20)
    assert [i for row in rows for i in row] == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in row) <= 20 for row in rows)


def test_a_steps_batch_is_a_function_of_the_step_alone():
    def order():
        return PackedOrder(CHATS, row_tokens=16, batch_rows=2, seed=3)

    straight = order()
    seen = [straight.batch(step) for step in range(6)]
    for step in (5, 0, 3):
        assert torch.equal(order().batch(step).ids, seen[step].ids)


def test_an_epoch_takes_every_chat_once():
    order = PackedOrder(CHATS, row_tokens=7, batch_rows=1, seed=0)
    rows = [tuple(i for i in order.batch(step).ids[0].tolist() if i) for step in range(6)]
    once = sorted(tuple(c.ids) for c in CHATS)
    assert sorted(rows[:3]) == once
    assert sorted(rows[3:]) == once
