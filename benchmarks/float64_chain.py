"""The recurrence in float64 over what many steps accepted, in one launch: the witness of long runs.

It shares no device function with the kernels that it is a witness against. Formulas: docs/algorithm.md section 1.
"""
# Kernel bodies are Triton's language in Python's syntax: parameters are pointers and compile-time constants.
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import triton
import triton.language as tl
from torch import Tensor

from recoverssm.types import GateParams

VALUE_ROWS = 16
"""Of a program: float64 tiles of 128 channels are then 16 registers a thread."""


@triton.jit
def _float64_chain_kernel(
    k_ptr,
    v_ptr,
    raw_gate_ptr,
    raw_beta_ptr,
    accepted_ptr,
    A_log_ptr,
    dt_bias_ptr,
    state_ptr,
    num_steps,
    lower_bound,
    stride_accepted_step,
    N,
    H,
    T: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BV: tl.constexpr,
    BOUNDED: tl.constexpr,
):
    """One program handles BV value rows of one head of one request, over the accepted tokens of every step."""
    row, head = tl.program_id(0) // H, tl.program_id(0) % H
    offs_k, offs_v = tl.arange(0, K), tl.program_id(1) * BV + tl.arange(0, BV)
    gate_scale = tl.exp(tl.load(A_log_ptr + head).to(tl.float64))
    dt_bias = tl.load(dt_bias_ptr + head * K + offs_k).to(tl.float64)  # [K]
    state_ptrs = state_ptr + ((row * H + head) * V + offs_v[:, None]) * K + offs_k[None, :]
    state = tl.load(state_ptrs)  # [BV, K]
    for step in range(num_steps):
        accepted = tl.load(accepted_ptr + step * stride_accepted_step + row)
        for t in range(accepted):
            token = ((step * N + row) * T + t) * H + head
            k = tl.load(k_ptr + token * K + offs_k).to(tl.float64)
            v = tl.load(v_ptr + token * V + offs_v).to(tl.float64)
            x = tl.load(raw_gate_ptr + token * K + offs_k).to(tl.float64) + dt_bias
            beta = 1.0 / (1.0 + tl.exp(-tl.load(raw_beta_ptr + token).to(tl.float64)))
            if BOUNDED:
                log_decay = lower_bound / (1.0 + tl.exp(-gate_scale * x))
            else:
                log_decay = -gate_scale * (tl.maximum(x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x))))
            k = k / tl.sqrt(tl.sum(k * k, axis=0) + 1e-6)
            state *= tl.exp(log_decay)[None, :]
            correction = beta * (v - tl.sum(state * k[None, :], axis=1))  # [BV]
            state += correction[:, None] * k[None, :]
    tl.store(state_ptrs, state)


def advance_states(
    state: Tensor, k: Tensor, v: Tensor, raw_gate: Tensor, raw_beta: Tensor, gate: GateParams, accepted: Tensor
) -> None:
    """Run every request's state over its accepted tokens of S steps, in place.

    Args:
        state: [N, H, V, K] float64. k, raw_gate: [S, NT, H, K]; v: [S, NT, H, V]; raw_beta: [S, NT, H]; contiguous,
            rows of T tokens.
        gate: A_log [H], dt_bias [H, K] fp32; a lower bound is taken as fp32 holds it.
        accepted: [S, N] int32, 1 to T; its first stride is free.
    """
    num_rows, num_heads, value_dim, key_dim = state.shape
    block = min(value_dim, VALUE_ROWS)
    _float64_chain_kernel[(num_rows * num_heads, value_dim // block)](
        k,
        v,
        raw_gate,
        raw_beta,
        accepted,
        gate.A_log,
        gate.dt_bias,
        state,
        num_steps=k.shape[0],
        lower_bound=0.0 if gate.lower_bound is None else gate.lower_bound,
        stride_accepted_step=accepted.stride(0),
        N=num_rows,
        H=num_heads,
        T=k.shape[1] // num_rows,
        K=key_dim,
        V=value_dim,
        BV=block,
        BOUNDED=gate.lower_bound is not None,
        num_warps=4,
    )
