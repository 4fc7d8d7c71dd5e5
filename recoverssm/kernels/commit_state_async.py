"""State commit with all loads in flight at once: folds each row's accepted records into its checkpoint, in all layers.

Direct form (docs/algorithm.md section 3): with the decay of the tokens after it multiplied into each key, the accepted
tokens are a sum on top of the decayed state whose terms wait for nothing but their loads. FMA units suffice.
"""

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from recoverssm.kernels.gate import log_decay
from recoverssm.kernels.gluon_compat import async_load, reinterpret, thread_barrier


@gluon.jit
def _add(a, b):
    return a + b


@gluon.jit
def _let_go(ptrs):
    """Tell the L2 that the lines which hold ptrs, and were to stay, are lines like any other."""
    gl.inline_asm_elementwise(
        "applypriority.global.L2::evict_normal [$1], 128; mov.b32 $0, 0;",
        "=r,l",
        [ptrs.to(gl.int64) & -128],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def _store_state_after(
    length,
    slot,
    source_ptr,
    state_ptr,
    state_slot_stride,
    raw_states,
    tile_offs,
    records,
    gate,
    TILE: gl.constexpr,
    CHANNELS: gl.constexpr,
    TOKEN_K: gl.constexpr,
    TOKEN_V: gl.constexpr,
    BOUNDED: gl.constexpr,
    RELOAD: gl.constexpr,  # what the L2 is told when the source is loaded again, for the next length; None: it is not
):
    """Store the state after ``length`` >= 1 of the accepted tokens, and return what is loaded of the source anew.

    Bits depend on these tokens alone: those behind them are zeros in every sum, as if they had not been accepted.
    """
    raw_keys_smem, raw_gates_smem, raw_corrections_smem = records
    raw_first_gate, dt_bias, gate_scale, lower_bound = gate
    TP: gl.constexpr = raw_keys_smem.shape[0]
    K: gl.constexpr = raw_keys_smem.shape[1]
    BV: gl.constexpr = raw_corrections_smem.shape[1]
    CHUNK: gl.constexpr = raw_states[0].shape[0]
    IN_V: gl.constexpr = gl.SliceLayout(1, TILE)
    IN_K: gl.constexpr = gl.SliceLayout(0, TILE)
    LINEAR: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])

    # Keys with the decay of the tokens after them; the inverse norm of a key goes to its correction.
    keys_smem = gl.allocate_shared_memory(gl.float32, [TP, K], PLAIN)
    decay_smem = gl.allocate_shared_memory(gl.float32, [K], LINEAR)
    corrections_smem = gl.allocate_shared_memory(gl.float32, [TP, BV], PLAIN)
    tokens = TP - 1 - gl.arange(0, TP, layout=gl.SliceLayout(1, CHANNELS))[:, None]
    raw_next_gate = raw_gates_smem.load(CHANNELS).to(gl.float32)
    next_decay = log_decay(raw_next_gate, dt_bias[None, :], gate_scale, lower_bound, BOUNDED)
    next_decay = gl.where(tokens + 1 < length, next_decay, 0.0)
    following = gl.associative_scan(next_decay, 0, _add)
    keys_smem.store(raw_keys_smem.load(CHANNELS).to(gl.float32) * gl.exp(following))
    first_decay = log_decay(raw_first_gate.to(gl.float32), dt_bias, gate_scale, lower_bound, BOUNDED)
    decay_smem.store(gl.exp(first_decay + gl.sum(next_decay, axis=0)))
    key = raw_keys_smem.load(TOKEN_K).to(gl.float32)
    inverse_norm = gl.rsqrt(gl.sum(key * key, axis=1) + 1e-6)
    inverse_norm = gl.convert_layout(inverse_norm, gl.SliceLayout(1, TOKEN_V))
    corrections_smem.store(raw_corrections_smem.load(TOKEN_V) * inverse_norm[:, None])
    thread_barrier()
    keys_smem = reinterpret(keys_smem, gl.float32, [TP, K], LINEAR)
    corrections_smem = reinterpret(corrections_smem, gl.float32, [TP, BV], LINEAR)

    slot_ptr = state_ptr + slot * state_slot_stride
    decay = decay_smem.load(IN_K)
    reloaded = ()
    for i in gl.static_range(BV // CHUNK):
        state = raw_states[i].to(gl.float32) * decay[None, :]  # [CHUNK, K]
        for t in range(length):
            correction = corrections_smem.index(TP - 1 - t).slice(i * CHUNK, CHUNK).load(IN_V)
            state += correction[:, None] * keys_smem.index(TP - 1 - t).load(IN_K)[None, :]
        state = state.to(raw_states[0].dtype)
        gl.store(slot_ptr + i * CHUNK * K + tile_offs, state)
        if RELOAD is not None:
            reloaded += (gl.load(source_ptr + i * CHUNK * K + tile_offs, eviction_policy=RELOAD),)
    return reloaded


@gluon.jit
def _commit_state_async_kernel(
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
    boundary_lens_ptr,
    boundary_slots_ptr,
    lower_bound,
    H: gl.constexpr,
    T: gl.constexpr,
    K: gl.constexpr,
    V: gl.constexpr,
    BV: gl.constexpr,
    CHUNK: gl.constexpr,
    KEEP: gl.constexpr,  # the L2 keeps what is read until it is written back
    BOUNDED: gl.constexpr,
    BY_SLOT: gl.constexpr,  # records go by source slot, not by row
    ALIGNED: gl.constexpr,
    J: gl.constexpr,
):
    """One program handles BV value rows of one head of one speculative row of one layer, CHUNK of them at a time.

    ``*_type_ptr`` are tensors of layer 0; only their element types are used. K is 128. ALIGNED must be true.
    With J = 0 boundaries are None.
    """
    NUM_WARPS: gl.constexpr = gl.num_warps()
    TP: gl.constexpr = triton.next_power_of_2(T)
    VEC: gl.constexpr = 128 // state_type_ptr.dtype.element_ty.primitive_bitwidth
    # 16 bytes a thread, and 4 rows, so that what it reads of the keys serves 4 FMA.
    TILE: gl.constexpr = gl.BlockedLayout([4, VEC], [32 * VEC // K, K // VEC], [NUM_WARPS, 1], [1, 0])
    IN_V: gl.constexpr = gl.SliceLayout(1, TILE)
    IN_K: gl.constexpr = gl.SliceLayout(0, TILE)
    # For the gates a thread owns channels; for norms and corrections 16 lanes share a token, the same in both.
    PER_THREAD: gl.constexpr = K // (32 * NUM_WARPS) if NUM_WARPS <= K // 32 else 1
    CHANNELS: gl.constexpr = gl.BlockedLayout([TP, PER_THREAD], [1, 32], [1, NUM_WARPS], [1, 0])
    TOKEN_K: gl.constexpr = gl.BlockedLayout([1, K // 16], [2, 16], [NUM_WARPS, 1], [1, 0])
    TOKEN_V: gl.constexpr = gl.BlockedLayout([1, BV // 16], [2, 16], [NUM_WARPS, 1], [1, 0])
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    LOAD: gl.constexpr = "evict_last" if KEEP else ""
    gl.static_assert(ALIGNED)

    pid = gl.program_id(0)
    layer = gl.program_id(1)
    pid_v = pid % (V // BV)
    pid_h = (pid // (V // BV)) % H
    row = (pid // (V // BV) // H).to(gl.int64)
    # The table is read before the early return: one latency instead of two. The barrier holds ptxas to it.
    commit_len = gl.minimum(gl.load(commit_lens_ptr + row), T)
    source_slot = gl.load(source_slots_ptr + row).to(gl.int64)
    final_slot = gl.load(final_slots_ptr + row).to(gl.int64)
    state_ptr = gl.load(state_addresses_ptr + layer).to(state_type_ptr.dtype)
    correction_ptr = gl.load(correction_addresses_ptr + layer).to(gl.pointer_type(gl.float32))
    key_gate_ptr = gl.load(key_gate_addresses_ptr + layer).to(key_gate_type_ptr.dtype)
    state_slot_stride = gl.load(state_slot_strides_ptr + layer)
    correction_row_stride = gl.load(correction_row_strides_ptr + layer)
    key_gate_row_stride = gl.load(key_gate_row_strides_ptr + layer)
    gate_scale = gl.exp(gl.load(A_log_ptr + layer * H + pid_h))
    if J > 0:
        last_boundary = 0
        for i in gl.static_range(J):
            last_boundary = gl.maximum(last_boundary, gl.load(boundary_lens_ptr + row * J + i))
    thread_barrier()
    if (commit_len <= 0) | (source_slot <= 0) | (final_slot <= 0):
        return
    # Without these hints every access through a loaded address compiles to 4-byte loads and stores.
    state_ptr = gl.multiple_of(state_ptr, 16)
    correction_ptr = gl.multiple_of(correction_ptr, 16)
    key_gate_ptr = gl.multiple_of(key_gate_ptr, 16)
    state_slot_stride = gl.multiple_of(state_slot_stride, 16)
    correction_row_stride = gl.multiple_of(correction_row_stride, 16)
    key_gate_row_stride = gl.multiple_of(key_gate_row_stride, 16)

    # Records to shared memory, the last token first, so that a scan sums over the tokens after each; beside a token's
    # key the gate of the next one. Tokens that were not accepted are not read and become zeros.
    raw_keys_smem = gl.allocate_shared_memory(key_gate_type_ptr.dtype.element_ty, [TP, K], PLAIN)
    raw_gates_smem = gl.allocate_shared_memory(key_gate_type_ptr.dtype.element_ty, [TP, K], PLAIN)
    raw_corrections_smem = gl.allocate_shared_memory(gl.float32, [TP, BV], PLAIN)
    record = source_slot if BY_SLOT else row
    key_gate_ptr += record * key_gate_row_stride + pid_h * T * 2 * K
    correction_ptr += record * correction_row_stride + pid_h * T * V + pid_v * BV
    tokens = TP - 1 - gl.arange(0, TP, layout=gl.SliceLayout(1, TOKEN_K))[:, None]
    record_ptrs = key_gate_ptr + tokens * 2 * K + gl.arange(0, K, layout=gl.SliceLayout(0, TOKEN_K))[None, :]
    async_load(raw_gates_smem, record_ptrs + 3 * K, mask=tokens + 1 < commit_len)
    async_load(raw_keys_smem, record_ptrs, mask=tokens < commit_len)
    tokens = TP - 1 - gl.arange(0, TP, layout=gl.SliceLayout(1, TOKEN_V))[:, None]
    correction_ptrs = correction_ptr + tokens * V + gl.arange(0, BV, layout=gl.SliceLayout(0, TOKEN_V))[None, :]
    async_load(raw_corrections_smem, correction_ptrs, mask=tokens < commit_len)
    async_copy.commit_group()
    # The state and what else there is to registers.
    channels = gl.arange(0, K, layout=gl.SliceLayout(0, CHANNELS))
    raw_first_gate = gl.load(key_gate_ptr + K + channels)
    dt_bias = gl.load(dt_bias_ptr + (layer * H + pid_h) * K + channels)
    offs_v = gl.arange(0, CHUNK, layout=IN_V)
    tile_offs = offs_v[:, None] * K + gl.arange(0, K, layout=IN_K)[None, :]
    state_ptr += (pid_h * V + pid_v * BV) * K
    source_ptr = state_ptr + source_slot * state_slot_stride
    raw_states = ()
    for i in gl.static_range(BV // CHUNK):
        source_ptrs = source_ptr + i * CHUNK * K + tile_offs
        raw_states += (gl.load(source_ptrs, eviction_policy=LOAD),)
    thread_barrier()
    async_copy.wait_group(0)
    thread_barrier()

    records = (raw_keys_smem, raw_gates_smem, raw_corrections_smem)
    gate = (raw_first_gate, dt_bias, gate_scale, lower_bound)
    if J > 0:
        if last_boundary > 0:
            for j in range(J):
                length = gl.minimum(gl.load(boundary_lens_ptr + row * J + j), commit_len)
                slot = gl.load(boundary_slots_ptr + row * J + j).to(gl.int64)
                if (length > 0) & (slot > 0) & (slot != final_slot):
                    # Sums take the registers of the source, which the L2 still has: a copy in registers would leave
                    # a card fewer programs at once, those too that cross nothing.
                    raw_states = _store_state_after(
                        length,
                        slot,
                        source_ptr,
                        state_ptr,
                        state_slot_stride,
                        raw_states,
                        tile_offs,
                        records,
                        gate,
                        TILE,
                        CHANNELS,
                        TOKEN_K,
                        TOKEN_V,
                        BOUNDED,
                        LOAD,
                    )
                    thread_barrier()  # the keys of the next length take the place of these
    _store_state_after(
        commit_len,
        final_slot,
        source_ptr,
        state_ptr,
        state_slot_stride,
        raw_states,
        tile_offs,
        records,
        gate,
        TILE,
        CHANNELS,
        TOKEN_K,
        TOKEN_V,
        BOUNDED,
        None,
    )
    if KEEP:
        thread_barrier()
        LINE: gl.constexpr = 8 * VEC  # elements in 128 bytes
        _let_go(source_ptr + LINE * gl.arange(0, BV * K // LINE, gl.BlockedLayout([1], [32], [NUM_WARPS], [0])))
