"""Device functions of verify on wgmma for windows of 9 and 10 tokens: those behind the eighth, on fp32 units.

Tensor cores would take them with padding to sixteen. Here each of their probes meets the state in plain sums while that
is in registers. The tail has R tokens; its probe 2 r is the key of token 8 + r, 2 r + 1 its query.
Gluon has no interpreter; tests run these in an emulator (tests/gluon_interpreter.py). Algebra: docs/algorithm.md.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from recoverssm.kernels.coupling import columns, coupling_sums, left_fragments, rows, split_tokens, stack, tf32_parts
from recoverssm.kernels.gate import log2_decay_step, power_of_two
from recoverssm.kernels.probes import load_places, places


@gluon.jit
def load_tail(head_ptr, stride, query_len, offs_k, R: gl.constexpr):
    """The tail's tokens of a head from global memory, each [1, K], zeros where there is none."""
    tokens = ()
    for t in gl.static_range(8, 8 + R):
        tokens = tokens + (gl.load(head_ptr + t * stride + offs_k, t < query_len, 0.0),)
    return tokens


@gluon.jit
def load_split_places(
    x_s, ITEM_BITS: gl.constexpr, own_channel: gl.constexpr, own_place: gl.constexpr, R: gl.constexpr
):
    """Tokens from shared memory [16, K], channels in the order of ``channel``: the first eight, and the tail's."""
    all_tokens: gl.constexpr = gl.BlockedLayout([16, 1], [1, 32], [1, 4], [1, 0])
    tokens = rows(load_places(x_s, ITEM_BITS, all_tokens), own_place)
    tail = ()
    for r in gl.static_range(R):
        tail = tail + (tokens[8 + r],)
    return gl.convert_layout(stack(tokens, 0, 8), own_channel, assert_trivial=True), tail


