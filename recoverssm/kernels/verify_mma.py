"""Verify on tensor cores without wgmma: reads one checkpoint per row, writes outputs and records, leaves states alone.

WY form (docs/algorithm.md) on mma.sync, for NVIDIA cards from sm_80 on. Each warp has a quarter of the key channels, so
that the state goes from memory to the tensor cores in registers; what the warps have is added up in shared memory.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

from recoverssm.kernels.coupling import rounded_product, tf32_parts
from recoverssm.kernels.gate import softplus
from recoverssm.kernels.gluon_compat import mma_tf32


@gluon.jit
def _bf16_parts(x):
    """Three numbers of 8 bits that add up to x."""
    high = x.to(gl.bfloat16)
    rest = x - high.to(gl.float32)
    middle = rest.to(gl.bfloat16)
    return high, middle, (rest - middle.to(gl.float32)).to(gl.bfloat16)


@gluon.jit
def _offsets(layout: gl.constexpr, A: gl.constexpr, B: gl.constexpr, C: gl.constexpr):
    a = gl.arange(0, A, gl.SliceLayout(1, gl.SliceLayout(2, layout)))[:, None, None]
    b = gl.arange(0, B, gl.SliceLayout(0, gl.SliceLayout(2, layout)))[None, :, None]
    c = gl.arange(0, C, gl.SliceLayout(0, gl.SliceLayout(1, layout)))[None, None, :]
    return a, b, c


@gluon.jit
def _stacked(a, b):
    """[W, n, K] and [W, n, K] to [W, 2n, K], a's rows first."""
    x = gl.permute(gl.join(a, b), (0, 3, 1, 2))
    return gl.reshape(x, [a.shape[0], 2 * a.shape[1], a.shape[2]])


@gluon.jit
def _three_products(a_high, a_low, b_high, b_low, acc, LAYOUT: gl.constexpr):
    """The product of a and b but for low times low; the small products have a chain of their own."""
    small = gl.zeros(acc.shape, gl.float32, LAYOUT)
    small = mma_tf32(a_low, b_high, small)
    small = mma_tf32(a_high, b_low, small)
    return mma_tf32(a_high, b_high, acc) + small


@gluon.jit
def _coupling_product(a, b, LHS: gl.constexpr, RHS: gl.constexpr, MMA: gl.constexpr):
    """The part of each warp's channels in a b^T; a: [W, 2T, 32], b: [W, T, 32]."""
    a_high, a_low = tf32_parts(a)
    b_high, b_low = tf32_parts(gl.permute(b, (0, 2, 1)))
    return _three_products(
        gl.convert_layout(a_high, LHS, assert_trivial=True),
        gl.convert_layout(a_low, LHS, assert_trivial=True),
        gl.convert_layout(b_high, RHS, assert_trivial=True),
        gl.convert_layout(b_low, RHS, assert_trivial=True),
        gl.zeros([a.shape[0], a.shape[1], b.shape[1]], gl.float32, MMA),
        MMA,
    )


