"""Align plan kernel: the commit plan of a prefix-caching engine, with the block boundaries that each row crosses."""

import triton
import triton.language as tl

from recoverssm.kernels.columns import block_column, block_end
from recoverssm.kernels.commit_plan import planned_rows


@triton.jit(
    do_not_specialize=["num_rows", "num_requests", "num_columns", "stride_table_request"]
)  # one kernel for all batches
def _align_plan_kernel(
    num_sampled_ptr,
    query_start_loc_ptr,
    state_indices_ptr,
    request_indices_ptr,
    num_computed_ptr,
    block_table_ptr,
    commit_lens_ptr,
    source_slots_ptr,
    final_slots_ptr,
    boundary_lens_ptr,
    boundary_slots_ptr,
    final_columns_ptr,
    running_columns_ptr,
    num_rows,
    num_requests,
    num_columns,
    stride_table_request,
    T: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    J: tl.constexpr,
    BJ: tl.constexpr,
    HAS_REQUEST_INDICES: tl.constexpr,
    BN: tl.constexpr,
):
    """One program handles BN speculative rows, with J boundaries each. Running columns may be None."""
    offs_n = tl.program_id(0) * BN + tl.arange(0, BN)
    offs_j = tl.arange(0, BJ)
    mask_n = offs_n < num_rows
    mask = mask_n[:, None] & (offs_j < J)[None, :]

    request, commit_len, source_slot = planned_rows(
        num_sampled_ptr,
        query_start_loc_ptr,
        state_indices_ptr,
        request_indices_ptr,
        offs_n,
        mask_n,
        num_requests,
        T,
        HAS_REQUEST_INDICES,
    )
    live = commit_len > 0
    num_computed = tl.load(num_computed_ptr + request, mask=live, other=0)
    live = live & (num_computed >= 0)
    row_ptrs = block_table_ptr + request.to(tl.int64) * stride_table_request
    final_column = block_column(num_computed + commit_len, BLOCK_SIZE)
    # Columns rise with tokens: where the final one is in the table, so is every one before it.
    live = live & (final_column < num_columns)
    final_slot = tl.load(row_ptrs + final_column, mask=live, other=0)
    live = live & (final_slot > 0)
    commit_len = tl.where(live, commit_len, 0)

    # The first block that is not full before the step, and those after it. [BN, BJ]
    columns = block_column(num_computed + 1, BLOCK_SIZE)[:, None] + offs_j[None, :]
    boundary_lens = block_end(columns, BLOCK_SIZE) - num_computed[:, None]
    crossed = mask & (boundary_lens <= commit_len[:, None])
    boundary_slots = tl.load(row_ptrs[:, None] + columns, mask=crossed, other=0)
    crossed = crossed & (boundary_slots > 0)

    tl.store(commit_lens_ptr + offs_n, commit_len, mask=mask_n)
    tl.store(source_slots_ptr + offs_n, tl.where(live, source_slot, 0), mask=mask_n)
    tl.store(final_slots_ptr + offs_n, tl.where(live, final_slot, 0), mask=mask_n)
    tl.store(final_columns_ptr + offs_n, tl.where(live, final_column, -1), mask=mask_n)
    if running_columns_ptr is not None:
        tl.store(running_columns_ptr + request, final_column, mask=mask_n & live)
    offs = offs_n[:, None] * J + offs_j[None, :]
    tl.store(boundary_lens_ptr + offs, tl.where(crossed, boundary_lens, 0), mask=mask)
    tl.store(boundary_slots_ptr + offs, tl.where(crossed, boundary_slots, 0), mask=mask)
