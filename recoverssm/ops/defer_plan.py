"""Defer plan: which rows of a commit may wait for their next verify, and how many tokens of them, on the device."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.compiler import is_compiling

from recoverssm.checks import INT32, check_dense_after, check_device, check_plan, check_row_vector, check_tensor
from recoverssm.dispatch import Prepared, TensorMeta
from recoverssm.kernels.defer_plan import _defer_plan_kernel
from recoverssm.triton_compat import KernelLaunch
from recoverssm.types import Boundaries, CommitPlan

BLOCK_ROWS = 128  # as in commit_plan


def defer_plan(
    plan: CommitPlan,
    record_rows: Tensor,
    waiting_lens: Tensor,
    lens_now: Tensor,
    *,
    boundaries: Boundaries | None = None,
) -> None:
    """Split ``plan``: rows that stay in their slot and reach no boundary wait, all others are committed now.

    Args:
        plan: three int32 tensors [N], read.
        record_rows: [N] int32, the entry with the records of each row, different ones; -1 for none.
        waiting_lens: [R] int32, written at those entries: tokens that wait, 0 where they do not.
        lens_now: [N] int32, written: tokens to commit now.
        boundaries: [N, J] int32, from the same ``align_plan`` as ``plan``; None: there are none.
    Raises:
        ShapeError, DtypeError, StrideError, DeviceError: before any launch.
    Source: docs/algorithm.md section 9.
    """
    rows = (plan.commit_lens, plan.source_slots, plan.final_slots)
    tensors = (*rows, record_rows, waiting_lens, lens_now)
    if is_compiling():
        torch.ops.recoverssm.defer_plan(*tensors, None if boundaries is None else boundaries.lens)
        return
    _defer_plan(tensors if boundaries is None else (*tensors, boundaries.lens))


@Prepared
def _defer_plan(tensors: Sequence[TensorMeta]) -> KernelLaunch | None:
    *plan, record_rows, waiting_lens, lens_now = tensors[:6]
    device = plan[0].device
    check_device("plan.commit_lens", device)
    num_rows = check_plan(plan, None, device)
    check_row_vector("record_rows", record_rows, num_rows, device)
    check_row_vector("waiting_lens", waiting_lens, None, device)
    check_row_vector("lens_now", lens_now, num_rows, device)
    num_boundaries = 0
    for lens in tensors[6:]:
        check_tensor("boundaries.lens", lens, "N J", (num_rows, None), INT32, device)
        check_dense_after("boundaries.lens", lens, -1)
        num_boundaries = lens.shape[1]
    if num_rows == 0:
        return None
    tiles = {"J": num_boundaries, "BJ": 1 << max(num_boundaries - 1, 0).bit_length(), "BN": BLOCK_ROWS}
    return KernelLaunch(
        _defer_plan_kernel,
        (-(-num_rows // BLOCK_ROWS),),
        device,
        scalars=(*((None,) if len(tensors) == 6 else ()), num_rows, waiting_lens.shape[0]),
        constants=tiles | {"num_warps": 4},
    )
