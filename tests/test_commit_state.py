"""commit_state against the float64 reference."""

from dataclasses import replace

import pytest
import torch

from recoverssm import CommitPlan, LayerTable, Records, ShapeError, commit_state, reference
from tests.windows import (
    FP32_TOL,
    FULL,
    NULL_SLOTS,
    RAGGED,
    WINDOW_CASES,
    Window,
    assert_gaps_untouched,
    assert_matches,
    float64_twin,
    int32,
    storage_bits,
    tol,
)


def fill_records(window):
    """Records as the reference's verify leaves them; positions past a row's tokens stay NaN."""
    for layer, records in enumerate(window.records):
        reference.verify(
            *window.activations,
            window.checkpoint_states[layer],
            records,
            window.layer_gate(layer),
            window.query_start_loc,
            window.state_indices,
        )


def run_commit(window, plan, boundaries=None, record_rows=None):
    commit_state(
        LayerTable.of("checkpoint_states", window.checkpoint_states),
        LayerTable.of("corrections", [r.correction for r in window.records]),
        LayerTable.of("key_gates", [r.key_gate for r in window.records]),
        plan,
        window.gate,
        by_slot=window.case.by_slot,
        record_rows=record_rows,
        boundaries=boundaries,
    )


def expect_commit(window, plan, boundaries=None):
    states = [float64_twin(state) for state in window.checkpoint_states]
    reference.commit_state(states, window.records, plan, window.gate, boundaries=boundaries)
    return states


@pytest.mark.parametrize("case", [replace(case, num_layers=2) for case in WINDOW_CASES], ids=str)
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_commit_state_matches_reference(case, share, device):
    window = Window(case, device)
    fill_records(window)
    live = [n if slot > 0 else 0 for n, slot in zip(case.query_lens, case.slots, strict=True)]
    plan = window.plan([round(n * share) for n in live])
    expected = expect_commit(window, plan)

    run_commit(window, plan)

    for layer in range(case.num_layers):
        assert_matches("state", window.checkpoint_states[layer], expected[layer], tol(case.state_dtype, device))


@pytest.mark.parametrize("case", [FULL, RAGGED, NULL_SLOTS], ids=str)
def test_rejected_window_leaves_every_state_untouched(case, device):
    window = Window(case, device)
    fill_records(window)
    before = storage_bits(window.checkpoint_states[0])

    run_commit(window, window.plan([0] * len(case.slots)))

    assert torch.equal(storage_bits(window.checkpoint_states[0]), before)


def test_commit_state_leaves_padding_and_records_bit_for_bit(device):
    window = Window(RAGGED, device)
    fill_records(window)
    records = storage_bits(window.records[0].correction), storage_bits(window.records[0].key_gate)
    state = storage_bits(window.checkpoint_states[0])

    run_commit(window, window.plan([8, 0, 2, 1, 1]))

    assert_gaps_untouched("state", window.checkpoint_states[0], state)
    assert torch.equal(storage_bits(window.records[0].correction), records[0])
    assert torch.equal(storage_bits(window.records[0].key_gate), records[1])


def test_final_slot_may_differ_from_source(device):
    window = Window(FULL, device)
    fill_records(window)
    plan = window.plan([2, 4, 1], final_slots=[2, 4, 5])
    sources = window.checkpoint_states[0][[3, 1]].clone()
    expected = expect_commit(window, plan)

    run_commit(window, plan)

    assert_matches("state", window.checkpoint_states[0], expected[0], FP32_TOL)
    assert torch.equal(window.checkpoint_states[0][[3, 1]], sources)


def test_unaligned_pools_take_a_correct_path(device):
    window = Window(FULL, device)
    fill_records(window)
    shape = window.checkpoint_states[0].shape
    storage = torch.full((shape.numel() + 1,), float("nan"), device=device)
    window.checkpoint_states[0] = storage[1:].view(shape).copy_(window.checkpoint_states[0])
    plan = window.plan([3, 4, 1])
    expected = expect_commit(window, plan)
    assert not LayerTable.of("checkpoint_states", window.checkpoint_states).aligned

    run_commit(window, plan)

    assert_matches("state", window.checkpoint_states[0], expected[0], FP32_TOL)


def test_layers_may_lie_apart_by_different_strides(device):
    window = Window(replace(FULL, num_layers=2), device)
    fill_records(window)
    window.checkpoint_states[1] = window.checkpoint_states[1].clone()
    window.records[1] = Records(window.records[1].correction.clone(), window.records[1].key_gate.clone())
    assert window.checkpoint_states[0].stride(0) != window.checkpoint_states[1].stride(0)
    plan = window.plan([3, 4, 1])
    expected = expect_commit(window, plan)

    run_commit(window, plan)

    for layer in range(2):
        assert_matches("state", window.checkpoint_states[layer], expected[layer], FP32_TOL)


@pytest.mark.parametrize(("source_slot", "final_slot"), [(0, 3), (-1, 3), (3, 0), (3, -1)])
def test_rows_without_source_or_final_slot_leave_every_state_untouched(source_slot, final_slot, device):
    window = Window(FULL, device)
    fill_records(window)
    window.checkpoint_states[0][0] = 1.0
    before = storage_bits(window.checkpoint_states[0])
    none = int32([0, 0], device)

    run_commit(
        window,
        CommitPlan(
            int32([2, 0, 0], device),
            torch.cat((int32([source_slot], device), none)),
            torch.cat((int32([final_slot], device), none)),
        ),
    )

    assert torch.equal(storage_bits(window.checkpoint_states[0]), before)


def test_rows_of_length_zero_are_left_alone_whatever_slots_they_name(device):
    window = Window(FULL, device)
    fill_records(window)
    before = storage_bits(window.checkpoint_states[0])

    run_commit(window, window.plan([0, 0, 0], final_slots=[2, 4, 5]))

    assert torch.equal(storage_bits(window.checkpoint_states[0]), before)


def test_records_of_more_positions_than_two_of_the_longest_windows_are_refused(device):
    window = Window(replace(FULL, spec_query_len=33), device)

    with pytest.raises(ShapeError, match="corrections: C: expected 1 to 32 token positions, got 33"):
        run_commit(window, window.plan([1, 1, 1]))


def test_commit_lens_beyond_the_window_stop_at_the_window(device):
    """A hand-made plan is the caller's fault; the kernel must not read past the records."""
    window = Window(FULL, device)
    fill_records(window)
    expected = expect_commit(window, window.plan([4, 4, 4]))

    run_commit(window, window.plan([9, 4, 5]))

    assert_matches("state", window.checkpoint_states[0], expected[0], FP32_TOL)
