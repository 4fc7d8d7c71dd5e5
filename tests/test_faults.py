"""What ``debug`` finds: faults that only the device's data shows, by row and by name, before anything is launched."""

from dataclasses import replace

import pytest
import torch

from recoverssm import AlignInputs, ArgumentError, Boundaries, CommitContext, CommitPlan, ShapeError
from recoverssm.faults import check_counts, check_rows, check_written
from tests.test_commit_state import fill_records
from tests.test_verify import run_verify
from tests.windows import FULL, NULL_SLOTS, RAGGED, Window, int32, storage_bits

P = 8


def rows(values):
    return int32(values, "cpu")


@pytest.mark.parametrize("case", [FULL, RAGGED, NULL_SLOTS, replace(FULL, by_slot=True)], ids=str)
def test_debug_lets_valid_windows_pass_and_gives_the_same_bits(case):
    plain, debugged = Window(case, "cpu"), Window(case, "cpu")

    run_verify(plain)
    run_verify(debugged, debug=True)

    assert torch.equal(storage_bits(plain.out), storage_bits(debugged.out))


BAD_ROWS = [
    ("state_indices", [3, 99, 5], r"state_indices\[1\]: expected a slot below P=7, the pool, or 0 for none, got 99"),
    ("state_indices", [3, 1, 3], r"state_indices: expected a slot of its own for every row, got 3 for row 0 and 2"),
    ("query_start_loc", [0, 8, 4, 12], r"query_start_loc: .* do not decrease, got 8 to 4 for row 1"),
    ("query_start_loc", [-1, 4, 8, 12], r"query_start_loc: expected starts from 0 on .* got -1 to 4 for row 0"),
    ("query_start_loc", [0, 4, 8, 13], r"query_start_loc: expected to end at no more than M=12 tokens, got 13"),
]


@pytest.mark.parametrize(("name", "values", "message"), BAD_ROWS)
def test_verify_names_the_row_before_it_launches(name, values, message):
    window = Window(FULL, "cpu")
    setattr(window, name, rows(values))

    with pytest.raises(ArgumentError, match=message):
        run_verify(window, debug=True)

    assert window.out.isnan().all()


def test_what_are_no_rows_at_all_is_refused_as_ever():
    window = Window(FULL, "cpu")
    window.state_indices = window.state_indices[None]

    with pytest.raises(ShapeError, match=r"state_indices: expected \[N\], got \[1, 3\]"):
        run_verify(window, debug=True)


def make_context(window, **options):
    return CommitContext(
        window.checkpoint_states, window.records, [], window.gate, max_num_rows=3, debug=True, **options
    )


@pytest.mark.parametrize(
    ("counts", "slots", "message"),
    [
        ([1, 5, 1], [3, 1, 5], r"num_sampled\[1\]: expected 0 to 4, the tokens of row 1 \(state slot 1\), got 5"),
        ([1, 1, 1], [3, 1, 7], r"state_indices\[2\]: expected a slot below P=7"),
    ],
)
def test_a_context_names_the_row_before_anything_is_committed(counts, slots, message):
    window = Window(FULL, "cpu")
    fill_records(window)
    before = storage_bits(window.checkpoint_states[0])

    with pytest.raises(ArgumentError, match=message):
        make_context(window).commit(rows(counts), window.query_start_loc, rows(slots))

    assert torch.equal(storage_bits(window.checkpoint_states[0]), before)


def test_a_context_names_blocks_outside_the_pool():
    window = Window(FULL, "cpu")
    fill_records(window)
    before = storage_bits(window.checkpoint_states[0])
    table = rows([[3, 0], [2, 70], [5, 0]])
    align = AlignInputs(rows([0, 6, 0]), table, 8, rows([0, 0, 0]))

    with pytest.raises(ArgumentError, match=r"plan: row 1: expected a slot below P=7, the pool, or 0 for none, got 70"):
        make_context(window, block_size=8).commit(
            rows([2, 3, 2]), window.query_start_loc, window.state_indices, align=align
        )

    assert torch.equal(storage_bits(window.checkpoint_states[0]), before)


