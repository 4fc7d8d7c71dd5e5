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
def _boundary(lens_ptr, slots_ptr, place, commit_len, final_slot):
    """Where a boundary lies, the slot of its state, and whether there is one that is not the final state's."""
    length = gl.minimum(gl.load(lens_ptr + place), commit_len)
    slot = gl.load(slots_ptr + place).to(gl.int64)
    return length, slot, (length > 0) & (slot > 0) & (slot != final_slot)


@gluon.jit
def _decays_behind(begin, end, tokens, next_decay, following):
    """``following``, with the log decay behind each token ``begin`` to ``end`` in this run, and what it sums."""
    in_run = gl.where((tokens + 1 >= begin) & (tokens + 1 < end), next_decay, 0.0)
    return gl.where(tokens >= begin, gl.associative_scan(in_run, 0, _add), following), in_run


@gluon.jit
def _run_decay(begin, in_run, gate, BOUNDED: gl.constexpr):
    raw_first_gate, dt_bias, gate_scale, lower_bound = gate
    first_decay = log_decay(raw_first_gate.to(gl.float32), dt_bias, gate_scale, lower_bound, BOUNDED)
    return gl.exp(gl.where(begin == 0, first_decay, 0.0) + gl.sum(in_run, axis=0))


@gluon.jit
def _fold_run(state, begin, end, decay, keys_smem, corrections_smem, first: gl.constexpr, TILE: gl.constexpr):
    """What the tokens ``begin`` to ``end`` make of the value rows from ``first`` on; in memory the last comes first."""
    CHUNK: gl.constexpr = state.shape[0]
    LAST: gl.constexpr = keys_smem.shape[0] - 1
    state *= decay[None, :]
    for t in range(begin, end):
        correction = corrections_smem.index(LAST - t).slice(first, CHUNK).load(gl.SliceLayout(1, TILE))
        state += correction[:, None] * keys_smem.index(LAST - t).load(gl.SliceLayout(0, TILE))[None, :]
    return state


