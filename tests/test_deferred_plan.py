"""Who is committed now and who waits, by the op and by the reference."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recoverssm import ArgumentError, CommitPlan, RecordRows, ShapeError, defer_plan, reference
from tests.waiting import Waiting
from tests.windows import FULL, int32

ROWS = st.tuples(
    st.integers(0, 4),  # accepted
    st.integers(0, 4),  # waited before
    st.sampled_from([(1, 1), (2, 2), (1, 3), (0, 0)]),  # source and final slot
    st.sampled_from([[0, 0], [1, 0], [1, 3]]),  # boundaries
)


@given(rows=st.lists(ROWS, max_size=6), has_boundaries=st.booleans(), has_history=st.booleans(), data=st.data())
def test_rows_wait_that_stay_in_their_slot_and_end_no_block_and_have_room(rows, has_boundaries, has_history, data):
    """Up to four tokens; else these and what waited are committed, and boundaries lie as much further on."""
    rows = [(a, h * has_history, slots if a else (0, 0), ends if a else [0, 0]) for a, h, slots, ends in rows]
    lens, waited, slots, crossed = zip(*rows, strict=True) if rows else ([], [], [], [])
    entries = data.draw(st.permutations([-1, *range(8)]))[: len(rows)]
    plan = CommitPlan(
        int32(lens, "cpu"), *(int32(side, "cpu") for side in (zip(*slots, strict=True) if rows else [[]] * 2))
    )
    record_rows = RecordRows(int32(entries, "cpu"), int32(waited, "cpu") if has_history else None)
    results = []
    for run in (defer_plan, reference.defer_plan):
        waiting, now, ends_now = (int32([9] * size, "cpu") for size in (8, len(rows), 2 * len(rows)))
        options = {"history_len": 4}
        if has_boundaries:
            ends = int32(crossed, "cpu").view(-1, 2)
            options |= {"boundary_lens": ends, "boundary_lens_now": ends_now.view(-1, 2)}
        run(plan, record_rows, waiting, now, **options)
        results.append((waiting.tolist(), now.tolist(), ends_now.view(-1, 2).tolist()))

    assert results[0] == results[1]
    waiting, now, ends_now = results[0]
    for entry, (a, h, (source, final), ends), left, ends_left in zip(entries, rows, now, ends_now, strict=True):
        stays = source == final > 0 and not (has_boundaries and any(ends))
        waits = a == 0 or (stays and a + h <= 4)
        if entry >= 0:
            assert (waiting[entry], left) == ((a + h, 0) if waits else (0, a + h))
        assert entry >= 0 or left == 0
        assert ends_left == ([length and length + h for length in ends] if has_boundaries else [9, 9])
    assert all(n == 9 for entry, n in enumerate(waiting) if entry not in entries)


def test_half_of_what_boundaries_need_is_refused_and_so_is_room_that_no_verify_has():
    one = int32([1], "cpu")
    call = (CommitPlan(one, one, one), RecordRows(one), one, one.clone())
    for name in ("boundary_lens", "boundary_lens_now"):
        with pytest.raises(ArgumentError, match="boundary_lens, boundary_lens_now: expected both or neither"):
            defer_plan(*call, history_len=4, **{name: one[:, None]})
    with pytest.raises(ShapeError, match="history_len: expected 0 to 16 tokens that may wait, got 17"):
        defer_plan(*call, history_len=17)
    held = Waiting(FULL, "cpu", [0, 0, 0])
    held.records = replace(held.records, history_len=17)
    with pytest.raises(ShapeError, match=r"records\.history_len: expected 0 to 16 tokens that may wait, got 17"):
        held.verify()
