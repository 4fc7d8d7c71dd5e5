"""reference.verify against plain Python loops, and what it must not touch."""

import pytest
import torch
from torch.testing import assert_close

from recoverssm import reference
from recoverssm.reference.recurrence import kda_log_decay
from recoverssm.types import GateParams
from tests.reference import naive
from tests.reference.batches import bits, is_poison, make_batch

EXACT = {"rtol": 0, "atol": 1e-13}
"""float64 sums of a few terms of order one, in another order."""

LOWER_BOUNDS = [-5.0, -0.5, None]


def run_verify(batch, out="given"):
    return reference.verify(
        batch.q,
        batch.k,
        batch.v,
        batch.raw_gate,
        batch.raw_beta,
        batch.states,
        batch.records,
        batch.gate,
        batch.query_start_loc,
        batch.state_indices,
        out=batch.out if out == "given" else out,
    )


@pytest.mark.parametrize("lower_bound", LOWER_BOUNDS)
@pytest.mark.parametrize(
    ("query_lens", "slots"),
    [([4], [1]), ([4, 4, 4], [3, 1, 2]), ([1, 4, 0, 2, 3], [5, 2, 1, 8, 3]), ([1, 1], [1, 2])],
    ids=["one row", "full", "ragged", "draftless"],
)
def test_verify_matches_plain_loops(query_lens, slots, lower_bound):
    batch = make_batch(query_lens, slots, lower_bound=lower_bound)

    returned = run_verify(batch)

    assert returned is batch.out
    for n, row in enumerate(batch.rows):
        state = batch.states[slots[n]].tolist()
        outs, corrections, _ = naive.window(state, *batch.activations(batch, row), batch.gate)
        for t, token in enumerate(row):
            assert_close(batch.out[token], torch.tensor(outs[t], dtype=torch.float64), **EXACT)
            recorded = batch.records.correction[n, :, t]
            assert_close(recorded, torch.tensor(corrections[t], dtype=torch.float64), **EXACT)


def test_verify_records_the_raw_key_and_the_raw_gate_bit_for_bit():
    batch = make_batch([4, 2], [1, 2])

    run_verify(batch)

    for n, row in enumerate(batch.rows):
        for t, token in enumerate(row):
            expected = torch.cat((batch.k[token], batch.raw_gate[token]), dim=-1)
            assert torch.equal(bits(batch.records.key_gate[n, :, t]), bits(expected))


def test_verify_leaves_every_checkpoint_untouched():
    batch = make_batch([4, 1, 0, 3], [1, 0, 2, 5])
    before = bits(batch.states)

    run_verify(batch)

    assert torch.equal(bits(batch.states), before)


def test_positions_past_the_query_len_and_rows_of_nobody_keep_their_poison():
    batch = make_batch([1, 0, 3], [1, 2, 3])

    run_verify(batch)

    for n, row in enumerate(batch.rows):
        assert is_poison(batch.records.correction[n, :, len(row) :]).all()
        assert is_poison(batch.records.key_gate[n, :, len(row) :]).all()
    assert is_poison(batch.records.correction[3]).all()
    assert is_poison(batch.records.key_gate[3]).all()
    assert is_poison(batch.out[4:]).all()
    assert not batch.out[:4].isnan().any()


@pytest.mark.parametrize("null", [0, -1, -7])
def test_a_row_without_a_slot_outputs_zeros_and_records_nothing(null):
    batch = make_batch([2, 3, 4], [1, null, 2])

    run_verify(batch)

    assert torch.equal(batch.out[2:5], torch.zeros_like(batch.out[2:5]))
    assert is_poison(batch.records.correction[1]).all()
    assert is_poison(batch.records.key_gate[1]).all()
    assert not batch.out[:2].isnan().any()
    assert not batch.out[5:9].isnan().any()


def test_a_row_longer_than_the_records_uses_its_first_tokens():
    long = make_batch([6], [1], spec_query_len=4)
    short = make_batch([6], [1], spec_query_len=4)
    short.query_start_loc = torch.tensor([0, 4], dtype=torch.int32)

    run_verify(long)
    run_verify(short)

    assert torch.equal(bits(long.out), bits(short.out))
    assert is_poison(long.out[4:]).all()


def test_without_out_a_new_tensor_is_returned():
    batch = make_batch([4, 2], [1, 2])

    returned = run_verify(batch, out=None)

    assert torch.equal(returned[:6], run_verify(batch)[:6])
    assert torch.equal(returned[6:], torch.zeros_like(returned[6:]))


@pytest.mark.parametrize(("query_lens", "slots"), [([], []), ([0, 0], [1, 2])], ids=["no rows", "no tokens"])
def test_an_empty_batch_writes_nothing(query_lens, slots):
    batch = make_batch(query_lens, slots)

    run_verify(batch)

    assert is_poison(batch.out).all()
    assert is_poison(batch.records.correction).all()


def test_low_precision_tensors_get_the_float64_answer_rounded_at_the_end():
    low = make_batch([4, 2], [1, 2], dtype=torch.bfloat16, state_dtype=torch.bfloat16, record_dtype=torch.float32)
    wide = make_batch([4, 2], [1, 2])
    for name in ("q", "k", "v", "raw_gate", "raw_beta", "states"):
        setattr(wide, name, getattr(low, name).double())

    run_verify(low)
    run_verify(wide)

    assert torch.equal(low.out[:6], wide.out[:6].to(torch.bfloat16))
    assert torch.equal(low.records.correction[0], wide.records.correction[0].float())


def test_unbounded_gate_is_linear_above_twenty():
    gate = GateParams(torch.zeros(1, dtype=torch.float64), torch.zeros(1, 3, dtype=torch.float64), None)
    raw_gate = torch.tensor([[20.5, 1000.0, -1000.0]], dtype=torch.float64)

    assert kda_log_decay(raw_gate, gate).tolist() == [[-20.5, -1000.0, 0.0]]


@pytest.mark.parametrize("lower_bound", LOWER_BOUNDS)
def test_gate_matches_the_plain_formula(lower_bound):
    batch = make_batch([4], [1], lower_bound=lower_bound)

    log_decay = kda_log_decay(batch.raw_gate[:4], batch.gate)

    for t in range(4):
        for h in range(2):
            for c in range(6):
                expected = naive.gate(
                    float(batch.raw_gate[t, h, c]),
                    float(batch.gate.A_log[h]),
                    float(batch.gate.dt_bias[h, c]),
                    lower_bound,
                )
                assert abs(float(log_decay[t, h, c]) - expected) < 1e-14
                assert expected < 0
