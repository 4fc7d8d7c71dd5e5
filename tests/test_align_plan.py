"""align_plan against a reading token by token, against the reference, and by hand; and the device's columns."""

import pytest
import torch
import triton
import triton.language as tl

from recoverssm import AlignInputs, AlignPlan, Boundaries, CommitPlan, align_plan, commit_plan, reference
from recoverssm.kernels.columns import block_column, block_end
from recoverssm.types import max_boundaries
from tests.windows import int32

SOMEBODY_ELSES = 999  # a slot id behind the allocated columns: left over from another request
BLOCK_SIZES = [1, 2, 3, 4, 5, 8, 16, 17, 32]


def plan_of(num_rows, num_boundaries, device="cpu"):
    """Every element starts as -7, so that one which was not written is seen."""
    rows = (torch.full((num_rows,), -7, dtype=torch.int32, device=device) for _ in range(4))
    lens, slots = (torch.full((num_rows, num_boundaries), -7, dtype=torch.int32, device=device) for _ in range(2))
    return AlignPlan(CommitPlan(next(rows), next(rows), next(rows)), Boundaries(lens, slots), next(rows))


def as_rows(plan):
    """Per row: commit length, source, final slot, final column, boundaries as (length, slot)."""
    commit = plan.commit
    columns = (commit.commit_lens, commit.source_slots, commit.final_slots, plan.final_columns)
    lists = (plan.boundaries.lens.tolist(), plan.boundaries.slots.tolist())
    boundaries = [list(zip(lens, slots, strict=True)) for lens, slots in zip(*lists, strict=True)]
    return list(zip(*(x.tolist() for x in columns), boundaries, strict=True))


def plan_one(n, num_sampled, table, *, block_size, query_len, spec_query_len, device):
    """The plan of one request whose verify read the column of all its tokens; boundaries without the empty ones."""
    source = table[reference.block_column(n + query_len, block_size)]
    plan = plan_of(1, max_boundaries(spec_query_len, block_size), device)
    align = AlignInputs(int32([n], device), int32([table], device), block_size)
    starts = int32([0, query_len], device)
    align_plan(
        int32([num_sampled], device), starts, int32([source], device), align, plan, spec_query_len=spec_query_len
    )
    (commit_len, _, final, column, boundaries) = as_rows(plan)[0]
    return commit_len, final, column, [pair for pair in boundaries if pair != (0, 0)]


def read_token_by_token(n, num_accepted, table, block_size):
    """What must hold after each accepted token: final slot, its column, and boundaries as (length, slot)."""
    final, column, boundaries = 0, -1, []
    for length in range(1, num_accepted + 1):
        token = n + length - 1  # counted from 0
        column, place = divmod(token, block_size)
        final = table[column]
        if place == block_size - 1:
            boundaries.append((length, final))
    return final, column, boundaries