@gluon.jit
def _store_states(
    plan,
    pool,
    records,
    gate,
    TILE: gl.constexpr,
    CHANNELS: gl.constexpr,
    TOKEN_K: gl.constexpr,
    TOKEN_V: gl.constexpr,
    BOUNDED: gl.constexpr,
    J: gl.constexpr,
):
    """Store the state after ``commit_len`` >= 1 tokens, and on the way there those at the row's J boundaries.

    Tokens are taken in runs, each up to the next boundary: on top of the state where it begins, decayed over the run,
    comes the sum of its tokens. Bits depend on these runs alone: tokens that were not accepted are zeros in a sum.
    """
    row, commit_len, final_slot, boundary_lens_ptr, boundary_slots_ptr = plan
    state_ptr, state_slot_stride, tile_offs, raw_states = pool
    raw_keys_smem, raw_gates_smem, raw_corrections_smem = records
    _first_gate, dt_bias, gate_scale, lower_bound = gate
    TP: gl.constexpr = raw_keys_smem.shape[0]
    K: gl.constexpr = raw_keys_smem.shape[1]
    BV: gl.constexpr = raw_corrections_smem.shape[1]
    CHUNK: gl.constexpr = raw_states[0].shape[0]
    IN_K: gl.constexpr = gl.SliceLayout(0, TILE)
    LINEAR: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    PLAIN: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])

    # Keys with the decay of the tokens after them in their run; the inverse norm of a key goes to its correction.
    keys_smem = gl.allocate_shared_memory(gl.float32, [TP, K], PLAIN)
    decay_smem = gl.allocate_shared_memory(gl.float32, [J + 1, K], LINEAR)
    corrections_smem = gl.allocate_shared_memory(gl.float32, [TP, BV], PLAIN)
    tokens = TP - 1 - gl.arange(0, TP, layout=gl.SliceLayout(1, CHANNELS))[:, None]
    raw_next_gate = raw_gates_smem.load(CHANNELS).to(gl.float32)
    next_decay = log_decay(raw_next_gate, dt_bias[None, :], gate_scale, lower_bound, BOUNDED)
    following = gl.zeros_like(next_decay)
    begin = 0
    if J > 0:
        for j in range(J):
            end, slot, is_crossed = _boundary(
                boundary_lens_ptr, boundary_slots_ptr, row * J + j, commit_len, final_slot
            )
            if is_crossed:
                following, in_run = _decays_behind(begin, end, tokens, next_decay, following)
                decay_smem.index(j).store(_run_decay(begin, in_run, gate, BOUNDED))
                begin = end
    following, in_last_run = _decays_behind(begin, commit_len, tokens, next_decay, following)
    keys_smem.store(raw_keys_smem.load(CHANNELS).to(gl.float32) * gl.exp(following))
    decay_smem.index(J).store(_run_decay(begin, in_last_run, gate, BOUNDED))
    key = raw_keys_smem.load(TOKEN_K).to(gl.float32)
    inverse_norm = gl.rsqrt(gl.sum(key * key, axis=1) + 1e-6)
    inverse_norm = gl.convert_layout(inverse_norm, gl.SliceLayout(1, TOKEN_V))
    corrections_smem.store(raw_corrections_smem.load(TOKEN_V) * inverse_norm[:, None])
    thread_barrier()
    keys_smem = reinterpret(keys_smem, gl.float32, [TP, K], LINEAR)
    corrections_smem = reinterpret(corrections_smem, gl.float32, [TP, BV], LINEAR)

    final_ptr = state_ptr + final_slot * state_slot_stride
    last_decay = decay_smem.index(J).load(IN_K)
    for i in gl.static_range(BV // CHUNK):
        state = raw_states[i].to(gl.float32)  # [CHUNK, K]
        begin = 0
        if J > 0:
            for j in range(J):
                end, slot, is_crossed = _boundary(
                    boundary_lens_ptr, boundary_slots_ptr, row * J + j, commit_len, final_slot
                )
                if is_crossed:
                    decay = decay_smem.index(j).load(IN_K)
                    state = _fold_run(state, begin, end, decay, keys_smem, corrections_smem, i * CHUNK, TILE)
                    tile_ptr = state_ptr + slot * state_slot_stride + i * CHUNK * K
                    gl.store(tile_ptr + tile_offs, state.to(raw_states[0].dtype))
                    begin = end
        state = _fold_run(state, begin, commit_len, last_decay, keys_smem, corrections_smem, i * CHUNK, TILE)
        state = state.to(raw_states[0].dtype)
        gl.store(final_ptr + i * CHUNK * K + tile_offs, state)


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
    record_rows_ptr,
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
    HAS_RECORD_ROWS: gl.constexpr,  # else row n has entry n of the records
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
    record = row
    if HAS_RECORD_ROWS:
        record = gl.load(record_rows_ptr + row).to(gl.int64)
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
    plan = (row, commit_len, final_slot, boundary_lens_ptr, boundary_slots_ptr)
    pool = (state_ptr, state_slot_stride, tile_offs, raw_states)
    if J > 0:
        if last_boundary > 0:
            _store_states(plan, pool, records, gate, TILE, CHANNELS, TOKEN_K, TOKEN_V, BOUNDED, J)
        else:
            _store_states(plan, pool, records, gate, TILE, CHANNELS, TOKEN_K, TOKEN_V, BOUNDED, 0)
    else:
        _store_states(plan, pool, records, gate, TILE, CHANNELS, TOKEN_K, TOKEN_V, BOUNDED, 0)
    if KEEP:
        thread_barrier()
        LINE: gl.constexpr = 8 * VEC  # elements in 128 bytes
        _let_go(source_ptr + LINE * gl.arange(0, BV * K // LINE, gl.BlockedLayout([1], [32], [NUM_WARPS], [0])))
