"""Commit plan: which prefix of its window each row keeps, from the sampled counts, on the device."""

import torch
from torch import Tensor

from recoverssm.checks import check_device, check_row_vector, check_spec_query_len
from recoverssm.kernels.commit_plan import _commit_plan_kernel
from recoverssm.types import CommitPlan

BLOCK_ROWS = 128  # one warp per 32 rows; a batch rarely has more rows than one program holds


def commit_plan(
    num_sampled: Tensor,
    query_start_loc: Tensor,
    state_indices: Tensor,
    plan: CommitPlan,
    *,
    spec_query_len: int,
    request_indices: Tensor | None = None,
) -> None:
    """Fill ``plan`` in place: row i keeps min(num_sampled of its request, its tokens, T) tokens.

    Row i belongs to request row request_indices[i], or i without them. A row without tokens, without a slot (0 or
    less), without sampled tokens or with a request row outside num_sampled gets zeros: commit then leaves everything
    alone.

    Args:
        num_sampled: [number of request rows] int32, sampled tokens per request, the bonus token included.
        query_start_loc: [N + 1] int32. state_indices: [N] int32. request_indices: [N] int32 or None.
        plan: three int32 tensors [N], written.
        spec_query_len: T of the records.
    Raises:
        ShapeError, DtypeError, StrideError, DeviceError: before any launch.
    Source: docs/algorithm.md section 3.
    """
    device = num_sampled.device
    check_device("num_sampled", device)
    check_row_vector("num_sampled", num_sampled, None, device)
    check_row_vector("state_indices", state_indices, None, device)
    num_rows = state_indices.shape[0]
    check_row_vector("query_start_loc", query_start_loc, num_rows + 1, device)
    check_row_vector("plan.commit_lens", plan.commit_lens, num_rows, device)
    check_row_vector("plan.source_slots", plan.source_slots, num_rows, device)
    check_row_vector("plan.final_slots", plan.final_slots, num_rows, device)
    check_spec_query_len("spec_query_len", spec_query_len)
    if request_indices is not None:
        check_row_vector("request_indices", request_indices, num_rows, device)
    if num_rows == 0:
        return

    with torch.cuda.device_of(num_sampled):
        _commit_plan_kernel[(-(-num_rows // BLOCK_ROWS),)](
            num_sampled,
            query_start_loc,
            state_indices,
            state_indices if request_indices is None else request_indices,
            plan.commit_lens,
            plan.source_slots,
            plan.final_slots,
            num_rows,
            num_sampled.shape[0],
            T=spec_query_len,
            HAS_REQUEST_INDICES=request_indices is not None,
            BN=BLOCK_ROWS,
            num_warps=4,
        )
