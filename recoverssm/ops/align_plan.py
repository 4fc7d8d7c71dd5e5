"""Align plan: the commit plan of a prefix-caching engine, with the block boundaries that each row crosses."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.compiler import is_compiling

from recoverssm.checks import (
    INT32,
    check_boundaries,
    check_dense_after,
    check_device,
    check_plan,
    check_row_vector,
    check_spec_query_len,
    check_tensor,
)
from recoverssm.dispatch import Prepared, TensorMeta
from recoverssm.errors import ShapeError
from recoverssm.kernels.align_plan import _align_plan_kernel
from recoverssm.triton_compat import KernelLaunch
from recoverssm.types import AlignInputs, AlignPlan, Device, max_boundaries

BLOCK_ROWS = 128  # as in commit_plan


def align_plan(
    num_sampled: Tensor,
    query_start_loc: Tensor,
    state_indices: Tensor,
    align: AlignInputs,
    plan: AlignPlan,
    *,
    spec_query_len: int,
    request_indices: Tensor | None = None,
) -> None:
    """Fill ``plan`` in place: lengths and sources as ``commit_plan`` does, final slots and boundaries by block.

    The state after all accepted tokens goes to the block of the last of them, and every block that they fill gets the
    state at its end: one, several or none, as block_size has it. Blocks that were full before the step are never
    named, nor is anything behind the columns that a scheduler allocates for the tokens of the step. A row whose final
    block has no slot (0 or less, or behind the table) gets zeros, and a boundary whose block has none is left out.

    Args:
        num_sampled, query_start_loc, request_indices: as for ``commit_plan``.
        state_indices: [N] int32, slots that verify read: block ``reference.block_column`` of all tokens of the step.
        align: num_computed [B], block_table [B, C] int32, rows may lie apart; B as in num_sampled, by request row.
            running_columns [B] or None, written where the request's row is committed.
        plan: int32, of N rows and at least ``max_boundaries`` boundaries; all of it is written.
        spec_query_len: T of the records.
    Raises:
        ShapeError, DtypeError, StrideError, DeviceError: before any launch.
    Source: docs/algorithm.md section 8; vLLM PR 51855, with the final column of a later fix.
    """
    has_request_indices = request_indices is not None
    requests = state_indices if request_indices is None else request_indices
    commit, boundaries = plan.commit, plan.boundaries
    inputs = (num_sampled, query_start_loc, state_indices, requests, align.num_computed, align.block_table)
    rows = (commit.commit_lens, commit.source_slots, commit.final_slots)
    tensors = (*inputs, *rows, boundaries.lens, boundaries.slots, plan.final_columns)
    options = (spec_query_len, align.block_size, has_request_indices)
    if is_compiling():
        torch.ops.recoverssm.align_plan(*tensors, align.running_columns, *options)
        return
    running = () if align.running_columns is None else (align.running_columns,)
    _align_plan((*tensors, *running), *options)


@Prepared
def _align_plan(
    tensors: Sequence[TensorMeta], spec_query_len: int, block_size: int, has_request_indices: bool
) -> KernelLaunch | None:
    num_sampled, query_start_loc, state_indices, request_indices, num_computed, block_table = tensors[:6]
    plan, running_columns = tensors[6:12], tensors[12:]
    device = num_sampled.device
    check_device("num_sampled", device)
    check_row_vector("num_sampled", num_sampled, None, device)
    (num_requests,) = num_sampled.shape
    check_row_vector("state_indices", state_indices, None, device)
    (num_rows,) = state_indices.shape
    check_row_vector("query_start_loc", query_start_loc, num_rows + 1, device)
    check_row_vector("align.num_computed", num_computed, num_requests, device)
    check_tensor("align.block_table", block_table, "B C", (num_requests, None), INT32, device)
    check_dense_after("align.block_table", block_table, 0)
    check_spec_query_len("spec_query_len", spec_query_len)
    num_boundaries = _check_align_plan(plan, num_rows, max_boundaries(spec_query_len, block_size), device)
    for columns in running_columns:
        check_row_vector("align.running_columns", columns, num_requests, device)
    if has_request_indices:
        check_row_vector("request_indices", request_indices, num_rows, device)
    if num_rows == 0:
        return None
    sizes = {"T": spec_query_len, "BLOCK_SIZE": block_size, "J": num_boundaries}
    tiles = {"BJ": 1 << (num_boundaries - 1).bit_length(), "BN": BLOCK_ROWS}
    return KernelLaunch(
        _align_plan_kernel,
        (-(-num_rows // BLOCK_ROWS),),
        device,
        scalars=(
            *(() if running_columns else (None,)),
            num_rows,
            num_requests,
            block_table.shape[1],
            block_table.strides[0],
        ),
        constants={**sizes, **tiles, "HAS_REQUEST_INDICES": has_request_indices, "num_warps": 4},
    )


def _check_align_plan(plan: Sequence[TensorMeta], num_rows: int, needed: int, device: Device) -> int:
    """Check the tensors of an align plan that needs so many boundaries a row, and return how many it has."""
    *commit, lens, slots, final_columns = plan
    check_plan(commit, num_rows, device)
    num_boundaries = check_boundaries("plan.boundaries", (lens, slots), num_rows, device)
    if num_boundaries < needed:
        raise ShapeError(
            f"plan.boundaries.lens: expected at least {needed} boundaries a row (ceil(T / block_size)), "
            f"got {num_boundaries}"
        )
    check_row_vector("plan.final_columns", final_columns, num_rows, device)
    return num_boundaries
