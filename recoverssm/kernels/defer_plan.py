"""Defer plan kernel: which rows of a commit may wait on, and how many tokens of each entry are committed now."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_rows", "num_entries"])  # one kernel for all batches
def _defer_plan_kernel(
    commit_lens_ptr,
    source_slots_ptr,
    final_slots_ptr,
    record_rows_ptr,
    history_lens_ptr,
    waiting_lens_ptr,
    lens_now_ptr,
    boundary_lens_ptr,
    boundary_lens_now_ptr,
    num_rows,
    num_entries,
    HISTORY_LEN: tl.constexpr,
    HAS_HISTORY: tl.constexpr,
    J: tl.constexpr,
    BJ: tl.constexpr,
    BN: tl.constexpr,
):
    """One program handles BN speculative rows. With J = 0 boundaries are None; without history nothing waited."""
    offs_n = tl.program_id(0) * BN + tl.arange(0, BN)
    mask_n = offs_n < num_rows
    commit_len = tl.load(commit_lens_ptr + offs_n, mask=mask_n, other=0)
    source_slot = tl.load(source_slots_ptr + offs_n, mask=mask_n, other=0)
    final_slot = tl.load(final_slots_ptr + offs_n, mask=mask_n, other=0)
    record = tl.load(record_rows_ptr + offs_n, mask=mask_n, other=-1)
    recorded = mask_n & (record >= 0) & (record < num_entries)
    history_len = tl.zeros_like(commit_len)
    if HAS_HISTORY:
        history_len = tl.load(history_lens_ptr + offs_n, mask=mask_n, other=0)
    entry_len = history_len + commit_len
    waits = (source_slot == final_slot) & (source_slot > 0) & (entry_len <= HISTORY_LEN)
    if J > 0:
        offs_j = tl.arange(0, BJ)
        mask = mask_n[:, None] & (offs_j < J)[None, :]
        offs = offs_n[:, None] * J + offs_j[None, :]
        boundary_lens = tl.load(boundary_lens_ptr + offs, mask=mask, other=0)
        waits = waits & (tl.max(boundary_lens, axis=1) <= 0)
        boundary_lens_now = tl.where(boundary_lens > 0, history_len[:, None] + boundary_lens, 0)
        tl.store(boundary_lens_now_ptr + offs, boundary_lens_now, mask=mask)
    waits = waits | (commit_len <= 0)

    tl.store(waiting_lens_ptr + record, tl.where(waits, entry_len, 0), mask=recorded)
    tl.store(lens_now_ptr + offs_n, tl.where(recorded & ~waits, entry_len, 0), mask=mask_n)