@gluon.jit
def shared_tail(
    right_s, log2_decay, tokens, dt_bias, gate_scale, lower_bound, BOUNDED: gl.constexpr, ITEM_BITS: gl.constexpr
):
    """The tail's probes and keys in shared memory.

    Args:
        right_s: [4, 16, K / 4], the keys of couplings, among which the tail's are stored. log2_decay: [1, K] since the
            window began, at the eighth token. tokens: gates, keys and queries, R of each, [1, K].
    Returns:
        Probes [2 R, K], their channels in order; once more for couplings, [4, 8, K / 4].
    Gates of tokens that are not there do no harm: only such tokens meet them.
    """
    gates, keys, queries = tokens
    N: gl.constexpr = 2 * len(keys)
    K: gl.constexpr = 4 * right_s.shape[2]
    tail_s = gl.allocate_shared_memory(gl.float32, [N, K], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    tail_right_s = gl.allocate_shared_memory(gl.float32, [4, 8, K // 4], right_s.type.layout)
    dt_bias = gl.convert_layout(dt_bias, log2_decay.type.layout, assert_trivial=True)
    probes = ()
    coupled = ()
    for r in gl.static_range(len(keys)):
        log2_decay += log2_decay_step(gates[r], dt_bias, gate_scale, lower_bound, BOUNDED)
        key = keys[r].to(gl.float32)
        decay = power_of_two(log2_decay)
        probes = probes + (key * decay, queries[r].to(gl.float32) * decay)
        coupled = coupled + (key * power_of_two(-log2_decay),)
    rows_of_probes = stack(probes, 0, N)
    by_place = places(tail_s, ITEM_BITS)
    by_place.store(gl.reshape(rows_of_probes, by_place.shape))
    tail_right_s.slice(0, N, dim=1).store(split_tokens(rows_of_probes))
    right_s.slice(8, 2, dim=1).store(split_tokens(stack(coupled + coupled, 0, 2)))  # a row has no slice of its own
    return tail_s, tail_right_s


@gluon.jit
def tail_coupling_sums(right_s, tail_right_s, mma: gl.constexpr):
    """How all keys meet the tail's probes, by quarters of the channels: [4, 16, 8] in shared memory."""
    sums_s = gl.allocate_shared_memory(
        gl.float32, [4, right_s.shape[1], 8], gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    )
    left = left_fragments(right_s.load(gl.DotOperandLayout(0, mma, 4)), mma, False)
    left_lead, left_rest = tf32_parts(left)
    sums_s.store(coupling_sums(left_lead, left_rest, tail_right_s, mma, False))
    return sums_s


@gluon.jit
def tail_couplings(sums_s, key_scale_s):
    """Couplings of the tail's probes and all keys, [8, 16] in shared memory.

    Sums are of a key and a probe, the other way around: eight probes are a product's narrow side.

    Args:
        sums_s: [4, 16, 8], what ``tail_coupling_sums`` gives. key_scale_s: [16].
    """
    quarters: gl.constexpr = gl.BlockedLayout([4, 1, 1], [1, 4, 8], [1, 4, 1], [2, 1, 0])
    scale = key_scale_s.load(gl.SliceLayout(1, gl.SliceLayout(0, quarters)))
    couplings = gl.sum(sums_s.load(quarters), 0) * scale[:, None]
    couplings_s = gl.allocate_shared_memory(gl.float32, [8, sums_s.shape[1]], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    couplings_s.permute((1, 0)).store(couplings)
    return couplings_s


@gluon.jit
def beside(x, FIRST: gl.constexpr, STEP: gl.constexpr, N: gl.constexpr):
    """N tensors [R, C] of the tuple x, every STEP-th from FIRST on, column by column side by side: [R, C N]."""
    if N == 1:
        return x[FIRST]
    else:
        both = gl.join(beside(x, FIRST, 2 * STEP, N // 2), beside(x, FIRST + STEP, 2 * STEP, N // 2))
        return gl.reshape(both, [both.shape[0], 2 * both.shape[1]])


@gluon.jit
def pair_sum(x):
    """The sum over the second axis of x [R, N, C], of pairs, of pairs of these and so on: [R, C]."""
    R: gl.constexpr = x.shape[0]
    N: gl.constexpr = x.shape[1]
    C: gl.constexpr = x.shape[2]
    if N == 1:
        return gl.reshape(x, [R, C])
    else:
        return pair_sum(gl.sum(gl.reshape(x, [R, N // 2, 2, C]), 2))


@gluon.jit
def pair_sum_of(x, FIRST: gl.constexpr, N: gl.constexpr):
    """The sum of N tensors of the tuple x from FIRST on, in the order of ``pair_sum``."""
    if N == 1:
        return x[FIRST]
    else:
        return pair_sum_of(x, FIRST, N // 2) + pair_sum_of(x, FIRST + N // 2, N // 2)


@gluon.jit
def tail_slice(sums_s, chunks, tail_s, I: gl.constexpr, KC: gl.constexpr, R: gl.constexpr):
    """The products of value rows 64 I to 64 I + 63 with the tail's probes to sums_s [BV, 8 R].

    They are shares of four threads, of which each has 16 bytes in a row of every 64 of a chunk [64, KK]. Sums
    are of 32 channels, then of pairs of these: bits do not depend on KC.
    """
    KK: gl.constexpr = chunks[0].shape[1]
    OWN: gl.constexpr = 128 // chunks[0].dtype.primitive_bitwidth
    loaded: gl.constexpr = chunks[0].type.layout
    sums = ()
    for p in gl.static_range(2 * R):
        parts = ()
        for j in gl.static_range(KC):
            probe = tail_s.slice(p, 1).slice(j * KK, KK, dim=1).load(loaded)
            terms = gl.reshape(chunks[I * KC + j].to(gl.float32) * probe, [64, KK // 32, 8 // OWN, 4, OWN])
            of_32 = gl.sum(gl.reshape(gl.permute(terms, (0, 1, 3, 2, 4)), [64, KK // 32, 4, 8]), 3)
            parts = parts + (pair_sum(of_32),)
        sums = sums + (pair_sum_of(parts, 0, KC),)
    sums_s.slice(I * 64, 64).store(beside(sums, 0, 1, 2 * R))


@gluon.jit
def tail_products(sums_s, own_row: gl.constexpr):
    """Of the tail's probes, each [BV, 1], what ``tail_slice`` stored; a thread has whole rows."""
    BV: gl.constexpr = sums_s.shape[0]
    N: gl.constexpr = sums_s.shape[1] // 4
    sums = sums_s.load(gl.BlockedLayout([1, 4 * N], [32, 1], [4, 1], [1, 0]))
    return columns(gl.sum(gl.reshape(sums, [BV, 4, N]), 1), own_row)
