"""reference.commit_state against the plain recurrence and against its own definition, and what it must not touch."""

import pytest
import torch
from torch.testing import assert_close

from recoverssm import reference
from recoverssm.types import CommitPlan, Records
from tests.reference import naive
from tests.reference.batches import bits, make_batch, make_gate, poison

EXACT = {"rtol": 0, "atol": 1e-13}
T = 4


def make_plan(lens, sources, finals):
    return CommitPlan(*(torch.tensor(x, dtype=torch.int32) for x in (lens, sources, finals)))


def verified(slots, lower_bound=-5.0, seed=0, **dtypes):
    """A batch with full windows whose records are written."""
    batch = make_batch([T] * len(slots), slots, lower_bound=lower_bound, seed=seed, **dtypes)
    reference.verify(
        batch.q, batch.k, batch.v, batch.raw_gate, batch.raw_beta, batch.states, batch.records, batch.gate,
        batch.query_start_loc, batch.state_indices, out=batch.out,
    )  # fmt: skip
    return batch


def stacked(gate):
    """The gate of one layer as the gate of a stack of one."""
    return type(gate)(gate.A_log[None], gate.dt_bias[None], gate.lower_bound)


def states_after(batch, n):
    """Plain recurrence: the state of row n after each of its tokens, [T][H, V, K]."""
    state = batch.states[int(batch.state_indices[n])].tolist()
    _, _, states = naive.window(state, *batch.activations(batch, batch.rows[n]), batch.gate)
    return torch.tensor(states, dtype=torch.float64)


@pytest.mark.parametrize("lower_bound", [-5.0, None])
@pytest.mark.parametrize("commit_len", range(1, T + 1))
def test_commit_gives_the_state_of_the_plain_recurrence(commit_len, lower_bound):
    batch = verified([3, 1], lower_bound)
    expected = [states_after(batch, n)[commit_len - 1] for n in range(2)]

    plan = make_plan([commit_len] * 2, [3, 1], [3, 1])
    reference.commit_state([batch.states], [batch.records], plan, stacked(batch.gate))

    assert_close(batch.states[3], expected[0], **EXACT)
    assert_close(batch.states[1], expected[1], **EXACT)


def test_rows_that_keep_nothing_and_slots_of_nobody_stay_bit_for_bit():
    batch = verified([3, 1, 2])
    before = bits(batch.states)

    reference.commit_state(
        [batch.states], [batch.records], make_plan([0, 2, 0], [0, 1, 0], [0, 1, 0]), stacked(batch.gate)
    )

    changed = [slot for slot in range(9) if not torch.equal(bits(batch.states[slot]), before[slot])]
    assert changed == [1]


def test_a_null_slot_is_never_read_nor_written():
    batch = verified([3, 1])
    before = bits(batch.states)

    reference.commit_state([batch.states], [batch.records], make_plan([2, 2], [0, 1], [3, 0]), stacked(batch.gate))

    assert torch.equal(bits(batch.states), before)


def test_records_from_the_commit_len_on_are_ignored():
    batch = verified([3])
    expected = states_after(batch, 0)[1]
    batch.records.correction[0, :, 2:] = poison(2, T - 2, 5)
    batch.records.key_gate[0, :, 2:] = poison(2, T - 2, 12)

    reference.commit_state([batch.states], [batch.records], make_plan([2], [3], [3]), stacked(batch.gate))

    assert_close(batch.states[3], expected, **EXACT)


def test_final_may_be_another_rows_source():
    batch = verified([1, 2])
    expected = [states_after(batch, 0)[2], states_after(batch, 1)[3]]

    reference.commit_state([batch.states], [batch.records], make_plan([3, 4], [1, 2], [2, 1]), stacked(batch.gate))

    assert_close(batch.states[2], expected[0], **EXACT)
    assert_close(batch.states[1], expected[1], **EXACT)


def test_each_layer_has_its_own_states_records_and_gate():
    layers = [verified([3], seed=seed) for seed in (1, 2)]
    expected = [states_after(batch, 0)[2] for batch in layers]
    gate = type(layers[0].gate)(
        torch.stack([b.gate.A_log for b in layers]), torch.stack([b.gate.dt_bias for b in layers]), -5.0
    )

    reference.commit_state([b.states for b in layers], [b.records for b in layers], make_plan([3], [3], [3]), gate)

    for batch, state in zip(layers, expected, strict=True):
        assert_close(batch.states[3], state, **EXACT)


def test_layers_that_do_not_match_are_refused():
    batch = verified([3])

    with pytest.raises(ValueError, match="shorter"):
        reference.commit_state(
            [batch.states] * 2, [batch.records], make_plan([1], [3], [3]), make_gate(2, 6, -5.0, None, num_layers=2)
        )


def test_a_16_bit_state_is_rounded_once_at_the_end_of_the_window():
    low = verified([3], dtype=torch.bfloat16, state_dtype=torch.bfloat16)
    wide = low.states.double()
    records = Records(low.records.correction.clone(), low.records.key_gate.clone())
    plan = make_plan([4], [3], [3])

    reference.commit_state([low.states], [low.records], plan, stacked(low.gate))
    reference.commit_state([wide], [records], plan, stacked(low.gate))

    assert torch.equal(low.states[3], wide[3].to(torch.bfloat16))


@pytest.mark.parametrize("raw_gate", [-1e4, 1e4])
def test_extreme_gates_give_finite_states(raw_gate):
    batch = make_batch([T], [1], lower_bound=None)
    batch.raw_gate[:T] = raw_gate
    reference.verify(
        batch.q, batch.k, batch.v, batch.raw_gate, batch.raw_beta, batch.states, batch.records, batch.gate,
        batch.query_start_loc, batch.state_indices, out=batch.out,
    )  # fmt: skip
    expected = states_after(batch, 0)[-1]

    reference.commit_state([batch.states], [batch.records], make_plan([T], [1], [1]), stacked(batch.gate))

    assert_close(batch.states[1], expected, **EXACT)
