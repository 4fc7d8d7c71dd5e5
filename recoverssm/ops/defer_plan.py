"""Defer plan: which rows of a commit may wait on, and how many tokens of each are committed now, on the device."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.compiler import is_compiling

from recoverssm.checks import (
    INT32,
    check_dense_after,
    check_device,
    check_history_len,
    check_plan,
    check_row_vector,
    check_tensor,
)
from recoverssm.dispatch import Prepared, TensorMeta
from recoverssm.errors import ArgumentError
from recoverssm.kernels.defer_plan import _defer_plan_kernel
from recoverssm.triton_compat import KernelLaunch
from recoverssm.types import CommitPlan, RecordRows

BLOCK_ROWS = 128  # as in commit_plan


def defer_plan(
    plan: CommitPlan,
    record_rows: RecordRows,
    waiting_lens: Tensor,
    lens_now: Tensor,
    *,
    history_len: int,
    boundary_lens: Tensor | None = None,
    boundary_lens_now: Tensor | None = None,
) -> None:
    """Split ``plan``: rows that stay in their slot, reach no boundary and have room wait, all others are committed now.

    With the tokens that a row has accepted go those that waited for it before, the first ones of its entry: all of them
    wait, or none. A row that has accepted nothing waits on as it did.

    Args:
        plan: three int32 tensors [N], read.
        record_rows: as verify was given them: the entry of each row, and how many of its tokens waited.
        waiting_lens: [R] int32, written at these entries: tokens that wait from now on.
        lens_now: [N] int32, written: tokens to commit now, from the start of the entry.
        history_len: the most tokens of an entry that may wait, as in ``Records``.
        boundary_lens: [N, J] int32, of the same ``align_plan`` as ``plan``; None: there are none.
        boundary_lens_now: [N, J] int32, written: the same counted from the start of the entry.
    Raises:
        ShapeError, DtypeError, StrideError, DeviceError: before any launch.
        ArgumentError: one of boundary_lens and boundary_lens_now without the other, or history where there is no room.
    Source: docs/algorithm.md section 9.
    """
    if (boundary_lens is None) != (boundary_lens_now is None):
        raise ArgumentError("boundary_lens, boundary_lens_now: expected both or neither, got one")
    written, history_lens = record_rows.written, record_rows.history_lens
    rows = (plan.commit_lens, plan.source_slots, plan.final_slots, written)
    tensors = (*rows, written if history_lens is None else history_lens, waiting_lens, lens_now)
    options = (history_len, history_lens is not None)
    if is_compiling():
        torch.ops.recoverssm.defer_plan(*tensors, boundary_lens, boundary_lens_now, *options)
        return
    _defer_plan((*tensors, *(x for x in (boundary_lens, boundary_lens_now) if x is not None)), *options)


@Prepared
def _defer_plan(tensors: Sequence[TensorMeta], history_len: int, has_history: bool) -> KernelLaunch | None:
    *plan, written, history_lens, waiting_lens, lens_now = tensors[:7]
    device = plan[0].device
    check_device("plan.commit_lens", device)
    num_rows = check_plan(plan, None, device)
    check_row_vector("record_rows.written", written, num_rows, device)
    check_row_vector("record_rows.history_lens", history_lens, num_rows, device)
    check_row_vector("waiting_lens", waiting_lens, None, device)
    check_row_vector("lens_now", lens_now, num_rows, device)
    check_history_len("history_len", history_len)
    if has_history and history_len == 0:
        raise ArgumentError("record_rows: expected no history_lens with history_len=0, got some")
    num_boundaries = None
    for name, lens in zip(("boundary_lens", "boundary_lens_now"), tensors[7:], strict=False):
        check_tensor(name, lens, "N J", (num_rows, num_boundaries), INT32, device)
        check_dense_after(name, lens, -1)
        num_boundaries = lens.shape[1]
    J = num_boundaries or 0
    if num_rows == 0:
        return None
    tiles = {"J": J, "BJ": 1 << max(J - 1, 0).bit_length(), "BN": BLOCK_ROWS}
    return KernelLaunch(
        _defer_plan_kernel,
        (-(-num_rows // BLOCK_ROWS),),
        device,
        scalars=(*((None, None) if len(tensors) == 7 else ()), num_rows, waiting_lens.shape[0]),
        constants={"HISTORY_LEN": history_len, "HAS_HISTORY": has_history, **tiles, "num_warps": 4},
    )
