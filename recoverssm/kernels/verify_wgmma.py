"""Verify on the tensor cores of sm_90: reads one checkpoint per row, writes outputs and records, leaves states alone.

WY form (docs/algorithm.md): the state meets all tokens of the window in one product with decayed keys and queries, the
probes; how tokens meet each other is a small matrix, and corrections follow by forward substitution.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared

from recoverssm.kernels.coupling import add, rounded_product, rows
from recoverssm.kernels.gate import log2_decay_step, power_of_two
from recoverssm.kernels.gluon_compat import gdc_launch_dependents, gdc_wait, thread_barrier
from recoverssm.kernels.history import (
    decayed_history,
    history_couplings,
    history_operands,
    history_scale,
    history_slice,
    load_history,
)
from recoverssm.kernels.probes import (
    channel,
    copy_tokens,
    load_chunk,
    load_places,
    prefetch,
    probe_slice,
    shared_probes,
)
from recoverssm.kernels.solve import solve
from recoverssm.kernels.tail import (
    load_split_places,
    load_tail,
    shared_tail,
    tail_coupling_sums,
    tail_couplings,
    tail_slice,
)
from recoverssm.kernels.window import far_sums, window_couplings, window_operands, window_scales, window_sums


@gluon.jit
def _verify_wgmma_kernel(
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
    stride_q_token: gl.constexpr,
    stride_k_token: gl.constexpr,
    stride_v_token: gl.constexpr,
    stride_gate_token: gl.constexpr,
    stride_beta_token: gl.constexpr,
    stride_out_token: gl.constexpr,
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
    KC: gl.constexpr,  # chunks of channels in a slice of 64 value rows
    AHEAD: gl.constexpr,  # slices whose loads are under way at once
    EVICT: gl.constexpr,  # the state's lines leave the L1 first
    STAGED: gl.constexpr,  # activations are copied to shared memory, before the state, not read in two layouts
    LATE: gl.constexpr,  # unless PDL, the L2 is asked for 64 rows, whose loads stand behind the copy into the records
    PREFETCH: gl.constexpr,  # the L2 is asked for slices that are not ahead: 1 early, 2 behind the couplings unless PDL
    GATE_FIRST: gl.constexpr,  # the gate's parameters are asked for before the state
    DEPENDENTS: gl.constexpr,  # if PDL, the next launch may begin: 0 at once, 1 after the wait, 2 after the copy
    PDL: gl.constexpr,  # begins beside the kernel before, which must leave states, slots and starts alone
):
    """One program handles BV value rows of one head of one speculative row.

    With history_lens the first history_lens[row] positions of the row's entry hold accepted tokens that its state
    lacks; the window is recorded behind them.
    """
    if PDL and DEPENDENTS == 0:
        gdc_launch_dependents()
    gl.static_assert(K == 128)
    HISTORY: gl.constexpr = history_lens_ptr is not None
    gl.static_assert(not HISTORY or (T <= 8 and C - T <= 8))
    FP32: gl.constexpr = state_ptr.dtype.element_ty == gl.float32
    PLAIN: gl.constexpr = not CAUSAL_BLOCKS and not HISTORY
    R: gl.constexpr = T - 8 if 8 < T and T <= 10 and PLAIN else 0  # the tail: tokens on fp32 units
    FEW: gl.constexpr = T <= 4 and PLAIN
    TP: gl.constexpr = 4 if FEW else 8 if T - R <= 8 else 16  # the others, with padding
    TN: gl.constexpr = 4 if FEW else 8 if T <= 8 else 16  # all, with padding
    # Of 16 tokens the first eight's probes do not meet the last eight's keys: theirs stand together.
    GROUP: gl.constexpr = 8 if TP == 16 and not CAUSAL_BLOCKS else TP
    ITEM_BITS: gl.constexpr = 32 if FP32 else 16
    NUM_SLICES: gl.constexpr = BV // 64
    KK: gl.constexpr = K // KC
    ASK_SOON: gl.constexpr = PREFETCH == 1 or (PDL and PREFETCH == 2)
    SCALE: gl.constexpr = 1.0 if TP <= 8 else 2.0**58  # 16 tokens of e^-5 reach e^-80; with this nothing is denormal
    pid = gl.program_id(0)
    pid_v = pid % (V // BV)
    pid_h = (pid // (V // BV)) % H
    row = (pid // (V // BV) // H).to(gl.int64)

    # A thread owns a channel: [TP, K]. Its gate is in DRAM: asked for before the state, it does not queue behind that.
    own_channel: gl.constexpr = gl.BlockedLayout([TP, 1], [1, 32], [1, 4], [1, 0])
    if GATE_FIRST:
        channels = channel(gl.arange(0, K, gl.SliceLayout(0, own_channel)), ITEM_BITS)
        dt_bias = gl.load(dt_bias_ptr + pid_h * K + channels)[None, :]
        A_log = gl.load(A_log_ptr + pid_h)
    slot = gl.load(state_indices_ptr + row).to(gl.int64)
    record = row
    if HAS_RECORD_ROWS:
        record = gl.load(record_rows_ptr + row).to(gl.int64)
    if HISTORY:
        history_len = gl.minimum(gl.maximum(gl.load(history_lens_ptr + row), 0), C - T)
    first_token = gl.load(query_start_loc_ptr + row)
    query_len = gl.minimum(gl.load(query_start_loc_ptr + row + 1) - first_token, T)
    first_token = first_token.to(gl.int64)

    # A thread owns value rows: [BV, 1]
    own_row: gl.constexpr = gl.BlockedLayout([1, 1], [32, 1], [4, 1], [1, 0])
    offs_v = gl.arange(0, BV, gl.SliceLayout(1, own_row))[:, None]
    out_ptrs = out_ptr + first_token * stride_out_token + pid_h * V + pid_v * BV + offs_v
    if slot <= 0 or query_len <= 0:
        if PDL:
            gdc_wait()
        for t in range(query_len):
            gl.store(out_ptrs + t * stride_out_token, gl.zeros([BV, 1], out_ptr.dtype.element_ty, own_row))
        return

    # A load of 16 bytes a thread in the order of a tensor-core fragment; on its way during all that follows.
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 4 * TP, 8 if FP32 else 16])
    loaded: gl.constexpr = gl.DotOperandLayout(0, mma, 4 if FP32 else 8)
    offs_r = gl.arange(0, 64, gl.SliceLayout(1, loaded))[:, None]
    offs_c = gl.arange(0, KK, gl.SliceLayout(0, loaded))[None, :]
    state_ptrs = state_ptr + slot * stride_state_slot + (pid_h * V + pid_v * BV) * K + offs_r * K + offs_c
    if HISTORY:  # asked for before the state, so as not to queue behind it
        entry_ptr = key_gate_ptr + record * stride_key_gate_row + pid_h * C * 2 * K
        entry_correction_ptr = correction_ptr + record * stride_correction_row + pid_h * C * V + pid_v * BV
        history = load_history(entry_ptr, entry_correction_ptr, history_len, TP, K, V, BV)
    chunks = ()
    if PDL or not (STAGED or LATE):
        for i in gl.static_range(AHEAD * KC):
            chunks = chunks + (load_chunk(state_ptrs, i, K, KK, EVICT),)
    if PDL:
        # Nothing above is written during a step. Every program waits: who waits for us has then waited for all before.
        gdc_wait()
        if DEPENDENTS == 1:
            gdc_launch_dependents()

    offs_t = gl.arange(0, TP, gl.SliceLayout(1, own_channel))[:, None]
    offs_k = channel(gl.arange(0, K, gl.SliceLayout(0, own_channel)), ITEM_BITS)[None, :]
    mask_t = offs_t < query_len
    own_place: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [1, 4], [1, 0])
    tail_k = channel(gl.arange(0, K, gl.SliceLayout(0, own_place)), ITEM_BITS)[None, :]
    head_k = pid_h * K
    K_TOKEN: gl.constexpr = 2 * K if RECORDED else stride_k_token
    GATE_TOKEN: gl.constexpr = 2 * K if RECORDED else stride_gate_token
    q_head_ptr = q_ptr + first_token * stride_q_token + head_k
    if HISTORY:
        record_ptr = entry_ptr + history_len * (2 * K)
    else:
        record_ptr = key_gate_ptr + record * stride_key_gate_row + pid_h * C * 2 * K
    if RECORDED:
        k_head_ptr, gate_head_ptr = record_ptr, record_ptr + K
    else:
        k_head_ptr = k_ptr + first_token * stride_k_token + head_k
        gate_head_ptr = raw_gate_ptr + first_token * stride_gate_token + head_k
    if not STAGED:
        raw_gate = gl.load(gate_head_ptr + offs_k + offs_t * GATE_TOKEN, mask_t, 0.0)
        key = gl.load(k_head_ptr + offs_k + offs_t * K_TOKEN, mask_t, 0.0)
        query = gl.load(q_head_ptr + offs_k + offs_t * stride_q_token, mask_t, 0.0)
        tail_gates = load_tail(gate_head_ptr, GATE_TOKEN, query_len, tail_k, R)
        tail_keys = load_tail(k_head_ptr, K_TOKEN, query_len, tail_k, R)
        tail_queries = load_tail(q_head_ptr, stride_q_token, query_len, tail_k, R)
    if not GATE_FIRST:
        gate_scale = gl.exp(gl.load(A_log_ptr + pid_h))
        dt_bias = gl.load(dt_bias_ptr + head_k + offs_k)

    # A thread owns four or eight adjacent channels of a token: norms and the copy into the records.
    WIDTH: gl.constexpr = 4 if FEW else 8
    vectors: gl.constexpr = gl.BlockedLayout([1, WIDTH], [WIDTH // 4, 128 // WIDTH], [4, 1], [1, 0])
    offs_tn = gl.arange(0, TN, gl.SliceLayout(1, vectors))
    offs_n = gl.arange(0, K, gl.SliceLayout(0, vectors))[None, :]
    mask_n = (offs_tn < query_len)[:, None]
    token_n = offs_tn[:, None]
    if not STAGED:
        key_n = gl.load(k_head_ptr + token_n * K_TOKEN + offs_n, mask_n, 0.0)
        query_n = gl.load(q_head_ptr + token_n * stride_q_token + offs_n, mask_n, 0.0)
    beta_ptrs = raw_beta_ptr + first_token * stride_beta_token + pid_h + offs_tn * stride_beta_token
    raw_beta = gl.load(beta_ptrs, offs_tn < query_len, 0.0).to(gl.float32)
    of_values: gl.constexpr = gl.BlockedLayout([1, BV * WIDTH // 128], [WIDTH // 4, 128 // WIDTH], [4, 1], [1, 0])
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    if STAGED:
        v_head_ptr = v_ptr + first_token * stride_v_token + pid_h * V + pid_v * BV
        values_s = gl.allocate_shared_memory(v_ptr.dtype.element_ty, [TN, BV], plain)
        key_s = gl.allocate_shared_memory(k_ptr.dtype.element_ty, [TN, K], plain)
        query_s = gl.allocate_shared_memory(q_ptr.dtype.element_ty, [TN, K], plain)
        gate_s = gl.allocate_shared_memory(raw_gate_ptr.dtype.element_ty, [TN, K], plain)
        copy_tokens(gate_s, gate_head_ptr, GATE_TOKEN, query_len, vectors)
        copy_tokens(key_s, k_head_ptr, K_TOKEN, query_len, vectors)
        copy_tokens(query_s, q_head_ptr, stride_q_token, query_len, vectors)
        copy_tokens(values_s, v_head_ptr, stride_v_token, query_len, of_values)
        async_copy.commit_group()
        if LATE and not PDL:
            prefetch(state_ptr, slot * stride_state_slot, pid_h * V + pid_v * BV, 0, 64, K)
        elif not PDL:
            for i in gl.static_range(AHEAD * KC):
                chunks = chunks + (load_chunk(state_ptrs, i, K, KK, EVICT),)
        if ASK_SOON:
            prefetch(state_ptr, slot * stride_state_slot, pid_h * V + pid_v * BV, AHEAD * 64, BV, K)
        thread_barrier()  # the assembler would move the state's loads behind the probes
        async_copy.wait_group(0)
        thread_barrier()
        key_n = key_s.load(vectors)
        gate_n = gate_s.load(vectors)
        query_n = query_s.load(vectors)
    else:
        gate_n = gl.load(gate_head_ptr + token_n * GATE_TOKEN + offs_n, mask_n, 0.0)
        # Values through shared memory, since loads of theirs behind the product would wait for the L2 once more.
        offs_vt = gl.arange(0, TN, gl.SliceLayout(1, of_values))[:, None]
        offs_vv = gl.arange(0, BV, gl.SliceLayout(0, of_values))[None, :]
        v_head_ptr = v_ptr + first_token * stride_v_token + pid_h * V + pid_v * BV
        value_n = gl.load(v_head_ptr + offs_vt * stride_v_token + offs_vv, offs_vt < query_len, 0.0)
        values_s = gl.allocate_shared_memory(v_ptr.dtype.element_ty, [TN, BV], plain)
        if LATE and not PDL:
            prefetch(state_ptr, slot * stride_state_slot, pid_h * V + pid_v * BV, 0, 64, K)
    if pid_v == 0 and not RECORDED:
        key_gate_ptrs = record_ptr + token_n * (2 * K) + offs_n
        gl.store(key_gate_ptrs, key_n, mask_n, eviction_policy="evict_last")
        gl.store(key_gate_ptrs + K, gate_n, mask_n, eviction_policy="evict_last")
    if STAGED:
        if R > 0:
            key, tail_keys = load_split_places(key_s, ITEM_BITS, own_channel, own_place, R)
            raw_gate, tail_gates = load_split_places(gate_s, ITEM_BITS, own_channel, own_place, R)
            query, tail_queries = load_split_places(query_s, ITEM_BITS, own_channel, own_place, R)
        else:
            key = load_places(key_s, ITEM_BITS, own_channel)
            raw_gate = load_places(gate_s, ITEM_BITS, own_channel)
            query = load_places(query_s, ITEM_BITS, own_channel)
    else:
        values_s.store(value_n)
    if LATE and not PDL:  # behind what gates, probes and couplings begin with
        for i in gl.static_range(AHEAD * KC):
            chunks = chunks + (load_chunk(state_ptrs, i, K, KK, EVICT),)

    if PDL and DEPENDENTS == 2:
        gdc_launch_dependents()

    # The decays since the window began, and the probes.
    if GATE_FIRST:
        gate_scale = gl.exp(A_log)
    if HISTORY:
        if not STAGED:
            async_copy.wait_group(0)
            thread_barrier()
        history_key, history_decay = decayed_history(
            history, dt_bias, gate_scale, lower_bound, history_len, BOUNDED, ITEM_BITS
        )
    log2_step = log2_decay_step(raw_gate, dt_bias, gate_scale, lower_bound, BOUNDED)
    if CAUSAL_BLOCKS:  # elsewhere gates of tokens that are not there do no harm: only such tokens meet them
        log2_step = gl.where(mask_t, log2_step, 0.0)
    log2_decay = gl.associative_scan(log2_step, 0, add)
    decay = power_of_two(log2_decay) * SCALE  # not 2^(log2_decay + ...), which would round slow channels
    key = key.to(gl.float32)
    query = query.to(gl.float32)
    key_probe, query_probe = rounded_product(key, decay), rounded_product(query, decay)
    if HISTORY:  # the state is from before it
        decay = gl.convert_layout(history_decay, own_channel, assert_trivial=True)
        state_probes = (rounded_product(key_probe, decay), rounded_product(query_probe, decay))
        probes_s, third_s = shared_probes(*state_probes, ITEM_BITS, GROUP)
    else:
        probes_s, third_s = shared_probes(key_probe, query_probe, ITEM_BITS, GROUP)

    IN_ORDER: gl.constexpr = R == 0  # of a tail there are fewer rows than ldmatrix takes
    SHARED_PROBES: gl.constexpr = FP32 and PLAIN
    JOINT: gl.constexpr = HISTORY and not CAUSAL_BLOCKS  # the history's keys stand behind the window's
    left_s, right_s, coupled_s, far_left_s, far_right_s = window_operands(
        key,
        query,
        key_probe,
        query_probe,
        log2_step,
        log2_decay,
        probes_s,
        TN,
        SCALE,
        GROUP,
        CAUSAL_BLOCKS,
        JOINT,
        SHARED_PROBES,
        IN_ORDER,
        own_place,
    )
    if HISTORY:
        history_left_s, history_right_s = history_operands(right_s, key_probe, query_probe, history_key, JOINT)
    tail_s = probes_s
    if R > 0:
        tail = (tail_gates, tail_keys, tail_queries)
        before = rows(log2_decay, own_place)[TP - 1]
        tail_s, tail_right_s = shared_tail(right_s, before, tail, dt_bias, gate_scale, lower_bound, BOUNDED, ITEM_BITS)
    key_scale_s, probe_scale_s, scales_s = window_scales(key_n, query_n, raw_beta, query_scale, SCALE, GROUP)
    if HISTORY:
        history_scale_s = history_scale(history)
    if ASK_SOON and not STAGED:
        prefetch(state_ptr, slot * stride_state_slot, pid_h * V + pid_v * BV, AHEAD * 64, BV, K)

    coupled: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [4, 1, 1], [1, 16, 8])
    sums_s = window_sums(left_s, right_s, coupled_s, TP, GROUP, JOINT, SHARED_PROBES, IN_ORDER, STAGED, coupled)
    if HISTORY:
        if JOINT:
            history_sums_s = sums_s.slice(TP, TP, dim=2)
        else:
            history_sums_s = far_sums(history_left_s, history_right_s, IN_ORDER, coupled)
        history_couplings_s = history_couplings(history_sums_s, history_scale_s)
    if PREFETCH == 2 and not PDL:
        prefetch(state_ptr, slot * stride_state_slot, pid_h * V + pid_v * BV, AHEAD * 64, BV, K)
    fence_async_shared()  # of the probes; it may wait for loads, so not before the couplings
    if R > 0:
        tail_sums_s = tail_coupling_sums(right_s, tail_right_s, coupled)
    far_sums_s = sums_s
    if CAUSAL_BLOCKS and TP == 16:
        far_sums_s = far_sums(far_left_s, far_right_s, IN_ORDER, coupled)
    couplings_s = window_couplings(sums_s, far_sums_s, probe_scale_s, key_scale_s, TP, CAUSAL_BLOCKS, JOINT)
    tail_couplings_s, tail_products_s = couplings_s, probes_s
    if R > 0:
        tail_couplings_s = tail_couplings(tail_sums_s, key_scale_s)
        tail_products_s = gl.allocate_shared_memory(
            gl.float32, [BV, 8 * R], gl.SwizzledSharedLayout(4, 4 // R, 2 * R, [1, 0])
        )

    # Products with the state, 64 value rows at a time, and forward substitution, one thread to a row.
    narrow_swizzle: gl.constexpr = gl.SwizzledSharedLayout(4, 16 // TP, TP // 2, [1, 0])
    if not STAGED:
        products_s = gl.allocate_shared_memory(gl.float32, [BV, 2 * TP], narrow_swizzle)
    kept = ()
    for i in gl.static_range(NUM_SLICES):
        if i + 1 == NUM_SLICES:
            value = values_s.permute((1, 0)).load(gl.BlockedLayout([1, TN], [32, 1], [4, 1], [1, 0]))
        if HISTORY:
            before = history_slice(history, history_couplings_s, i)
        if R > 0:
            tail_slice(tail_products_s, chunks, tail_s, i, KC, R)
        products, chunks = probe_slice(chunks, probes_s, third_s, state_ptrs, i, TP, KC, AHEAD, EVICT, NUM_SLICES)
        if HISTORY:
            products += gl.convert_layout(before, products.type.layout, assert_trivial=True)
        if STAGED:
            kept = kept + (products,)
        else:
            products_s.slice(i * 64, 64).store(products)
    if STAGED:  # where the probes were
        products_s = gl.allocate_shared_memory(gl.float32, [BV, 2 * TP], narrow_swizzle)
        for i in gl.static_range(NUM_SLICES):
            products_s.slice(i * 64, 64).store(kept[i])
    if HISTORY:
        correction_ptrs = entry_correction_ptr + history_len * V + offs_v
    else:
        correction_ptrs = correction_ptr + record * stride_correction_row + pid_h * C * V + pid_v * BV + offs_v
    solve(
        products_s,
        couplings_s,
        tail_products_s,
        tail_couplings_s,
        scales_s,
        value,
        correction_ptrs,
        out_ptrs,
        stride_out_token,
        query_len,
        own_row,
        T,
        TP,
        GROUP,
        TN,
        R,
        V,
    )
