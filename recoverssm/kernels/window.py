"""Device functions of verify on wgmma: couplings of a window's tokens, what the keys before it add to a probe.

Three forms: of up to four tokens all parts fit a tile at once (FEW), of strong gates decays are taken by blocks of four
tokens (CAUSAL_BLOCKS), all others from the window's start. Sums are by quarters of the channels first.
Gluon has no interpreter; tests run these in an emulator (tests/gluon_interpreter.py). Algebra: docs/algorithm.md.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from recoverssm.kernels.coupling import (
    below,
    block_sums,
    coupling_sums,
    interleaved,
    joint_coupling_sums,
    left_fragments,
    rows,
    split_tokens,
    tf32_parts,
)
from recoverssm.kernels.gate import power_of_two


@gluon.jit
def window_operands(
    key,
    query,
    key_probe,
    query_probe,
    log2_step,
    log2_decay,
    probes_s,
    TN: gl.constexpr,
    SCALE: gl.constexpr,
    GROUP: gl.constexpr,
    CAUSAL_BLOCKS: gl.constexpr,
    JOINT: gl.constexpr,
    SHARED_PROBES: gl.constexpr,
    IN_ORDER: gl.constexpr,
    own_place: gl.constexpr,
):
    """What is multiplied for the couplings, in shared memory by quarters of the channels.

    Args:
        key, query: [TP, K] fp32. key_probe, query_probe: decayed since the window began, times SCALE. log2_step,
            log2_decay: [TP, K], of each token and since then. probes_s: the left side where SHARED_PROBES.
        JOINT: there is room for as many keys of a history behind the window's.
        IN_ORDER: channels keep their order, so that matrices of 8 rows of 16 bytes are loaded as fragments (ldmatrix).
    Returns:
        Probes; all keys, and the window's first TP of them; of 16 tokens by blocks, probes and keys of blocks further
        apart. Where there are none of their own, others stand for them.
    """
    TP: gl.constexpr = key.shape[0]
    K: gl.constexpr = key.shape[1]
    FEW: gl.constexpr = TP == 4
    own_channel: gl.constexpr = key.type.layout
    swizzled: gl.constexpr = gl.SwizzledSharedLayout(4 if IN_ORDER else 16, 1, 8 if IN_ORDER else 2, [2, 1, 0])
    NUM_RIGHT: gl.constexpr = 2 * TP if CAUSAL_BLOCKS or FEW or JOINT else TP
    right_s = gl.allocate_shared_memory(gl.float32, [4, NUM_RIGHT + TN - TP, K // 4], swizzled)
    coupled_s = right_s
    if TN > TP or JOINT:
        coupled_s = right_s.slice(0, TP, dim=1)
    left_s, far_left_s, far_right_s = probes_s, right_s, right_s
    if CAUSAL_BLOCKS:
        # Within a block of four tokens from the block's start, which cannot overflow; from the block before it through
        # that block's end. A decay beyond 2^-26 in one step is below what fp32 can tell from none left.
        steps = rows(gl.maximum(log2_step, -26.0), own_place)
        prefix, suffix = block_sums(steps, 4, own_channel)
        up = gl.exp2(prefix)
        left_s = gl.allocate_shared_memory(
            gl.float32, [4, 2 * TP, K // 4], swizzled, split_tokens(below(key * up, query * up))
        )
        coupled_s.store(split_tokens(below(key * gl.exp2(-prefix), key * gl.exp2(suffix))))
        if TP == 16:
            # Blocks further apart meet in the middle.
            prefix, suffix = block_sums(steps, 8, own_channel)
            offs_t = gl.arange(0, TP, gl.SliceLayout(1, own_channel))[:, None]
            up = gl.where(offs_t < 8, 0.0, gl.exp2(prefix))
            far_left_s = gl.allocate_shared_memory(
                gl.float32, [4, 2 * TP, K // 4], swizzled, split_tokens(below(key * up, query * up))
            )
            far_right_s = gl.allocate_shared_memory(
                gl.float32, [4, TP, K // 4], swizzled, split_tokens(gl.where(offs_t < 8, key * gl.exp2(suffix), 0.0))
            )
    else:
        undecayed = key * (power_of_two(log2_decay * -1.0) * (1.0 / SCALE))
        probes = interleaved(key_probe, query_probe, GROUP)
        if FEW:  # both parts at once: there is room in a tile
            undecayed = below(*tf32_parts(undecayed))
            probes = below(*tf32_parts(probes))
        if not SHARED_PROBES:
            left_s = gl.allocate_shared_memory(gl.float32, [4, probes.shape[0], K // 4], swizzled, split_tokens(probes))
        coupled_s.store(split_tokens(undecayed))
    return left_s, right_s, coupled_s, far_left_s, far_right_s


@gluon.jit
def window_scales(key, query, raw_beta, query_scale, SCALE: gl.constexpr, GROUP: gl.constexpr):
    """Norms and betas of tokens, in shared memory; they are factors of rows and columns of couplings.

    Args:
        key, query: [TN, K]. raw_beta: [TN]. GROUP: so many tokens' probes stand before the others', keys first.
    Returns:
        Of keys: [TN]. Of probes: [2 TN]. For the solve, [TN, 4]: of value and of products with the state.
    """
    TN: gl.constexpr = key.shape[0]
    LOG2_E: gl.constexpr = 1.4426950408889634
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    key = key.to(gl.float32)
    query = query.to(gl.float32)
    key_scale = gl.rsqrt(gl.sum(key * key, 1) + 1e-6)
    out_scale = gl.rsqrt(gl.sum(query * query, 1) + 1e-6) * query_scale
    beta = 1.0 / (1.0 + gl.exp2(-LOG2_E * raw_beta))
    key_scale_s = gl.allocate_shared_memory(gl.float32, [TN], flat)
    probe_scale_s = gl.allocate_shared_memory(gl.float32, [2 * TN], flat)
    scales_s = gl.allocate_shared_memory(gl.float32, [TN, 4], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    of_value = gl.join(beta, out_scale * (1.0 / SCALE))
    of_products = gl.join(beta * key_scale * (1.0 / SCALE), out_scale)
    scales_s.store(gl.reshape(gl.join(of_value, of_products), [TN, 4]))
    probe_scale = below(beta * key_scale, out_scale)
    key_scale_s.store(key_scale)
    if GROUP < TN:
        probe_scale = gl.reshape(gl.permute(gl.reshape(probe_scale, [2, TN // GROUP, GROUP]), (1, 0, 2)), [2 * TN])
    probe_scale_s.store(probe_scale)
    return key_scale_s, probe_scale_s, scales_s


@gluon.jit
def window_sums(
    left_s,
    right_s,
    coupled_s,
    TP: gl.constexpr,
    GROUP: gl.constexpr,
    JOINT: gl.constexpr,
    SHARED_PROBES: gl.constexpr,
    IN_ORDER: gl.constexpr,
    STAGED: gl.constexpr,
    mma: gl.constexpr,
):
    """Probes times keys in shared memory, by quarters of the channels; if STAGED where the operands were."""
    K: gl.constexpr = 4 * right_s.shape[2]
    FEW: gl.constexpr = TP == 4
    NUM_LEFT: gl.constexpr = 4 * TP if FEW else 2 * TP
    NUM_RIGHT: gl.constexpr = right_s.shape[1] if JOINT else coupled_s.shape[1]
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    if not STAGED:
        sums_s = gl.allocate_shared_memory(gl.float32, [4, NUM_LEFT, NUM_RIGHT], flat)
    TILE: gl.constexpr = 16 if FEW or GROUP < TP else 2 * TP  # probes that meet the same keys, or all parts of a few
    as_left: gl.constexpr = gl.DistributedLinearLayout(
        ([[8, 0], [0, 4], [0, 8], [0, 16]] if IN_ORDER else [[0, 1], [0, 2], [8, 0], [0, 16]])
        + ([[16, 0]] if TILE == 32 else []),
        [[0, 1 if IN_ORDER else 4], [0, 2 if IN_ORDER else 8], [1, 0], [2, 0], [4, 0]],
        [[0, 32], [0, 64]],
        [],
        [TILE, K],
    )
    as_fragments: gl.constexpr = gl.DotOperandLayout(0, mma, 1 if IN_ORDER else 4)
    sums = ()
    for i in gl.static_range(NUM_LEFT // TILE):
        met_s = right_s if JOINT else coupled_s.slice(0, 8, dim=1) if GROUP < TP and i == 0 else coupled_s
        if FEW:
            if SHARED_PROBES:
                left = left_fragments(split_tokens(left_s.load(as_left)), mma, True)
            else:
                left = left_fragments(left_s.load(as_fragments), mma, True)
            sums += (joint_coupling_sums(left, met_s, mma),)
        else:
            if SHARED_PROBES:
                lead, rest = left_s.slice(i * TILE, TILE), left_s.slice(2 * TP + i * TILE, TILE)
                left_lead = left_fragments(split_tokens(lead.load(as_left)), mma, IN_ORDER)
                left_rest = left_fragments(split_tokens(rest.load(as_left)), mma, IN_ORDER)
            else:
                left = left_fragments(left_s.slice(i * TILE, TILE, dim=1).load(as_fragments), mma, IN_ORDER)
                left_lead, left_rest = tf32_parts(left)
            sums += (coupling_sums(left_lead, left_rest, met_s, mma, IN_ORDER),)
    if STAGED:
        sums_s = gl.allocate_shared_memory(gl.float32, [4, NUM_LEFT, NUM_RIGHT], flat)
    for i in gl.static_range(NUM_LEFT // TILE):
        sums_s.slice(i * TILE, TILE, dim=1).slice(0, sums[i].shape[2], dim=2).store(sums[i])
    return sums_s


@gluon.jit
def far_sums(far_left_s, far_right_s, IN_ORDER: gl.constexpr, mma: gl.constexpr):
    """As ``window_sums``, of blocks further apart or of a history, which have memory of their own."""
    left = left_fragments(far_left_s.load(gl.DotOperandLayout(0, mma, 1 if IN_ORDER else 4)), mma, IN_ORDER)
    left_lead, left_rest = tf32_parts(left)
    sums = coupling_sums(left_lead, left_rest, far_right_s, mma, IN_ORDER)
    return gl.allocate_shared_memory(gl.float32, sums.shape, gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0]), sums)


@gluon.jit
def window_couplings(
    sums_s, far_sums_s, probe_scale_s, key_scale_s, TP: gl.constexpr, CAUSAL_BLOCKS: gl.constexpr, JOINT: gl.constexpr
):
    """Couplings [2 TP, TP] in shared memory: what is left of each key in each probe, both normalised."""
    FEW: gl.constexpr = TP == 4
    quarters: gl.constexpr = gl.BlockedLayout(
        [4, 1, 2 if TP == 16 else 1], [1, 8 if FEW else 4, 4 if FEW else 8], [1, 4, 1], [2, 1, 0]
    )
    pairs: gl.constexpr = gl.SliceLayout(0, quarters)
    if CAUSAL_BLOCKS:
        couplings = gl.sum(sums_s.slice(0, TP, dim=2).load(quarters), 0)
        across = gl.sum(sums_s.slice(TP, TP, dim=2).load(quarters), 0)
        probe_block = (gl.arange(0, 2 * TP, gl.SliceLayout(1, pairs)) % TP) // 4
        key_block = gl.arange(0, TP, gl.SliceLayout(0, pairs)) // 4
        couplings = gl.where(probe_block[:, None] == key_block[None, :], couplings, across)
        if TP == 16:
            is_far = (probe_block[:, None] >= 2) & (key_block[None, :] < 2)
            couplings = gl.where(is_far, gl.sum(far_sums_s.load(quarters), 0), couplings)
    elif FEW:
        leads, rests = sums_s.slice(0, 8, dim=1), sums_s.slice(8, 8, dim=1)
        small = gl.sum(rests.slice(0, 4, dim=2).load(quarters), 0) + gl.sum(leads.slice(4, 4, dim=2).load(quarters), 0)
        couplings = gl.sum(leads.slice(0, 4, dim=2).load(quarters), 0) + small
    else:
        window_sums_s = sums_s.slice(0, TP, dim=2) if JOINT else sums_s
        couplings = gl.sum(window_sums_s.load(quarters), 0)
    couplings *= probe_scale_s.slice(0, 2 * TP).load(gl.SliceLayout(1, pairs))[:, None]
    couplings *= key_scale_s.slice(0, TP).load(gl.SliceLayout(0, pairs))[None, :]
    couplings_s = gl.allocate_shared_memory(gl.float32, [2 * TP, TP], gl.SwizzledSharedLayout(1, 1, 1, [1, 0]))
    couplings_s.store(couplings)
    return couplings_s
