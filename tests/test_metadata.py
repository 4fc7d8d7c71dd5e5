"""MetadataBuilder: every speculative row gets its tokens, its request and its slot, against a reading row by row."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recoverssm import ArgumentError, MetadataBuilder, RecoverSSMConfig, RequestBatch, ShapeError, StepError

T = 4
MAX_ROWS = 12
NUM_SLOTS = 64


def builder(*, graphs=(), stages=1, draft_tokens=T - 1, max_rows=MAX_ROWS, device="cpu"):
    config = RecoverSSMConfig(
        num_heads=1,
        draft_tokens=draft_tokens,
        max_num_requests=max_rows,
        cuda_graph_sizes=graphs,
        pipeline_parallel=stages,
    )
    return MetadataBuilder(config, num_state_slots=NUM_SLOTS, device=device)


def batch(*rows, first_slot=1):
    """Rows are (query_len, num_drafts, is_prefilling); state slots count down, request slots up, unlike rows."""
    lens, drafts, prefilling = zip(*rows, strict=True) if rows else ((), (), ())
    return RequestBatch(
        query_lens=lens,
        num_drafts=drafts,
        is_prefilling=prefilling,
        state_slots=[first_slot + len(rows) - 1 - row for row in range(len(rows))],
        request_slots=[20 + row for row in range(len(rows))],
    )


DECODE, DRAFTLESS, PREFILL, LAST_PROMPT_TOKEN, NOT_SCHEDULED = (
    (T, T - 1, False),
    (1, -1, False),
    (9, -1, True),
    (1, -1, True),
    (0, -1, False),
)


def tokens_of(selected, num_tokens):
    return torch.arange(num_tokens)[selected].tolist()


def test_a_decode_without_drafts_stays_on_the_path_of_those_with_drafts():
    step = builder().build(batch(DRAFTLESS, DECODE, (1, 0, False)))

    assert step.spec_request_rows == (0, 1, 2)
    assert step.query_start_loc.tolist() == [0, 1, 5, 6]
    assert step.other_request_rows == ()


def test_the_last_token_of_a_prompt_goes_to_prefill_although_it_is_one_token():
    step = builder().build(batch(LAST_PROMPT_TOKEN, DRAFTLESS))

    assert step.spec_request_rows == (1,)
    assert step.other_request_rows == (0,)
    assert step.long_request_rows == ()


def test_a_mixed_batch_is_split_with_starts_of_their_own():
    step = builder().build(batch(DECODE, PREFILL, DRAFTLESS, NOT_SCHEDULED, (2, -1, True)))

    assert step.spec_request_rows == (0, 2)
    assert step.request_rows.tolist() == [0, 2]
    assert step.request_slots.tolist() == [20, 22]
    assert step.state_indices.tolist() == [5, 3]
    assert step.query_start_loc.tolist() == [0, 4, 5]
    assert tokens_of(step.spec_tokens, 16) == [0, 1, 2, 3, 13]
    assert step.other_request_rows == (1, 4)
    assert step.other_query_start_loc.tolist() == [0, 9, 11]
    assert tokens_of(step.other_tokens, 16) == [*range(4, 13), 14, 15]


def test_tokens_that_are_neighbours_are_a_slice():
    step = builder().build(batch(PREFILL, DECODE, NOT_SCHEDULED, DRAFTLESS, PREFILL))

    assert step.spec_tokens == slice(9, 14)
    assert isinstance(step.other_tokens, torch.Tensor)


@pytest.mark.parametrize(
    ("rows", "spec", "others"),
    [
        ([], 0, 0),
        ([PREFILL, LAST_PROMPT_TOKEN], 0, 2),
        ([DRAFTLESS, DRAFTLESS], 2, 0),
        ([NOT_SCHEDULED], 0, 0),
    ],
    ids=["empty", "prefill alone", "decode alone", "nothing scheduled"],
)
def test_batches_without_the_one_or_the_other_kind_are_built(rows, spec, others):
    step = builder(graphs=(4,)).build(batch(*rows))

    assert step.num_spec_rows == spec
    assert len(step.other_request_rows) == others
    assert step.query_start_loc.shape[0] == step.state_indices.shape[0] + 1


def test_a_row_longer_than_the_window_is_routed_out_and_leaves_the_others_alone():
    step = builder().build(batch(DECODE, (T + 1, T, False), DRAFTLESS))

    assert step.spec_request_rows == (0, 2)
    assert step.long_request_rows == step.other_request_rows == (1,)
    assert step.query_start_loc.tolist() == [0, 4, 5]
    assert tokens_of(step.spec_tokens, 10) == [0, 1, 2, 3, 9]


def test_every_size_of_a_capture_has_metadata_also_with_rows_longer_than_the_window():
    """48 requests of 8 drafts, captures of up to 512 tokens: 11 tokens in a row."""
    sizes = (1, 2, 4, 8, 16, 24, 32, 40, 48)
    makes = builder(graphs=sizes, draft_tokens=8, max_rows=48)

    for tokens in (1, 2, 4, *range(8, 513, 8)):
        rows = min(tokens, 48)
        step = makes.build_dummy(rows, query_len=-(-tokens // rows))
        assert step.is_dummy
        assert step.query_start_loc.diff().max() <= 9 if step.num_spec_rows else len(step.long_request_rows) == rows
    for rows in sizes:
        step = makes.build_dummy(rows)
        assert step.graph_size == step.state_indices.shape[0] == rows
        assert step.query_start_loc[-1] == 9 * rows
        assert not step.state_indices.any()
        assert step.request_rows.unique().tolist() == step.request_slots.unique().tolist() == [-1]


def test_padding_rows_have_no_slot_no_tokens_and_no_request():
    step = builder(graphs=(1, 4, 8)).build(batch(DECODE, DRAFTLESS, DECODE, DRAFTLESS, (2, 1, False)))

    assert step.graph_size == 8
    assert step.state_indices.tolist() == [5, 4, 3, 2, 1, 0, 0, 0]
    assert step.query_start_loc.tolist() == [0, 4, 5, 9, 10, 12, 12, 12, 12]
    assert step.request_rows.tolist() == [0, 1, 2, 3, 4, -1, -1, -1]
    assert step.request_slots.tolist() == [20, 21, 22, 23, 24, -1, -1, -1]
    assert (step.num_spec_rows, step.num_spec_tokens) == (5, 12)


@pytest.mark.parametrize(
    ("rows", "pad"), [([DECODE] * 9, True), ([DECODE, PREFILL], True), ([DECODE], False)], ids=["large", "mixed", "off"]
)
def test_a_batch_that_no_graph_fits_is_not_padded(rows, pad):
    step = builder(graphs=(4, 8)).build(batch(*rows), pad=pad)

    assert step.graph_size is None
    assert step.state_indices.shape[0] == step.num_spec_rows


def test_a_captured_batch_finds_later_steps_at_its_own_addresses():
    makes = builder(graphs=(4, 8))
    captured = makes.build_dummy(8)
    makes.build_dummy(4)

    step = makes.build(batch(*[DECODE] * 6))

    for name in ("state_indices", "query_start_loc", "request_rows", "request_slots"):
        assert getattr(step, name).data_ptr() == getattr(captured, name).data_ptr()
        assert getattr(step, name).data_ptr() % 16 == 0


def test_a_step_keeps_its_buffers_until_it_is_released():
    makes = builder()
    first = makes.build(batch(DECODE, DRAFTLESS))

    with pytest.raises(StepError, match=r"step 2: step 1 has been neither committed nor discarded; .* discard_step"):
        makes.build(batch(DECODE))
    with pytest.raises(StepError, match="dummy step: step 1 has been neither"):
        makes.build_dummy(2)
    assert first.state_indices.tolist() == [2, 1]

    first.release()
    makes.build(batch(DRAFTLESS))
    first.release()  # it owns nothing any more, and takes nothing from its successor
    with pytest.raises(StepError, match="step 2 has been neither"):
        makes.build(batch(DECODE))


def test_a_pipeline_has_buffers_for_each_of_its_stages():
    makes = builder(stages=2)
    first, second = makes.build(batch(DECODE, DRAFTLESS)), makes.build(batch(DRAFTLESS, first_slot=9))

    assert (first.lane, second.lane) == (0, 1)
    assert first.state_indices.tolist() == [2, 1]
    assert second.state_indices.tolist() == [9]
    with pytest.raises(StepError, match="step 1 and step 2 has been neither"):
        makes.build(batch())

    first.release()
    assert makes.build(batch(DECODE, first_slot=12)).lane == 0
    assert second.state_indices.tolist() == [9]


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"num_drafts": [3]}, ShapeError, "batch.num_drafts: expected 2 rows like query_lens, got 1"),
        ({"query_lens": [4, -1]}, ArgumentError, "batch.query_lens: expected at least 0 tokens"),
        ({"state_slots": [1, NUM_SLOTS]}, ArgumentError, "batch.state_slots: expected slots below num_state_slots=64"),
        ({"state_slots": [3, 3]}, ArgumentError, "batch.state_slots: .* got 3 twice"),
        ({"request_slots": [5, 5]}, ArgumentError, "batch.request_slots: .* got 5 twice"),
        ({"request_slots": np.array([5, 5])}, ArgumentError, "batch.request_slots: .* got 5 twice"),
        (
            {"state_slots": torch.tensor([3, 3])},
            ArgumentError,
            r"batch.state_slots: .* on the host, got a tensor; .* tolist\(\)",
        ),
        ({"request_slots": [5, -1]}, ArgumentError, "batch.request_slots: expected at least 0"),
    ],
    ids=str,
)
def test_a_batch_that_cannot_be_right_is_refused_and_takes_no_buffers(wrong, error, message):
    rows = {
        "query_lens": [4, 1],
        "num_drafts": [3, 0],
        "is_prefilling": [False, False],
        "state_slots": [1, 2],
        "request_slots": [0, 1],
    }
    makes = builder()

    with pytest.raises(error, match=message):
        makes.build(RequestBatch(**rows | wrong))
    makes.build(RequestBatch(**rows))


def test_rows_without_a_slot_may_be_several():
    step = builder().build(RequestBatch([1, 1], [0, 0], [False, False], [0, 0], [0, 1]))

    assert step.state_indices.tolist() == [0, 0]


def test_more_speculative_rows_than_records_are_refused_but_prefills_do_not_count():
    makes = builder(max_rows=2)
    with pytest.raises(ShapeError, match="at most max_num_requests=2 speculative rows, got 3"):
        makes.build(batch(DECODE, DECODE, DECODE))
    with pytest.raises(ShapeError, match="num_rows: expected 0 to max_num_requests=2, got 3"):
        makes.build_dummy(3)
    with pytest.raises(ShapeError, match="num_rows: expected 0 to max_num_requests=2, got -1"):
        makes.build_dummy(-1)

    assert makes.build(batch(PREFILL, DECODE, PREFILL, DECODE)).num_spec_rows == 2


ROWS = st.one_of(
    st.sampled_from([DECODE, DRAFTLESS, PREFILL, LAST_PROMPT_TOKEN, NOT_SCHEDULED]),
    st.tuples(st.integers(0, T + 2), st.integers(-1, T), st.booleans()),
)


@given(
    rows=st.lists(ROWS, max_size=MAX_ROWS),
    slots=st.permutations(range(1, NUM_SLOTS)),
    requests=st.permutations(range(NUM_SLOTS)),
    graphs=st.sets(st.integers(1, MAX_ROWS)),
)
def test_any_batch_equals_a_reading_request_by_request(rows, slots, requests, graphs):
    lens, drafts, prefilling = zip(*rows, strict=True) if rows else ((), (), ())
    num_tokens = sum(lens)
    step = builder(graphs=tuple(graphs)).build(
        RequestBatch(lens, drafts, prefilling, slots[: len(rows)], requests[: len(rows)])
    )
    spec_tokens, other_tokens = (tokens_of(x, num_tokens) for x in (step.spec_tokens, step.other_tokens))
    starts, other_starts = step.query_start_loc.tolist(), step.other_query_start_loc.tolist()

    spec_row = other_row = 0
    first_token = 0
    for row, (length, num_drafts, is_prefilling) in enumerate(rows):
        tokens = list(range(first_token, first_token + length))
        first_token += length
        if num_drafts >= 0:
            is_decode = True
        elif is_prefilling:
            is_decode = False
        else:
            is_decode = length > 0
        if is_decode and length <= T:
            assert step.spec_request_rows[spec_row] == step.request_rows[spec_row] == row
            assert step.spec_request_slots[spec_row] == step.request_slots[spec_row] == requests[row]
            assert step.state_indices[spec_row] == slots[row]
            assert spec_tokens[starts[spec_row] : starts[spec_row + 1]] == tokens
            spec_row += 1
        elif length > 0:
            assert step.other_request_rows[other_row] == row
            assert (row in step.long_request_rows) == is_decode
            assert other_tokens[other_starts[other_row] : other_starts[other_row + 1]] == tokens
            other_row += 1

    assert step.num_spec_rows == spec_row
    assert len(step.other_request_rows) == other_row
    assert sorted(spec_tokens + other_tokens) == list(range(num_tokens))
    fitting = [size for size in sorted(graphs) if size >= spec_row]
    assert step.graph_size == (fitting[0] if fitting and spec_row and not other_row else None)
    assert not step.state_indices[spec_row:].any()
    assert (step.request_rows[spec_row:] == -1).all()
    assert (step.query_start_loc[spec_row:] == starts[spec_row]).all()


MIXED_UP = """
from recoverssm import RecoverSSMState, RequestBatch, RequestRow, RequestSlot, StateSlot

