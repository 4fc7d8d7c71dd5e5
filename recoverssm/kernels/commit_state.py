"""State commit kernel: folds each row's accepted records forward into its checkpoint, all layers in one launch."""

import triton
import triton.language as tl

from recoverssm.kernels.recurrence import folded, key_offsets


@triton.jit
def _commit_state_kernel(
    state_addresses_ptr,
    correction_addresses_ptr,
    key_gate_addresses_ptr,
    state_slot_strides_ptr,
    correction_row_strides_ptr,
    key_gate_row_strides_ptr,
    state_type_ptr,
    key_gate_type_ptr,
    A_log_ptr,
    dt_bias_ptr,
    commit_lens_ptr,
    source_slots_ptr,
    final_slots_ptr,
    record_rows_ptr,
    boundary_lens_ptr,
    boundary_slots_ptr,
    lower_bound,
    H: tl.constexpr,
    T: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    BV: tl.constexpr,
    BK: tl.constexpr,
    BOUNDED: tl.constexpr,
    HAS_RECORD_ROWS: tl.constexpr,  # else row n has entry n of the records
    NUM_STAGES: tl.constexpr,
    ALIGNED: tl.constexpr,
    J: tl.constexpr,
):
    """One program handles BV value rows of one head of one speculative row of one layer.

    ``*_type_ptr`` are tensors of layer 0; only their element types are used. With J = 0 boundaries are None.
    """
    pid = tl.program_id(0)
    layer = tl.program_id(1)
    pid_v = pid % (V // BV)
    pid_h = (pid // (V // BV)) % H
    row = (pid // (V // BV) // H).to(tl.int64)
    commit_len = tl.minimum(tl.load(commit_lens_ptr + row), T)
    source_slot = tl.load(source_slots_ptr + row).to(tl.int64)
    final_slot = tl.load(final_slots_ptr + row).to(tl.int64)
    if (commit_len <= 0) | (source_slot <= 0) | (final_slot <= 0):
        return

    state_ptr = tl.load(state_addresses_ptr + layer).to(state_type_ptr.dtype)
    correction_ptr = tl.load(correction_addresses_ptr + layer).to(tl.pointer_type(tl.float32))
    key_gate_ptr = tl.load(key_gate_addresses_ptr + layer).to(key_gate_type_ptr.dtype)
    state_slot_stride = tl.load(state_slot_strides_ptr + layer)
    correction_row_stride = tl.load(correction_row_strides_ptr + layer)
    key_gate_row_stride = tl.load(key_gate_row_strides_ptr + layer)
    if ALIGNED:
        # Without the hint every access through a loaded address compiles to 4-byte loads and stores.
        state_ptr = tl.multiple_of(state_ptr, 16)
        correction_ptr = tl.multiple_of(correction_ptr, 16)
        key_gate_ptr = tl.multiple_of(key_gate_ptr, 16)
        state_slot_stride = tl.multiple_of(state_slot_stride, 16)
        correction_row_stride = tl.multiple_of(correction_row_stride, 16)
        key_gate_row_stride = tl.multiple_of(key_gate_row_stride, 16)

    offs_k = key_offsets(K, BK)
    offs_v = pid_v * BV + tl.arange(0, BV)
    tile_ptrs = state_ptr + (pid_h * V + offs_v[:, None, None]) * K + offs_k[None, :, :]
    state = tl.load(tile_ptrs + source_slot * state_slot_stride).to(tl.float32)  # [BV, K / BK, BK]
    gate_scale = tl.exp(tl.load(A_log_ptr + layer * H + pid_h))
    dt_bias = tl.load(dt_bias_ptr + (layer * H + pid_h) * K + offs_k)
    record = row
    if HAS_RECORD_ROWS:
        record = tl.load(record_rows_ptr + row).to(tl.int64)
    correction_ptrs = correction_ptr + record * correction_row_stride + pid_h * T * V + offs_v
    key_gate_ptrs = key_gate_ptr + record * key_gate_row_stride + pid_h * T * 2 * K + offs_k

    first = 0
    if J > 0:
        for j in range(J):
            length = tl.minimum(tl.load(boundary_lens_ptr + row * J + j), commit_len)
            slot = tl.load(boundary_slots_ptr + row * J + j).to(tl.int64)
            for t in tl.range(first, length, num_stages=NUM_STAGES):
                state = folded(
                    state,
                    key_gate_ptrs + t * 2 * K,
                    correction_ptrs + t * V,
                    dt_bias,
                    gate_scale,
                    lower_bound,
                    K,
                    BOUNDED,
                )
            if (length > 0) & (slot > 0) & (slot != final_slot):
                tl.store(tile_ptrs + slot * state_slot_stride, state.to(state_type_ptr.dtype.element_ty))
            first = tl.maximum(first, length)
    for t in tl.range(first, commit_len, num_stages=NUM_STAGES):
        state = folded(
            state, key_gate_ptrs + t * 2 * K, correction_ptrs + t * V, dt_bias, gate_scale, lower_bound, K, BOUNDED
        )

    tl.store(tile_ptrs + final_slot * state_slot_stride, state.to(state_type_ptr.dtype.element_ty))
