"""Defer plan kernel: which rows of a commit may wait for their next verify, and how many tokens of them."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["num_rows", "num_entries"])  # one kernel for all batches
def _defer_plan_kernel(
    commit_lens_ptr,
    source_slots_ptr,
    final_slots_ptr,
    record_rows_ptr,
    waiting_lens_ptr,
    lens_now_ptr,
    boundary_lens_ptr,
    num_rows,
    num_entries,
    J: tl.constexpr,
    BJ: tl.constexpr,
    BN: tl.constexpr,
):
    """One program handles BN speculative rows. With J = 0 boundaries are None."""
    offs_n = tl.program_id(0) * BN + tl.arange(0, BN)
    mask_n = offs_n < num_rows
    commit_len = tl.load(commit_lens_ptr + offs_n, mask=mask_n, other=0)
    source_slot = tl.load(source_slots_ptr + offs_n, mask=mask_n, other=0)
    final_slot = tl.load(final_slots_ptr + offs_n, mask=mask_n, other=0)
    record = tl.load(record_rows_ptr + offs_n, mask=mask_n, other=-1)
    recorded = (record >= 0) & (record < num_entries)
    stays = recorded & (source_slot == final_slot) & (source_slot > 0)
    if J > 0:
        offs_j = tl.arange(0, BJ)
        mask = mask_n[:, None] & (offs_j < J)[None, :]
        boundary_lens = tl.load(boundary_lens_ptr + offs_n[:, None] * J + offs_j[None, :], mask=mask, other=0)
        stays = stays & (tl.max(boundary_lens, axis=1) <= 0)

    waits = tl.where(stays, commit_len, 0)
    tl.store(waiting_lens_ptr + record, waits, mask=mask_n & recorded)
    tl.store(lens_now_ptr + offs_n, commit_len - waits, mask=mask_n)
