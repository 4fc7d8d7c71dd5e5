"""Full-state verify, the baseline: outputs of a window and the whole state after every token."""

from collections.abc import Sequence

import torch
from torch import Tensor

from recoverssm import triton_compat
from recoverssm.checks import (
    INT32,
    check_dense_after,
    check_layer,
    check_no_overlap,
    check_out,
    check_row_vector,
    check_spec_query_len,
    check_tensor,
)
from recoverssm.dispatch import Prepared, TensorMeta
from recoverssm.kernels import gluon_kernel
from recoverssm.kernels.full_state import _full_state_verify_kernel
from recoverssm.launch import Form, Problem, rows_aligned, tiled_launch
from recoverssm.triton_compat import KernelLaunch
from recoverssm.types import GateParams


def _fits_staged(problem: Problem) -> bool:
    is_sized = problem.key_dim == problem.value_dim == 128 and problem.spec_query_len <= 16
    return problem.arch >= 80 and triton_compat.IS_TESTED and is_sized and problem.aligned


FORMS = {
    "staged": Form(gluon_kernel("full_state_staged"), _fits_staged),
    "recurrence": Form(_full_state_verify_kernel),
}


def full_state_verify(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    raw_gate: Tensor,
    raw_beta: Tensor,
    state_pool: Tensor,
    gate: GateParams,
    query_start_loc: Tensor,
    state_indices: Tensor,
    num_accepted: Tensor,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Run the KDA recurrence over each row's window and store the state after each of its tokens.

    Row n starts from slot state_indices[n, num_accepted[n] - 1], where the previous step left the accepted state, and
    stores the state after its token t in slot state_indices[n, t] (skipped where that slot is 0 or less). A row whose
    source slot is 0 or less outputs zeros and stores nothing. Tokens of ``out`` that no row uses are left as they were.

    Args:
        q, k, raw_gate: [M, H, K]; v: [M, H, V]; raw_beta: [M, H]; as in ``verify``.
        state_pool: [P, H, V, K] fp32 or bf16, slot stride free; written in place.
        gate: A_log [H], dt_bias [H, K] fp32.
        query_start_loc: [N + 1] int32, not decreasing, at most M.
        state_indices: [N, T] int32. num_accepted: [N] int32, 1 to T.
        out: [M, H, V] like v, or None to allocate; it may be v itself, and shares memory with nothing else.
    Returns:
        out.
    Raises:
        ShapeError, DtypeError, StrideError, DeviceError: before any launch.
    Source: docs/algorithm.md section 4.
    """
    if out is None:
        out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    layer = (q, k, v, raw_gate, raw_beta, gate.A_log, gate.dt_bias, state_pool)
    _full_state_verify((*layer, out, query_start_loc, state_indices, num_accepted), gate.lower_bound)
    return out


@Prepared
def _full_state_verify(tensors: Sequence[TensorMeta], lower_bound: float | None) -> KernelLaunch | None:
    q, k, v, raw_gate, raw_beta, _, _, state, out, query_start_loc, state_indices, num_accepted = tensors
    check_layer(tensors[:8], "state_pool")
    check_no_overlap("state_pool", state)
    check_tensor("state_indices", state_indices, "N T", (None, None), INT32, q.device)
    check_dense_after("state_indices", state_indices, 0)
    num_rows, spec_query_len = state_indices.shape
    check_spec_query_len("state_indices: T", spec_query_len)
    check_row_vector("query_start_loc", query_start_loc, num_rows + 1, q.device)
    check_row_vector("num_accepted", num_accepted, num_rows, q.device)
    check_out(out, v)
    if num_rows == 0:
        return None
    strided = (q, k, v, raw_gate, raw_beta, out, state, state_indices)
    scalars = (q.shape[-1] ** -0.5, *(tensor.strides[0] for tensor in strided))
    sizes, aligned = (num_rows, spec_query_len, lower_bound), rows_aligned(q, k, v, raw_gate, out, state)
    return tiled_launch("full_state_verify", FORMS, state, *sizes, *scalars, aligned=aligned)
