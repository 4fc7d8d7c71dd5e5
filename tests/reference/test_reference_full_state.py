"""reference.full_state_verify against plain Python loops, and what it must not touch."""

import pytest
import torch
from torch.testing import assert_close

from recoverssm import reference
from tests.reference import naive
from tests.reference.batches import bits, is_poison, make_batch

EXACT = {"rtol": 0, "atol": 1e-13}
T = 4


def make_pool(batch, table, num_accepted):
    """Slots of each row over positions; the source slot of each row holds a state, all others poison."""
    batch.table = torch.tensor(table, dtype=torch.int32)
    batch.num_accepted = torch.tensor(num_accepted, dtype=torch.int32)
    return batch


def run_full_state(batch):
    return reference.full_state_verify(
        batch.q, batch.k, batch.v, batch.raw_gate, batch.raw_beta, batch.states, batch.gate,
        batch.query_start_loc, batch.table, batch.num_accepted, out=batch.out,
    )  # fmt: skip


@pytest.mark.parametrize("lower_bound", [-5.0, None])
@pytest.mark.parametrize("query_lens", [[4, 4], [1, 3], [2, 1]], ids=str)
def test_outputs_and_the_state_after_every_token_match_plain_loops(query_lens, lower_bound):
    batch = make_pool(make_batch(query_lens, [2, 8], lower_bound=lower_bound), [[1, 2, 3, 4], [8, 7, 6, 5]], [2, 1])
    sources = [batch.states[2].tolist(), batch.states[8].tolist()]

    run_full_state(batch)

    for n, row in enumerate(batch.rows):
        outs, _, states = naive.window(sources[n], *batch.activations(batch, row), batch.gate)
        for t, token in enumerate(row):
            assert_close(batch.out[token], torch.tensor(outs[t], dtype=torch.float64), **EXACT)
            stored = batch.states[int(batch.table[n, t])]
            assert_close(stored, torch.tensor(states[t], dtype=torch.float64), **EXACT)


def test_slots_of_positions_past_the_query_len_keep_what_they_held():
    batch = make_pool(make_batch([2], [4]), [[1, 2, 3, 4]], [4])
    source = bits(batch.states[4])

    run_full_state(batch)

    assert torch.equal(bits(batch.states[4]), source)
    assert is_poison(batch.states[[0, 3, 5, 6, 7, 8]]).all()
    assert not batch.states[1:3].isnan().any()


def test_a_position_without_a_slot_is_computed_but_not_stored():
    whole = make_pool(make_batch([T], [1]), [[1, 2, 3, 4]], [1])
    holed = make_pool(make_batch([T], [1]), [[1, 0, -1, 4]], [1])

    run_full_state(whole)
    run_full_state(holed)

    assert torch.equal(holed.out[:T], whole.out[:T])
    assert torch.equal(holed.states[4], whole.states[4])
    assert is_poison(holed.states[[0, 2, 3, 5, 6, 7, 8]]).all()


@pytest.mark.parametrize("null", [0, -1])
def test_a_row_whose_source_is_null_outputs_zeros_and_stores_nothing(null):
    batch = make_pool(make_batch([T, T], [5, 5]), [[1, null, 3, 4], [5, 6, 7, 8]], [2, 1])

    run_full_state(batch)

    assert torch.equal(batch.out[:T], torch.zeros_like(batch.out[:T]))
    assert is_poison(batch.states[:5]).all()
    assert not batch.out[T : 2 * T].isnan().any()


@pytest.mark.parametrize(("given", "taken"), [(0, 1), (-3, 1), (9, T)])
def test_an_accepted_count_out_of_range_is_taken_as_the_nearest(given, taken):
    # Slot c + 1 is that of position c, so the slot read is the count taken.
    first, second = (make_pool(make_batch([T], [taken]), [[1, 2, 3, 4]], [count]) for count in (given, taken))

    run_full_state(first)
    run_full_state(second)

    assert torch.equal(bits(first.out), bits(second.out))
    assert not first.out[:T].isnan().any()


def test_the_running_state_is_not_rounded_between_the_tokens_of_a_window():
    low = make_pool(make_batch([T], [1], state_dtype=torch.bfloat16), [[1, 2, 3, 4]], [1])
    wide = make_pool(make_batch([T], [1]), [[1, 2, 3, 4]], [1])
    wide.states[1] = low.states[1].double()

    run_full_state(low)
    run_full_state(wide)

    assert torch.equal(low.states[1:5], wide.states[1:5].to(torch.bfloat16))
    assert torch.equal(bits(low.out), bits(wide.out))


def test_an_empty_batch_writes_nothing():
    batch = make_batch([], [])
    batch.table, batch.num_accepted = torch.zeros(0, T, dtype=torch.int32), torch.zeros(0, dtype=torch.int32)

    run_full_state(batch)

    assert is_poison(batch.out).all()
    assert is_poison(batch.states).all()
