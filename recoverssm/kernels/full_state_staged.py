"""Full-state verify whose programs stage the vectors of a window in shared memory, once for all of their value rows.

The recurrence of full_state.py with the layouts spelled out: a store covers whole lines of the state, a token costs one
round of reductions instead of two, and gates and norms are computed once for a window.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from recoverssm.kernels.gate import log_decay
from recoverssm.kernels.gluon_compat import reinterpret, thread_barrier


@gluon.jit
def _full_state_staged_kernel(
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
    H: gl.constexpr,
    T: gl.constexpr,
    K: gl.constexpr,
    V: gl.constexpr,
    BV: gl.constexpr,
    BOUNDED: gl.constexpr,
    LANES: gl.constexpr,  # that share a value row
    ROWS: gl.constexpr,  # adjacent value rows of a thread
    UNROLLED: gl.constexpr,  # the loop over tokens
    MASKED: gl.constexpr,  # an unrolled loop masks stores instead of skipping tokens
    EVICT: gl.constexpr,  # stored states leave the L2 first
):
    """One program handles BV value rows of one head of one speculative row."""
    BT: gl.constexpr = 2 if T <= 2 else 4 if T <= 4 else 8 if T <= 8 else 16
    WIDTH: gl.constexpr = 4 if state_ptr.dtype.element_ty == gl.float32 else 8  # channels in 16 bytes
    W: gl.constexpr = gl.num_warps()
    POLICY: gl.constexpr = "evict_first" if EVICT else ""
    tile: gl.constexpr = gl.BlockedLayout([ROWS, WIDTH], [32 // LANES, LANES], [W, 1], [1, 0])
    vectors: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [W, 1], [1, 0])  # [BT, K]
    elements: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [W, 1], [1, 0])  # [BT, BV]
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    flat2: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])

    pid = gl.program_id(0)
    pid_v = pid % (V // BV)
    pid_h = (pid // (V // BV)) % H
    row = (pid // (V // BV) // H).to(gl.int64)
    first_token = gl.load(query_start_loc_ptr + row).to(gl.int64)
    query_len = gl.load(query_start_loc_ptr + row + 1) - first_token.to(gl.int32)
    query_len = gl.minimum(query_len, T)
    indices_ptr = state_indices_ptr + row * stride_indices_row
    # All slots at once, so that the source's does not wait for num_accepted.
    offs_s = gl.arange(0, BT, gl.BlockedLayout([1], [32], [W], [0]))
    slots = gl.load(indices_ptr + offs_s, mask=offs_s < T, other=0)
    column = gl.minimum(gl.maximum(gl.load(num_accepted_ptr + row), 1), T) - 1
    source_slot = gl.sum(gl.where(offs_s == column, slots, 0), axis=0).to(gl.int64)

    offs_t = gl.arange(0, BT, gl.SliceLayout(1, vectors))
    offs_k = pid_h * K + gl.arange(0, K, gl.SliceLayout(0, vectors))[None, :]
    mask_t = offs_t < query_len
    token, mask_tk = offs_t[:, None], mask_t[:, None]
    raw_key = gl.load(k_ptr + first_token * stride_k_token + (token * stride_k_token + offs_k), mask_tk, 0.0)
    raw_query = gl.load(q_ptr + first_token * stride_q_token + (token * stride_q_token + offs_k), mask_tk, 0.0)
    gate_ptr = raw_gate_ptr + first_token * stride_gate_token
    raw_gate = gl.load(gate_ptr + (token * stride_gate_token + offs_k), mask_tk, 0.0)
    dt_bias = gl.load(dt_bias_ptr + offs_k)
    beta_ptr = raw_beta_ptr + first_token * stride_beta_token
    raw_beta = gl.load(beta_ptr + (offs_t * stride_beta_token + pid_h), mask_t, 0.0).to(gl.float32)
    gate_scale = gl.exp(gl.load(A_log_ptr + pid_h))
    offs_tv = gl.arange(0, BT, gl.SliceLayout(1, elements))[:, None]
    offs_v = pid_h * V + pid_v * BV + gl.arange(0, BV, gl.SliceLayout(0, elements))[None, :]
    value_ptr = v_ptr + first_token * stride_v_token
    value = gl.load(value_ptr + (offs_tv * stride_v_token + offs_v), offs_tv < query_len, 0.0)

    offs_r = gl.arange(0, BV, gl.SliceLayout(1, tile))
    out_ptrs = out_ptr + first_token * stride_out_token + pid_h * V + pid_v * BV + offs_r
    if source_slot <= 0:
        for t in range(query_len):
            zeros = gl.zeros([BV], out_ptr.dtype.element_ty, gl.SliceLayout(1, tile))
            gl.store(out_ptrs + t * stride_out_token, zeros)
        return

    state_ptr += (pid_h * V + pid_v * BV) * K
    offs = offs_r[:, None] * K + gl.arange(0, K, gl.SliceLayout(0, tile))[None, :]
    loaded = gl.load(state_ptr + source_slot * stride_state_slot + offs)  # [BV, K]
    slot = gl.load(indices_ptr).to(gl.int64)

    key = raw_key.to(gl.float32)
    query = raw_query.to(gl.float32)
    key = key * gl.rsqrt(gl.sum(key * key, axis=1) + 1e-6)[:, None]
    query = query * (gl.rsqrt(gl.sum(query * query, axis=1) + 1e-6)[:, None] * query_scale)
    decay = gl.exp(log_decay(raw_gate.to(gl.float32), dt_bias, gate_scale, lower_bound, BOUNDED))
    beta = 1.0 / (1.0 + gl.exp(-raw_beta))
    keys = reinterpret(gl.allocate_shared_memory(gl.float32, [BT, K], flat2, key), gl.float32, [BT, 1, K], flat2)
    queries = reinterpret(gl.allocate_shared_memory(gl.float32, [BT, K], flat2, query), gl.float32, [BT, 1, K], flat2)
    decays = reinterpret(gl.allocate_shared_memory(gl.float32, [BT, K], flat2, decay), gl.float32, [BT, 1, K], flat2)
    values = gl.allocate_shared_memory(gl.float32, [BT, BV], flat2, value.to(gl.float32))
    values = reinterpret(values, gl.float32, [BT, BV, 1], flat2)
    betas = reinterpret(gl.allocate_shared_memory(gl.float32, [BT], flat, beta), gl.float32, [BT, 1, 1], flat2)
    overlap = gl.sum(key * query, axis=1)
    overlaps = reinterpret(gl.allocate_shared_memory(gl.float32, [BT], flat, overlap), gl.float32, [BT, 1, 1], flat2)

    state = loaded.to(gl.float32)
    staged = (keys, queries, decays, values, betas, overlaps)
    if UNROLLED and MASKED:
        targets = ()
        for t in gl.static_range(T):
            targets += (gl.load(indices_ptr + t).to(gl.int64),)
        for t in gl.static_range(T):
            state, output = _delta_step(state, t, staged, tile)
            gl.store(out_ptrs + t * stride_out_token, output.to(out_ptr.dtype.element_ty), t < query_len)
            stored = state.to(state_ptr.dtype.element_ty)
            mask = (t < query_len) & (targets[t] > 0)
            gl.store(state_ptr + targets[t] * stride_state_slot + offs, stored, mask, eviction_policy=POLICY)
    elif UNROLLED:
        thread_barrier()  # else each token that may be skipped waits for one of its own
        for t in gl.static_range(T):
            if t < query_len:
                slot = gl.load(indices_ptr + t).to(gl.int64)
                state = _store_step(state, t, staged, out_ptrs, state_ptr, slot, stride_state_slot, offs, tile, POLICY)
            out_ptrs += stride_out_token
    else:
        for t in range(query_len):
            next_slot = gl.load(indices_ptr + gl.minimum(t + 1, T - 1)).to(gl.int64)
            state = _store_step(state, t, staged, out_ptrs, state_ptr, slot, stride_state_slot, offs, tile, POLICY)
            slot = next_slot
            out_ptrs += stride_out_token


@gluon.jit
def _store_step(
    state, t, staged, out_ptrs, state_ptr, slot, stride_state_slot, offs, tile: gl.constexpr, POLICY: gl.constexpr
):
    """Token t with its stores; returns the new state."""
    state, output = _delta_step(state, t, staged, tile)
    gl.store(out_ptrs, output.to(out_ptrs.dtype.element_ty))
    if slot > 0:
        stored = state.to(state_ptr.dtype.element_ty)
        gl.store(state_ptr + slot * stride_state_slot + offs, stored, eviction_policy=POLICY)
    return state


@gluon.jit
def _delta_step(state, t, staged, tile: gl.constexpr):
    """Token t: the new state and the output; the query meets the decayed state beside the key, not after it."""
    state = state * staged[2].index(t).load(tile)
    key = staged[0].index(t).load(tile)
    read = gl.sum(state * key, axis=1)  # [BV]
    seen = gl.sum(state * staged[1].index(t).load(tile), axis=1)
    value = gl.sum(staged[3].index(t).load(tile), axis=1)  # of one element
    beta = gl.sum(staged[4].index(t).load(tile), axis=1)
    overlap = gl.sum(staged[5].index(t).load(tile), axis=1)
    correction = beta * (value - read)
    return state + correction[:, None] * key, seen + correction * overlap
