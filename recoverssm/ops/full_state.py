"""Full-state verify, the baseline: outputs of a window and the whole state after every token."""

import torch
from torch import Tensor

from recoverssm.checks import (
    INT32,
    STATE_DTYPES,
    check_activations,
    check_dense_after,
    check_gate,
    check_out,
    check_row_vector,
    check_spec_query_len,
    check_tensor,
)
from recoverssm.kernels.full_state import _full_state_verify_kernel
from recoverssm.launch import device_arch, select
from recoverssm.types import GateParams


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
        out: [M, H, V] like v, or None to allocate.
    Returns:
        out.
    Raises:
        ShapeError, DtypeError, StrideError, DeviceError: before any launch.
    Source: docs/algorithm.md section 4.
    """
    check_activations(q, k, v, raw_gate, raw_beta)
    device = q.device
    _, num_heads, key_dim = q.shape
    value_dim = v.shape[2]
    check_tensor("state_pool", state_pool, "P H V K", (None, num_heads, value_dim, key_dim), STATE_DTYPES, device)
    check_dense_after("state_pool", state_pool, 0)
    check_gate(gate, (num_heads,), key_dim, device)
    check_tensor("state_indices", state_indices, "N T", (None, None), INT32, device)
    check_dense_after("state_indices", state_indices, 0)
    num_rows, spec_query_len = state_indices.shape
    check_spec_query_len("state_indices: T", spec_query_len)
    check_row_vector("query_start_loc", query_start_loc, num_rows + 1, device)
    check_row_vector("num_accepted", num_accepted, num_rows, device)
    if out is None:
        out = torch.empty(v.shape, dtype=v.dtype, device=device)
    check_out(out, v)
    if num_rows == 0:
        return out

    row = select(device_arch(device), "full_state_verify", state_pool.dtype, num_rows * num_heads)
    block_v = min(row.block_v, value_dim)
    with torch.cuda.device_of(q):
        _full_state_verify_kernel[(num_rows * num_heads * (value_dim // block_v),)](
            q,
            k,
            v,
            raw_gate,
            raw_beta,
            gate.A_log,
            gate.dt_bias,
            state_pool,
            out,
            query_start_loc,
            state_indices,
            num_accepted,
            gate.lower_bound or 0.0,
            key_dim**-0.5,
            q.stride(0),
            k.stride(0),
            v.stride(0),
            raw_gate.stride(0),
            raw_beta.stride(0),
            out.stride(0),
            state_pool.stride(0),
            state_indices.stride(0),
            H=num_heads,
            T=spec_query_len,
            K=key_dim,
            V=value_dim,
            BV=block_v,
            BK=min(row.inner_k, key_dim),
            BOUNDED=gate.lower_bound is not None,
            NUM_STAGES=row.num_stages,
            num_warps=row.num_warps,
            enable_fp_fusion=True,
        )
    return out