def requests_of(block_size, spec_query_len, every_query_len):
    """(n, query_len, num_sampled) for every place in a block, fresh and old requests, and every accepted count."""
    for n in [*range(2 * block_size), 6 * block_size + block_size // 2]:
        for accepted in range(spec_query_len + 1):
            fewest = max(accepted, 1)  # and so the fewest columns that a scheduler may have allocated
            for query_len in range(fewest, spec_query_len + 1) if every_query_len else {fewest, spec_query_len}:
                yield n, query_len, accepted
        yield n, 1, spec_query_len  # more sampled than there were tokens


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_every_place_accepted_count_and_window_reads_as_token_by_token(block_size, device):
    # Each window is compiled anew: on a GPU the longest one has all the others as shorter rows.
    for spec_query_len in range(1, 17) if device == "cpu" else [16]:
        requests = list(requests_of(block_size, spec_query_len, every_query_len=device == "cuda"))
        tables, sources = [], []
        num_columns = 1 + (7 * block_size + spec_query_len) // block_size
        for row, (n, query_len, _) in enumerate(requests):
            num_allocated = -(-(n + query_len) // block_size)
            slots = [10_000 + 100 * row + column for column in range(num_allocated)]
            tables.append(slots + [SOMEBODY_ELSES] * (num_columns - num_allocated))
            sources.append(slots[-1])
        query_lens = int32([query_len for _, query_len, _ in requests], device)
        starts = torch.cat((int32([0], device), query_lens.cumsum(0, dtype=torch.int32)))
        align = AlignInputs(int32([n for n, _, _ in requests], device), int32(tables, device), block_size)
        plan = plan_of(len(requests), max_boundaries(spec_query_len, block_size), device)

        align_plan(
            int32([sampled for _, _, sampled in requests], device), starts, int32(sources, device), align, plan,
            spec_query_len=spec_query_len,
        )  # fmt: skip

        rows = as_rows(plan)
        for row, (n, query_len, sampled) in enumerate(requests):
            accepted = min(sampled, query_len)
            commit_len, source, final, column, boundaries = rows[row]
            boundaries = [pair for pair in boundaries if pair != (0, 0)]
            expected = read_token_by_token(n, accepted, tables[row], block_size)
            assert (commit_len, final, column, boundaries) == (accepted, *expected), (n, query_len, sampled)
            assert source == (sources[row] if accepted else 0)
            named = {final, source, *(slot for _, slot in boundaries)}
            full_before = set(tables[row][: n // block_size])
            assert SOMEBODY_ELSES not in named
            assert not full_before & {final, *(slot for _, slot in boundaries)}, "other requests may resume there"


@pytest.mark.parametrize(("block_size", "num_boundaries"), [(8, 1), (3, 5), (1, 4), (2, 2)])
@pytest.mark.parametrize("num_rows", [1, 5, 129])
@pytest.mark.parametrize("indexed", [False, True])
def test_align_plan_matches_reference(block_size, num_boundaries, num_rows, indexed, device):
    """Padding rows, foreign request rows, missing blocks, tables of any row stride and more room than needed."""
    generator = torch.Generator().manual_seed(num_rows)

    def draw(low, high, *shape):
        return int32(torch.randint(low, high, shape, generator=generator).tolist(), device)

    lens = draw(0, 5, num_rows)
    starts = torch.cat((int32([0], device), lens.cumsum(0, dtype=torch.int32)))
    table = torch.full((num_rows, 11), SOMEBODY_ELSES, dtype=torch.int32, device=device)[:, :7]
    table.copy_(draw(-1, 9, num_rows, 7))
    running = torch.full((num_rows,), -7, dtype=torch.int32, device=device)
    align = AlignInputs(draw(-1, 9 * block_size, num_rows), table, block_size, running)
    expected_running = running.cpu()
    # Each request has one row; some rows have none, and some requests no row.
    requests = int32((torch.randperm(num_rows + 3, generator=generator)[:num_rows] - 1).tolist(), device)
    request_indices = requests if indexed else None
    arguments = (draw(-1, 7, num_rows), starts, draw(-1, 9, num_rows))
    expected, plan = plan_of(num_rows, num_boundaries), plan_of(num_rows, num_boundaries, device)
    reference.align_plan(
        *(x.cpu() for x in arguments),
        AlignInputs(align.num_computed.cpu(), table.cpu(), block_size, expected_running),
        expected,
        spec_query_len=4,
        request_indices=None if request_indices is None else request_indices.cpu(),
    )

    align_plan(*arguments, align, plan, spec_query_len=4, request_indices=request_indices)

    assert as_rows(plan) == as_rows(expected)
    assert running.tolist() == expected_running.tolist()


def test_a_table_in_which_all_stays_in_one_block_gives_the_commit_plan(device):
    rows, starts, slots = int32([3, 0, 2, 9], device), int32([0, 4, 8, 8, 12], device), int32([5, 6, 7, 8], device)
    plain = plan_of(4, 1, device).commit
    commit_plan(rows, starts, slots, plain, spec_query_len=4)
    plan = plan_of(4, 1, device)

    align = AlignInputs(int32([1, 1, 1, 1], device), slots[:, None].clone(), 64)
    align_plan(rows, starts, slots, align, plan, spec_query_len=4)

    for name in ("commit_lens", "source_slots", "final_slots"):
        assert getattr(plan.commit, name).tolist() == getattr(plain, name).tolist()


# --- what serving engines met (columns alone; states are in tests/reference/test_reference_align.py)


def test_landing_exactly_on_a_boundary_stays_in_the_block_that_exists(device):
    """n' // block_size named a column that nobody had allocated: the state went nowhere and the prefix cache rotted."""
    planned = plan_one(4, 4, [7, 0], block_size=8, query_len=4, spec_query_len=4, device=device)

    assert planned == (4, 7, 0, [(4, 7)])


@pytest.mark.parametrize(
    ("accepted", "final", "column", "boundaries"),
    [(1, 1, 0, []), (2, 1, 0, []), (3, 1, 0, [(3, 1)]), (4, 5, 1, [(3, 1)])],
)
def test_a_state_that_did_not_reach_the_next_block_goes_back_to_its_own(accepted, final, column, boundaries, device):
    """Verify read column 1, where the scheduler had moved the state ahead of the window."""
    planned = plan_one(5, accepted, [1, 5], block_size=8, query_len=4, spec_query_len=4, device=device)

    assert planned == (accepted, final, column, boundaries)


def test_a_request_that_starts_at_a_boundary_crosses_none(device):
    """The full block before it may be shared with other requests."""
    for accepted in (1, 2, 3, 4):
        planned = plan_one(8, accepted, [1, 5], block_size=8, query_len=4, spec_query_len=4, device=device)

        assert planned == (accepted, 5, 1, [])


def test_blocks_shorter_than_the_window_cross_several_boundaries(device):
    """Refused at the first commit elsewhere."""
    planned = plan_one(3, 8, [1, 2, 3], block_size=4, query_len=8, spec_query_len=8, device=device)

    assert planned == (8, 3, 2, [(1, 1), (5, 2)])


def test_blocks_of_one_token_make_every_token_a_boundary(device):
    planned = plan_one(2, 3, [1, 2, 3, 4, 5, 6], block_size=1, query_len=4, spec_query_len=4, device=device)

    assert planned == (3, 5, 4, [(1, 3), (2, 4), (3, 5)])


def test_counts_tables_and_tokens_are_read_by_request_row(device):
    """Two speculative rows of a batch of four requests; the first keeps its block, the second crosses a boundary."""
    nobody = SOMEBODY_ELSES
    plan = plan_of(2, 1, device)
    tables = int32([[nobody, nobody], [1, 5], [nobody, nobody], [2, 6]], device)

    align_plan(
        int32([7, 2, 7, 8], device),
        int32([0, 8, 16], device),
        int32([5, 6], device),
        AlignInputs(int32([1, 4, 2, 4], device), tables, 8),
        plan,
        spec_query_len=8,
        request_indices=int32([1, 3], device),
    )

    assert as_rows(plan) == [(2, 5, 1, 0, [(0, 0)]), (8, 6, 6, 1, [(4, 2)])]


def test_the_next_running_column_is_the_final_one_and_others_are_left_alone(device):
    plan, running = plan_of(1, 1, device), int32([5, 0], device)

    align_plan(
        int32([2, 3], device),
        int32([0, 3], device),
        int32([4], device),
        AlignInputs(int32([6, 7], device), int32([[8, 9], [3, 4]], device), 8, running),
        plan,
        spec_query_len=8,
        request_indices=int32([1], device),
    )

    assert plan.final_columns.tolist() == [1]
    assert running.tolist() == [5, 1]


def test_a_running_column_counts_blocks_of_its_own_group():
    """Resumed at 48 tokens with state blocks of 32: the drafter's blocks of 16 made column 2 of it."""
    assert reference.block_column(48, 32) == 1


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_columns_up_to_the_last_token_are_all_that_a_step_needs(block_size):
    for num_tokens in range(4 * block_size):
        column = reference.block_column(num_tokens, block_size)

        assert column + 1 == -(-num_tokens // block_size)
        assert reference.block_end(column, block_size) - block_size < max(num_tokens, 1)
        assert reference.block_end(column, block_size) >= num_tokens


def test_the_last_allocated_column_is_reached_and_none_behind_it(device):
    """No speculative blocks: the table ends with the block of the last token."""
    planned = plan_one(6, 4, [1, 2], block_size=5, query_len=4, spec_query_len=4, device=device)

    assert planned == (4, 2, 1, [(4, 2)])


@pytest.mark.parametrize("final", [0, -1])
def test_a_row_whose_final_block_was_taken_away_writes_nothing_at_all(final, device):
    """Not its boundary either: a step that cannot keep its state must not leave half of it."""
    plan, align = plan_of(1, 1, device), AlignInputs(int32([7], device), int32([[3, final]], device), 8)

    align_plan(int32([4], device), int32([0, 4], device), int32([9], device), align, plan, spec_query_len=4)

    assert as_rows(plan) == [(0, 0, 0, -1, [(0, 0)])]


def test_a_table_that_is_too_narrow_leaves_the_row_alone(device):
    """Taking the last column instead would overwrite a full block."""
    plan, align = plan_of(1, 1, device), AlignInputs(int32([7], device), int32([[3]], device), 8)

    align_plan(int32([4], device), int32([0, 4], device), int32([9], device), align, plan, spec_query_len=4)

    assert as_rows(plan) == [(0, 0, 0, -1, [(0, 0)])]


def test_a_full_block_without_a_slot_is_left_out_and_the_others_are_kept(device):
    planned = plan_one(1, 6, [1, 0, 3, 4], block_size=2, query_len=6, spec_query_len=6, device=device)

    assert planned == (6, 4, 3, [(1, 1), (5, 3)])


def test_padding_rows_read_neither_counts_nor_tables(device):
    plan, align = plan_of(3, 1, device), AlignInputs(int32([6], device), int32([[1, 2]], device), 8)

    align_plan(int32([4], device), int32([0, 4, 4, 4], device), int32([2, 0, 0], device), align, plan, spec_query_len=4)

    assert as_rows(plan) == [(4, 2, 2, 1, [(2, 1)]), (0, 0, 0, -1, [(0, 0)]), (0, 0, 0, -1, [(0, 0)])]


def test_an_empty_batch_is_planned(device):
    empty, plan = int32([], device), AlignPlan.zeros(0, spec_query_len=4, block_size=8, device=device)

    align = AlignInputs(empty, torch.zeros((0, 3), dtype=torch.int32, device=device), 8)
    align_plan(empty, int32([0], device), empty, align, plan, spec_query_len=4)

    assert as_rows(plan) == []


def test_room_for_boundaries_is_what_a_window_can_cross_at_most():
    for block_size in BLOCK_SIZES:
        for spec_query_len in range(1, 17):
            crossed = [
                len(read_token_by_token(n, spec_query_len, range(100), block_size)[2]) for n in range(block_size)
            ]

            assert max(crossed) == max_boundaries(spec_query_len, block_size)


# --- columns


@triton.jit
def _columns_kernel(columns_ptr, ends_ptr, n, BLOCK_SIZE: tl.constexpr, BN: tl.constexpr):
    offs = tl.arange(0, BN)
    column = block_column(offs, BLOCK_SIZE)
    tl.store(columns_ptr + offs, column, mask=offs < n)
    tl.store(ends_ptr + offs, block_end(column, BLOCK_SIZE), mask=offs < n)


@pytest.mark.parametrize("block_size", [1, 3, 8, 1536])
def test_columns_on_the_device_are_those_on_the_host(block_size, device):
    num_counts = 200
    columns, ends = (torch.full((num_counts,), -7, dtype=torch.int32, device=device) for _ in range(2))

    _columns_kernel[(1,)](columns, ends, num_counts, BLOCK_SIZE=block_size, BN=256)

    expected = [reference.block_column(n, block_size) for n in range(num_counts)]
    assert columns.tolist() == expected
    assert ends.tolist() == [reference.block_end(column, block_size) for column in expected]
    assert expected[:2] == [-1, 0]
    assert reference.block_column(torch.arange(num_counts), block_size).tolist() == expected
