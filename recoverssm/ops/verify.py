"""Verify: outputs and records of a window from one checkpoint per row."""

import torch
from torch import Tensor

from recoverssm.checks import (
    STATE_DTYPES,
    check_activations,
    check_dense_after,
    check_gate,
    check_out,
    check_records,
    check_row_vector,
    check_tensor,
)
from recoverssm.kernels.verify import _verify_kernel
from recoverssm.launch import device_arch, select
from recoverssm.types import GateParams, Records


def verify(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    raw_gate: Tensor,
    raw_beta: Tensor,
    checkpoint_state: Tensor,
    records: Records,
    gate: GateParams,
    query_start_loc: Tensor,
    state_indices: Tensor,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Run the KDA recurrence over each row's window and record it; checkpoints stay as they are.

    Row n owns tokens query_start_loc[n] to query_start_loc[n + 1] (at most T of them are used) and reads slot
    state_indices[n]. A row whose slot is 0 or less outputs zeros and records nothing. Record positions past a row's
    tokens, and tokens of ``out`` that no row uses, are left as they were: undefined in an ``out`` allocated here.

    Args:
        q, k, raw_gate: [M, H, K]; v: [M, H, V]; raw_beta: [M, H]; bf16, fp16 or fp32. q and k are after conv and SiLU,
            not normalised; gate and beta are before their activations. Token strides are free.
        checkpoint_state: [P, H, V, K] fp32 or bf16, slot stride free.
        records: correction [R, H, T, V] fp32 and key_gate [R, H, T, 2K] in q's dtype, R >= N; row n is written.
        gate: A_log [H], dt_bias [H, K] fp32.
        query_start_loc: [N + 1] int32, not decreasing, at most M. state_indices: [N] int32.
        out: [M, H, V] like v, or None to allocate.
    Returns:
        out.
    Raises:
        ShapeError, DtypeError, StrideError, DeviceError: before any launch.
    Source: docs/algorithm.md section 2; vLLM PR 51855.
    """
    check_activations(q, k, v, raw_gate, raw_beta)
    device = q.device
    _, num_heads, key_dim = q.shape
    value_dim = v.shape[2]
    check_row_vector("state_indices", state_indices, None, device)
    num_rows = state_indices.shape[0]
    check_tensor(
        "checkpoint_state", checkpoint_state, "P H V K", (None, num_heads, value_dim, key_dim), STATE_DTYPES, device
    )
    check_dense_after("checkpoint_state", checkpoint_state, 0)
    spec_query_len = check_records(records, num_rows, num_heads, key_dim, value_dim, q.dtype, device)
    check_gate(gate, (num_heads,), key_dim, device)
    check_row_vector("query_start_loc", query_start_loc, num_rows + 1, device)
    if out is None:
        out = torch.empty(v.shape, dtype=v.dtype, device=device)
    check_out(out, v)
    if num_rows == 0:
        return out

    row = select(device_arch(device), "verify", checkpoint_state.dtype, num_rows * num_heads)
    block_v = min(row.block_v, value_dim)
    with torch.cuda.device_of(q):
        _verify_kernel[(num_rows * num_heads * (value_dim // block_v),)](
            q,
            k,
            v,
            raw_gate,
            raw_beta,
            gate.A_log,
            gate.dt_bias,
            checkpoint_state,
            records.correction,
            records.key_gate,
            out,
            query_start_loc,
            state_indices,
            gate.lower_bound or 0.0,
            key_dim**-0.5,
            q.stride(0),
            k.stride(0),
            v.stride(0),
            raw_gate.stride(0),
            raw_beta.stride(0),
            out.stride(0),
            checkpoint_state.stride(0),
            records.correction.stride(0),
            records.key_gate.stride(0),
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
