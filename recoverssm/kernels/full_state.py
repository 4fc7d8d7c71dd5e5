"""Full-state verify kernel, the baseline: as verify, but stores the whole state after every token and no records."""

import triton
import triton.language as tl

from recoverssm.kernels.recurrence import delta_step, kda_decay, key_offsets, l2_normalised


@triton.jit
def _full_state_verify_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    raw_gate_ptr,
    raw_beta_ptr,
    A_log_ptr,
    dt_bias_ptr,
    state_ptr,
    out_ptr,
    query_start_loc_ptr,
    state_indices_ptr,
    num_accepted_ptr,
    lower_bound,
    query_scale,
    stride_q_token,
    stride_k_token,
    stride_v_token,
    stride_gate_token,
    stride_beta_token,
    stride_out_token,
    stride_state_slot,
    stride_indices_row,
    H: tl.constexpr,
    T: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BV: tl.constexpr,
    BK: tl.constexpr,
    BOUNDED: tl.constexpr,
    NUM_STAGES: tl.constexpr,
):
    """One program handles BV value rows of one head of one speculative row."""
    pid = tl.program_id(0)
    pid_v = pid % (V // BV)
    pid_h = (pid // (V // BV)) % H
    row = (pid // (V // BV) // H).to(tl.int64)
    first_token = tl.load(query_start_loc_ptr + row).to(tl.int64)
    query_len = tl.load(query_start_loc_ptr + row + 1) - first_token.to(tl.int32)
    query_len = tl.minimum(query_len, T)
    indices_ptrs = state_indices_ptr + row * stride_indices_row
    column = tl.minimum(tl.maximum(tl.load(num_accepted_ptr + row), 1), T) - 1
    source_slot = tl.load(indices_ptrs + column).to(tl.int64)

    offs_k = key_offsets(K, BK)
    offs_v = pid_v * BV + tl.arange(0, BV)
    out_ptrs = out_ptr + first_token * stride_out_token + pid_h * V + offs_v
    if source_slot <= 0:
        for _ in range(query_len):
            tl.store(out_ptrs, tl.zeros([BV], out_ptr.dtype.element_ty))
            out_ptrs += stride_out_token
        return

    tile_ptrs = state_ptr + (pid_h * V + offs_v[:, None, None]) * K + offs_k[None, :, :]
    state = tl.load(tile_ptrs + source_slot * stride_state_slot).to(tl.float32)  # [BV, K / BK, BK]
    gate_scale = tl.exp(tl.load(A_log_ptr + pid_h))
    dt_bias = tl.load(dt_bias_ptr + pid_h * K + offs_k)
    q_ptrs = q_ptr + first_token * stride_q_token + pid_h * K + offs_k
    k_ptrs = k_ptr + first_token * stride_k_token + pid_h * K + offs_k
    v_ptrs = v_ptr + first_token * stride_v_token + pid_h * V + offs_v
    gate_ptrs = raw_gate_ptr + first_token * stride_gate_token + pid_h * K + offs_k
    beta_ptrs = raw_beta_ptr + first_token * stride_beta_token + pid_h

    for _ in tl.range(query_len, num_stages=NUM_STAGES):
        key = l2_normalised(tl.load(k_ptrs).to(tl.float32))
        query = l2_normalised(tl.load(q_ptrs).to(tl.float32)) * query_scale
        decay = kda_decay(tl.load(gate_ptrs).to(tl.float32), dt_bias, gate_scale, lower_bound, BOUNDED)
        beta = tl.sigmoid(tl.load(beta_ptrs).to(tl.float32))
        value = tl.load(v_ptrs).to(tl.float32)
        slot = tl.load(indices_ptrs).to(tl.int64)

        state, _correction, output = delta_step(state, decay, key, query, value, beta)

        tl.store(out_ptrs, output.to(out_ptr.dtype.element_ty))
        if slot > 0:
            tl.store(tile_ptrs + slot * stride_state_slot, state.to(state_ptr.dtype.element_ty))
        q_ptrs += stride_q_token
        k_ptrs += stride_k_token
        v_ptrs += stride_v_token
        gate_ptrs += stride_gate_token
        beta_ptrs += stride_beta_token
        out_ptrs += stride_out_token
        indices_ptrs += 1
