"""Commit plan kernel: turns sampled counts into the length, source and final slot of each speculative row."""

import triton
import triton.language as tl


@triton.jit
def planned_rows(
    num_sampled_ptr,
    query_start_loc_ptr,
    state_indices_ptr,
    request_indices_ptr,
    offs_n,
    mask_n,
    num_requests,
    T: tl.constexpr,
    HAS_REQUEST_INDICES: tl.constexpr,
):
    """Request row, commit length and slot of each row; length and slot are 0 where there is nothing to commit."""
    if HAS_REQUEST_INDICES:
        request = tl.load(request_indices_ptr + offs_n, mask=mask_n, other=-1)
    else:
        request = offs_n
    first_token = tl.load(query_start_loc_ptr + offs_n, mask=mask_n, other=0)
    query_len = tl.load(query_start_loc_ptr + offs_n + 1, mask=mask_n, other=0) - first_token
    slot = tl.load(state_indices_ptr + offs_n, mask=mask_n, other=0)
    # Padding rows of a CUDA graph have no tokens, and their request rows may lie past the end of num_sampled.
    has_tokens = (query_len > 0) & (request >= 0) & (request < num_requests) & (slot > 0)
    num_sampled = tl.load(num_sampled_ptr + request, mask=has_tokens, other=0)

    commit_len = tl.minimum(tl.minimum(num_sampled, query_len), T)
    valid = has_tokens & (commit_len > 0)
    return request, tl.where(valid, commit_len, 0), tl.where(valid, slot, 0)


@triton.jit(do_not_specialize=["num_rows", "num_requests"])  # one kernel for all batches
def _commit_plan_kernel(
    num_sampled_ptr,
    query_start_loc_ptr,
    state_indices_ptr,
    request_indices_ptr,
    commit_lens_ptr,
    source_slots_ptr,
    final_slots_ptr,
    num_rows,
    num_requests,
    T: tl.constexpr,
    HAS_REQUEST_INDICES: tl.constexpr,
    BN: tl.constexpr,
):
    """One program handles BN speculative rows."""
    offs_n = tl.program_id(0) * BN + tl.arange(0, BN)
    mask_n = offs_n < num_rows

    _, commit_len, slot = planned_rows(
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

    tl.store(commit_lens_ptr + offs_n, commit_len, mask=mask_n)
    tl.store(source_slots_ptr + offs_n, slot, mask=mask_n)
    tl.store(final_slots_ptr + offs_n, slot, mask=mask_n)
