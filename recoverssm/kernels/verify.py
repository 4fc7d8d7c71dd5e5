"""Verify kernel: reads one checkpoint per row, writes outputs and records, leaves every state alone."""

import triton
import triton.language as tl

from recoverssm.kernels.recurrence import delta_step, folded, kda_decay, key_offsets, l2_normalised


@triton.jit
def _verify_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    raw_gate_ptr,
    raw_beta_ptr,
    A_log_ptr,
    dt_bias_ptr,
    state_ptr,
    correction_ptr,
    key_gate_ptr,
    out_ptr,
    query_start_loc_ptr,
    state_indices_ptr,
    record_rows_ptr,
    history_lens_ptr,
    lower_bound,
    query_scale,
    stride_q_token,
    stride_k_token,
    stride_v_token,
    stride_gate_token,
    stride_beta_token,
    stride_out_token,
    stride_state_slot,
    stride_correction_row,
    stride_key_gate_row,
    H: tl.constexpr,
    T: tl.constexpr,
    C: tl.constexpr,  # token positions of an entry of the records, T or more
    K: tl.constexpr,
    V: tl.constexpr,
    BV: tl.constexpr,
    BK: tl.constexpr,
    BOUNDED: tl.constexpr,
    HAS_RECORD_ROWS: tl.constexpr,  # else row n has entry n of the records
    RECORDED: tl.constexpr,  # keys and raw gates stand in the records already
    NUM_STAGES: tl.constexpr,
):
    """One program handles BV value rows of one head of one speculative row.

    With history_lens the first history_lens[row] positions of the row's entry hold accepted tokens that its state
    lacks; the window is recorded behind them.
    """
    pid = tl.program_id(0)
    pid_v = pid % (V // BV)
    pid_h = (pid // (V // BV)) % H
    row = (pid // (V // BV) // H).to(tl.int64)
    first_token = tl.load(query_start_loc_ptr + row).to(tl.int64)
    query_len = tl.load(query_start_loc_ptr + row + 1) - first_token.to(tl.int32)
    query_len = tl.minimum(query_len, T)
    slot = tl.load(state_indices_ptr + row).to(tl.int64)

    offs_k = key_offsets(K, BK)
    offs_v = pid_v * BV + tl.arange(0, BV)
    out_ptrs = out_ptr + first_token * stride_out_token + pid_h * V + offs_v
    if slot <= 0:
        for _ in range(query_len):
            tl.store(out_ptrs, tl.zeros([BV], out_ptr.dtype.element_ty))
            out_ptrs += stride_out_token
        return

    state_ptrs = state_ptr + slot * stride_state_slot + (pid_h * V + offs_v[:, None, None]) * K + offs_k[None, :, :]
    state = tl.load(state_ptrs).to(tl.float32)  # [BV, K / BK, BK]
    gate_scale = tl.exp(tl.load(A_log_ptr + pid_h))
    dt_bias = tl.load(dt_bias_ptr + pid_h * K + offs_k)
    q_ptrs = q_ptr + first_token * stride_q_token + pid_h * K + offs_k
    v_ptrs = v_ptr + first_token * stride_v_token + pid_h * V + offs_v
    beta_ptrs = raw_beta_ptr + first_token * stride_beta_token + pid_h
    record = row
    if HAS_RECORD_ROWS:
        record = tl.load(record_rows_ptr + row).to(tl.int64)
    correction_ptrs = correction_ptr + record * stride_correction_row + pid_h * C * V + offs_v
    key_gate_ptrs = key_gate_ptr + record * stride_key_gate_row + pid_h * C * 2 * K + offs_k
    if history_lens_ptr is not None:
        for _ in tl.range(tl.minimum(tl.load(history_lens_ptr + row), C - T), num_stages=NUM_STAGES):
            state = folded(state, key_gate_ptrs, correction_ptrs, dt_bias, gate_scale, lower_bound, K, BOUNDED)
            correction_ptrs += V
            key_gate_ptrs += 2 * K
    if RECORDED:
        k_ptrs, gate_ptrs = key_gate_ptrs, key_gate_ptrs + K
        stride_k_token, stride_gate_token = 2 * K, 2 * K
    else:
        k_ptrs = k_ptr + first_token * stride_k_token + pid_h * K + offs_k
        gate_ptrs = raw_gate_ptr + first_token * stride_gate_token + pid_h * K + offs_k

    for _ in tl.range(query_len, num_stages=NUM_STAGES):
        raw_key = tl.load(k_ptrs)
        raw_gate = tl.load(gate_ptrs)
        key = l2_normalised(raw_key.to(tl.float32))
        query = l2_normalised(tl.load(q_ptrs).to(tl.float32)) * query_scale
        decay = kda_decay(raw_gate.to(tl.float32), dt_bias, gate_scale, lower_bound, BOUNDED)
        beta = tl.sigmoid(tl.load(beta_ptrs).to(tl.float32))
        value = tl.load(v_ptrs).to(tl.float32)

        state, correction, output = delta_step(state, decay, key, query, value, beta)

        tl.store(out_ptrs, output.to(out_ptr.dtype.element_ty))
        tl.store(correction_ptrs, correction)
        if pid_v == 0 and not RECORDED:
            tl.store(key_gate_ptrs, raw_key.to(key_gate_ptr.dtype.element_ty))
            tl.store(key_gate_ptrs + K, raw_gate.to(key_gate_ptr.dtype.element_ty))
        q_ptrs += stride_q_token
        k_ptrs += stride_k_token
        v_ptrs += stride_v_token
        gate_ptrs += stride_gate_token
        beta_ptrs += stride_beta_token
        out_ptrs += stride_out_token
        correction_ptrs += V
        key_gate_ptrs += 2 * K