def confuse(life: RecoverSSMState, row: RequestRow, request: RequestSlot, state: StateSlot) -> None:
    RequestBatch([1], [0], [False], [state], [request])
    life.drop_request(request)
    RequestBatch([1], [0], [False], [request], [state])  # wrong twice
    life.drop_request(row)  # wrong
    life.drop_request(state)  # wrong
"""


def test_a_type_checker_tells_the_index_spaces_apart(tmp_path):
    script = tmp_path / "mixed_up.py"
    script.write_text(MIXED_UP)
    root = Path(__file__).resolve().parent.parent

    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", script],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )

    wrong = [int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line]
    assert wrong == [7, 7, 8, 9], done.stdout + done.stderr


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_a_step_is_built_without_waiting_for_the_device():
    makes = builder(graphs=(8,), device="cuda", stages=2)
    torch.cuda.synchronize()
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        padded = makes.build(batch(DECODE, DRAFTLESS))
        mixed = makes.build(batch(DECODE, PREFILL, DECODE, PREFILL, first_slot=9))
    finally:
        torch.cuda.set_sync_debug_mode(before)

    assert padded.state_indices.tolist() == [2, 1, 0, 0, 0, 0, 0, 0]
    assert mixed.spec_tokens.tolist() == [0, 1, 2, 3, 13, 14, 15, 16]