def test_a_context_commits_what_has_no_fault(device):
    window, plain = Window(FULL, device), Window(FULL, device)
    for each in (window, plain):
        fill_records(each)
    counts = int32([2, 0, 4], device)

    make_context(window).commit(counts, window.query_start_loc, window.state_indices)
    CommitContext(plain.checkpoint_states, plain.records, [], plain.gate, max_num_rows=3).commit(
        counts, plain.query_start_loc, plain.state_indices
    )

    assert torch.equal(*(storage_bits(each.checkpoint_states[0]) for each in (window, plain)))


def test_rows_without_tokens_or_slot_may_share_theirs():
    check_rows(rows([0, 4, 4, 8]), rows([3, 3, 0]), num_slots=P)
    check_rows(rows([0, 4, 8, 8]), rows([0, -1, -1]), num_slots=P)


@pytest.mark.parametrize(
    ("counts", "requests", "message"),
    [
        ([5, 1, 1], None, r"num_sampled\[0\]: expected 0 to 4, the tokens of row 0 \(state slot 3\), got 5"),
        ([1, -1, 1], None, r"num_sampled\[1\]: expected 0 to 2, the tokens of row 1 \(state slot 1\), got -1"),
        ([1, 3], [0, 1, 0], r"num_sampled\[1\]: expected 0 to 2, .* row 1 .* got 3"),
        ([1, 1], [0, 2, 0], r"num_sampled: expected a count for request row 2 of row 1, got 2 counts"),
        ([1, 1, 6], None, r"num_sampled\[2\]: expected 0 to 4, .* row 2 .* got 6"),
    ],
)
def test_a_count_that_its_window_does_not_hold_is_named(counts, requests, message):
    starts, slots = rows([0, 4, 6, 12]), rows([3, 1, 5])  # the last row is longer than the window of 4

    with pytest.raises(ArgumentError, match=message):
        check_counts(rows(counts), starts, slots, requests and rows(requests), spec_query_len=4)


def test_counts_of_rows_that_commit_leaves_alone_may_be_anything():
    starts, slots = rows([0, 4, 8, 8, 12]), rows([3, 0, 5, 6])  # no slot, no tokens, padding
    requests = rows([0, 1, 2, -1])

    check_counts(rows([4, 99, 99]), starts, slots, requests, spec_query_len=4)


@pytest.mark.parametrize(
    ("sources", "finals", "boundaries", "message"),
    [
        ([1, 2], [1, 8], None, r"plan: row 1: expected a slot below P=8"),
        ([1, 2], [1, 2], [[0], [9]], r"plan: row 1: expected a slot below P=8, the pool, or 0 for none, got 9"),
        ([1, 2], [3, 3], None, r"plan: expected slot 3 to be one row's, got rows 0 and 1"),
        ([1, 2], [1, 1], None, r"plan: expected slot 1 to be one row's, got rows 0 and 1"),
        ([1, 2], [2, 4], None, r"plan: expected slot 2 to be one row's, got rows 1 and 0"),
        ([1, 2], [3, 4], [[5, 0], [0, 5]], r"plan: expected slot 5 to be one row's, got rows 0 and 1"),
        ([1, 2], [3, 2], [[0, 1], [0, 2]], r"plan: expected no boundary of row 0 in its source slot 1"),
    ],
)
def test_a_plan_that_writes_what_it_must_not_is_named(sources, finals, boundaries, message):
    plan = CommitPlan(rows([1, 1]), rows(sources), rows(finals))
    crossed = boundaries and Boundaries(rows(boundaries), rows(boundaries))

    with pytest.raises(ArgumentError, match=message):
        check_written(plan, crossed, num_slots=P)


def test_a_row_may_write_its_source_and_its_boundary_twice():
    plan = CommitPlan(rows([2, 0, 2]), rows([1, 0, 4]), rows([1, 0, 5]))

    check_written(plan, Boundaries(rows([[2], [0], [1]]), rows([[1], [0], [6]])), num_slots=P)