@gluon.jit
def _octet_couplings(
    log_decay,
    key,
    query,
    token,
    CAUSAL_BLOCKS: gl.constexpr,
    LHS: gl.constexpr,
    RHS: gl.constexpr,
    MMA: gl.constexpr,
):
    """Couplings [W, 16, 8] of 8 tokens (keys, then queries), and log decays since their start, to their end, in all.

    Level h joins blocks of h tokens: t of an upper block and s of the lower one meet at the border between them, so
    that no exponent is a difference of sums and, with levels, no factor exceeds 1.
    """
    W: gl.constexpr = key.shape[0]
    _w, target, source = _offsets(MMA, W, 16, 8)
    prefix = log_decay
    suffix = gl.zeros_like(log_decay)
    block = log_decay
    if CAUSAL_BLOCKS:
        coupling = _coupling_product(_stacked(key, query), key, LHS, RHS, MMA)
        coupling = gl.where((target % 8) == source, coupling, 0.0)
    for level in gl.static_range(3):
        h = 2**level
        upper = (token & h) != 0
        if CAUSAL_BLOCKS:
            decay = gl.exp(gl.where(upper, prefix, suffix))
            decayed = key * decay
            product = _coupling_product(_stacked(decayed, query * decay), decayed, LHS, RHS, MMA)
            meets = ((target & h) != 0) & ((source & h) == 0) & (((target % 8) // (2 * h)) == (source // (2 * h)))
            coupling += gl.where(meets, product, 0.0)
        other = gl.gather(block, (token ^ h) + gl.zeros_like(block).to(gl.int32), axis=1)
        prefix += gl.where(upper, other, 0.0)
        suffix += gl.where(upper, 0.0, other)
        block += other
    if not CAUSAL_BLOCKS:
        # At most e^(-8 lower_bound) apart; the power of two brings both factors nearer to 1.
        decay = gl.exp(prefix) * 16777216.0
        coupling = _coupling_product(
            _stacked(key * decay, query * decay), key * (gl.exp(-prefix) * (1.0 / 16777216.0)), LHS, RHS, MMA
        )
    return coupling, prefix, suffix, block


@gluon.jit
def _probe_parts(x, FP32: gl.constexpr, RHS: gl.constexpr):
    """Right operands from x [W, 8, 32], the sum of whose products with the state is exact to fp32."""
    x = gl.permute(x, (0, 2, 1))
    if FP32:
        high, low = tf32_parts(x)
        high, low = gl.convert_layout(high, RHS, assert_trivial=True), gl.convert_layout(low, RHS, assert_trivial=True)
        return high, low, low
    else:
        high, middle, low = _bf16_parts(x)
        return (
            gl.convert_layout(high, RHS, assert_trivial=True),
            gl.convert_layout(middle, RHS, assert_trivial=True),
            gl.convert_layout(low, RHS, assert_trivial=True),
        )


@gluon.jit
def _verify_mma_kernel(
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
    H: gl.constexpr,
    T: gl.constexpr,
    C: gl.constexpr,  # token positions of an entry of the records, T or more
    K: gl.constexpr,
    V: gl.constexpr,
    BV: gl.constexpr,
    BOUNDED: gl.constexpr,
    HAS_RECORD_ROWS: gl.constexpr,  # else row n has entry n of the records
    RECORDED: gl.constexpr,  # keys and raw gates stand in the records already
    CAUSAL_BLOCKS: gl.constexpr,  # couplings that no gate can make overflow
    SLICE: gl.constexpr,  # value rows whose products are taken at once
    AHEAD: gl.constexpr,  # slices whose loads are under way at once
    EVICT: gl.constexpr,  # the state leaves the L2 first
):
    """One program handles BV value rows of one head of one speculative row; warp w has channels 32 w to 32 w + 31.

    It takes no history: history_lens is None.
    """
    OCTETS: gl.constexpr = 1 if T <= 8 else 2
    BT: gl.constexpr = 8 * OCTETS
    NUM_SLICES: gl.constexpr = BV // SLICE
    POLICY: gl.constexpr = "evict_first" if EVICT else ""
    FP32: gl.constexpr = state_ptr.dtype.element_ty == gl.float32
    KW: gl.constexpr = 4 if FP32 else 8
    mma: gl.constexpr = gl.NVMMADistributedLayout(version=[2, 0], warps_per_cta=[4, 1, 1], instr_shape=[1, 16, 8])
    lhs: gl.constexpr = gl.DotOperandLayout(0, mma, KW)
    rhs: gl.constexpr = gl.DotOperandLayout(1, mma, KW)
    tokens: gl.constexpr = gl.BlockedLayout([1, 1, KW], [1, 8, 4], [4, 1, 1], [2, 1, 0])
    per_row: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [1, 4], [1, 0])  # [1, value row]

    pid = gl.program_id(0)
    pid_v = pid % (V // BV)
    pid_h = (pid // (V // BV)) % H
    row = (pid // (V // BV) // H).to(gl.int64)
    first_token = gl.load(query_start_loc_ptr + row).to(gl.int64)
    query_len = gl.load(query_start_loc_ptr + row + 1) - first_token.to(gl.int32)
    query_len = gl.minimum(query_len, T)
    slot = gl.load(state_indices_ptr + row).to(gl.int64)
    record = row
    if HAS_RECORD_ROWS:
        record = gl.load(record_rows_ptr + row).to(gl.int64)

    offs_v = pid_v * BV + gl.arange(0, BV, gl.SliceLayout(0, per_row))[None, :]
    out_ptrs = out_ptr + first_token * stride_out_token + pid_h * V + offs_v
    if (slot <= 0) | (query_len <= 0):
        for t in range(query_len):
            gl.store(out_ptrs + t * stride_out_token, gl.zeros([1, BV], out_ptr.dtype.element_ty, per_row))
        return

    # The state's first slices, [warp, value row, channel], under way during all that follows.
    chunk_s, offs_s, offs_sc = _offsets(lhs, 4, SLICE, 32)
    state_ptrs = state_ptr + slot * stride_state_slot + (pid_h * V + pid_v * BV + offs_s) * K + 32 * chunk_s + offs_sc
    chunk, token, offs_c = _offsets(tokens, 4, 8, 32)
    offs_k = pid_h * K + 32 * chunk + offs_c
    dt_bias = gl.load(dt_bias_ptr + offs_k)
    gate_scale = gl.exp(gl.load(A_log_ptr + pid_h))
    token_pairs: gl.constexpr = gl.BlockedLayout([4, 1, 2], [1, 32, 1], [1, 4, 1], [2, 1, 0])
    per_token: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(2, token_pairs))
    offs_b = gl.arange(0, BT, per_token)
    beta_ptrs = raw_beta_ptr + first_token * stride_beta_token + offs_b * stride_beta_token + pid_h
    raw_beta = gl.load(beta_ptrs, mask=offs_b < query_len, other=0.0)
    value_ptrs = v_ptr + first_token * stride_v_token + pid_h * V + offs_v

    # Couplings, square norms and probes, 8 tokens at a time; each warp has its part of every sum over channels.
    norms = gl.allocate_shared_memory(gl.float32, [4, BT, 2], gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0]))
    parts = gl.allocate_shared_memory(gl.float32, [4, 2 * BT, BT], gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0]))
    if OCTETS == 2:
        swizzled: gl.constexpr = gl.SwizzledSharedLayout(16, 1, 2, [2, 1, 0])
        probes = gl.allocate_shared_memory(gl.float32, [4, 2 * BT, 32], swizzled)
    slices = ()
    values = ()
    for o in gl.static_range(OCTETS):
        offs_t = token + 8 * o
        mask_t = offs_t < query_len
        row_k = first_token + offs_t
        kept = key_gate_ptr + record * stride_key_gate_row + (pid_h * C + offs_t) * (2 * K) + 32 * chunk + offs_c
        if RECORDED:
            k_ptrs, gate_ptrs = kept, kept + K
        else:
            k_ptrs, gate_ptrs = (
                k_ptr + row_k * stride_k_token + offs_k,
                raw_gate_ptr + row_k * stride_gate_token + offs_k,
            )
        raw_key = gl.load(k_ptrs, mask=mask_t, other=0.0)
        raw_gate = gl.load(gate_ptrs, mask=mask_t, other=0.0)
        raw_query = gl.load(q_ptr + row_k * stride_q_token + offs_k, mask=mask_t, other=0.0)
        if o == 0:
            for i in gl.static_range(min(AHEAD, NUM_SLICES)):
                slices = slices + (gl.load(state_ptrs + i * SLICE * K, eviction_policy=POLICY),)
        if pid_v == 0 and not RECORDED:
            gl.store(kept, raw_key.to(key_gate_ptr.dtype.element_ty), mask=mask_t)
            gl.store(kept + K, raw_gate.to(key_gate_ptr.dtype.element_ty), mask=mask_t)
        key = raw_key.to(gl.float32)
        query = raw_query.to(gl.float32)
        x = raw_gate.to(gl.float32) + dt_bias
        if BOUNDED:
            log_decay = lower_bound / (1.0 + gl.exp(-gate_scale * x))
        else:
            log_decay = -gate_scale * softplus(x)
        norms.slice(8 * o, 8, dim=1).store(gl.join(gl.sum(key * key, axis=2), gl.sum(query * query, axis=2)))
        coupling, prefix, suffix, block = _octet_couplings(log_decay, key, query, token, CAUSAL_BLOCKS, lhs, rhs, mma)
        parts.slice(16 * o, 16, dim=1).slice(8 * o, 8, dim=2).store(coupling)
        if o == 0:
            total = prefix
            if OCTETS == 2:
                first_key = rounded_product(key, gl.exp(suffix))  # split into parts behind the next octet's branch
                first_block = block
        else:
            decay = gl.exp(prefix)
            cross = _coupling_product(_stacked(key * decay, query * decay), first_key, lhs, rhs, mma)
            parts.slice(16, 16, dim=1).slice(0, 8, dim=2).store(cross)
            total = first_block + prefix
        decay = gl.exp(total)
        key_probe = key * decay
        query_probe = query * decay
        if OCTETS == 2:
            probes.slice(16 * o, 16, dim=1).store(_stacked(key_probe, query_probe))
    summed: gl.constexpr = gl.BlockedLayout([4, 1, 1], [1, 4, 8], [1, 4, 1], [2, 1, 0])
    coefs = gl.allocate_shared_memory(gl.float32, [2 * BT, BT], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    coefs.store(gl.sum(parts.load(summed), axis=0))
    scales = gl.allocate_shared_memory(gl.float32, [BT, 4], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    key_squares, query_squares = gl.split(gl.sum(norms.load(token_pairs), axis=0))
    kappa = gl.rsqrt(gl.convert_layout(key_squares, per_token) + 1e-6)
    rho = gl.rsqrt(gl.convert_layout(query_squares, per_token) + 1e-6) * query_scale
    beta = 1.0 / (1.0 + gl.exp(-raw_beta.to(gl.float32)))
    scales.store(gl.reshape(gl.join(gl.join(kappa, rho), gl.join(beta, beta)), [BT, 4]))
    for t in gl.static_range(T):
        values = values + (gl.load(value_ptrs + t * stride_v_token, mask=(offs_v >= 0) & (t < query_len), other=0.0),)

    # X = S [keys, queries]^T, each warp its part.
    padded: gl.constexpr = gl.PaddedSharedLayout.with_identity_for([[BV, 4]], [4, 2 * BT, BV], [2, 1, 0])
    probed = gl.allocate_shared_memory(gl.float32, [4, 2 * BT, BV], padded)
    if OCTETS == 1:
        pk = _probe_parts(key_probe, FP32, rhs)
        pq = _probe_parts(query_probe, FP32, rhs)
    zero = gl.zeros([4, SLICE, 8], gl.float32, mma)
    for i in gl.static_range(NUM_SLICES):
        state = slices[i]
        if i + AHEAD < NUM_SLICES:
            slices = slices + (gl.load(state_ptrs + (i + AHEAD) * SLICE * K, eviction_policy=POLICY),)
        if FP32:
            high, low = tf32_parts(state)
        for o in gl.static_range(OCTETS):
            if OCTETS == 2:
                pk = _probe_parts(probes.slice(16 * o, 8, dim=1).load(tokens), FP32, rhs)
                pq = _probe_parts(probes.slice(16 * o + 8, 8, dim=1).load(tokens), FP32, rhs)
            if FP32:
                xk = _three_products(high, low, pk[0], pk[1], zero, mma)
                xq = _three_products(high, low, pq[0], pq[1], zero, mma)
            else:
                xk = mma_v2(state, pk[0], mma_v2(state, pk[1], mma_v2(state, pk[2], zero)))
                xq = mma_v2(state, pq[0], mma_v2(state, pq[1], mma_v2(state, pq[2], zero)))
            both = gl.reshape(gl.permute(gl.join(xk, xq), (0, 3, 2, 1)), [4, 16, SLICE])
            if o == 0:
                first = both
        if OCTETS == 2:
            both = gl.reshape(gl.permute(gl.join(first, both), (0, 3, 1, 2)), [4, 32, SLICE])
        probed.slice(i * SLICE, SLICE, dim=2).store(both)

    # Forward substitution: a thread has a value row.
    parts_of_row: gl.constexpr = gl.BlockedLayout([4, 1, 1], [1, 1, 32], [1, 1, 4], [2, 1, 0])
    correction_ptrs = correction_ptr + record * stride_correction_row + pid_h * C * V + offs_v
    weights = ()
    for t in gl.static_range(T):
        kappa = scales.slice(t, 1).slice(0, 1, dim=1).load(per_row)
        rho = scales.slice(t, 1).slice(2, 1, dim=1).load(per_row)
        beta = scales.slice(t, 1).slice(1, 1, dim=1).load(per_row)
        y = gl.sum(probed.slice(16 * (t // 8) + t % 8, 1, dim=1).load(parts_of_row), axis=0)
        z = gl.sum(probed.slice(16 * (t // 8) + t % 8 + 8, 1, dim=1).load(parts_of_row), axis=0)
        y = gl.convert_layout(y, per_row, assert_trivial=True)
        z = gl.convert_layout(z, per_row, assert_trivial=True)
        for s in gl.static_range(t):
            y += coefs.slice(16 * (t // 8) + t % 8, 1).slice(s, 1, dim=1).load(per_row) * weights[s]
            z += coefs.slice(16 * (t // 8) + t % 8 + 8, 1).slice(s, 1, dim=1).load(per_row) * weights[s]
        correction = beta * (values[t].to(gl.float32) - kappa * y)
        weights = weights + (kappa * correction,)
        z += coefs.slice(16 * (t // 8) + t % 8 + 8, 1).slice(t, 1, dim=1).load(per_row) * weights[t]
        if t < query_len:
            gl.store(correction_ptrs + t * V, correction)
            gl.store(out_ptrs + t * stride_out_token, (rho * z).to(out_ptr.dtype.element_ty))
