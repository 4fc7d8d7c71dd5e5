"""Device functions of a verify whose state lacks accepted tokens: these are its history, columns of its couplings.

With history tokens i and a probe p, S' p = S (D p) + sum_i u_i (k_i decayed to the history's end) p, docs/algorithm.md
section 9. Decays after a token are at most 1: no gate makes them overflow. The state is left alone.
Gluon has no interpreter; tests run these in an emulator (tests/gluon_interpreter.py).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait

from recoverssm.kernels.coupling import below, cut_parts, rows, split_tokens, stack, tf32_parts
from recoverssm.kernels.gate import log2_decay_step, power_of_two
from recoverssm.kernels.probes import copy_tokens, load_places


@gluon.jit
def load_history(
    entry_ptr,
    correction_ptr,
    history_len,
    TH: gl.constexpr,
    K: gl.constexpr,
    V: gl.constexpr,
    BV: gl.constexpr,
):
    """Begin to copy the first tokens of a head's entry to shared memory, zeros behind ``history_len`` of them.

    Returns:
        keys and gates: [TH, K]. corrections: [TH, BV].
    """
    vectors: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    of_values: gl.constexpr = gl.BlockedLayout([1, BV // 16], [2, 16], [4, 1], [1, 0])
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    spread: gl.constexpr = gl.SwizzledSharedLayout(4, 1, 8, [1, 0])
    keys_s = gl.allocate_shared_memory(entry_ptr.dtype.element_ty, [TH, K], plain)
    gates_s = gl.allocate_shared_memory(entry_ptr.dtype.element_ty, [TH, K], plain)
    corrections_s = gl.allocate_shared_memory(gl.float32, [TH, BV], spread)
    copy_tokens(gates_s, entry_ptr + K, 2 * K, history_len, vectors)
    copy_tokens(keys_s, entry_ptr, 2 * K, history_len, vectors)
    copy_tokens(corrections_s, correction_ptr, V, history_len, of_values)
    async_copy.commit_group()
    return keys_s, gates_s, corrections_s


@gluon.jit
def decayed_history(
    history, dt_bias, gate_scale, lower_bound, history_len, BOUNDED: gl.constexpr, ITEM_BITS: gl.constexpr
):
    """Keys [TH, K] times the decay of the tokens after them, and the decay of all, [1, K]: a thread owns channels.

    Sums over the tokens after one are taken as such. Channels are in the order of ``channel``, as those of dt_bias.
    """
    keys_s, gates_s, _ = history
    TH: gl.constexpr = keys_s.shape[0]
    own: gl.constexpr = gl.BlockedLayout([TH, 1], [1, 32], [1, 4], [1, 0])
    place: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [1, 4], [1, 0])
    is_there = gl.arange(0, TH, gl.SliceLayout(1, own))[:, None] < history_len
    bias = gl.convert_layout(dt_bias, own, assert_trivial=True)
    step = log2_decay_step(load_places(gates_s, ITEM_BITS, own), bias, gate_scale, lower_bound, BOUNDED)
    steps = rows(gl.where(is_there, step, 0.0), place)
    after = (gl.zeros_like(steps[0]),)
    for i in gl.static_range(1, TH):
        after = (after[0] + steps[TH - i],) + after
    following = gl.convert_layout(stack(after, 0, TH), own, assert_trivial=True)
    key = load_places(keys_s, ITEM_BITS, own).to(gl.float32) * power_of_two(following)
    return key, power_of_two(after[0] + steps[0])


@gluon.jit
def history_scale(history):
    """The inverse norms of the history's keys, [TH] in shared memory."""
    keys_s, _, _ = history
    vectors: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    key = keys_s.load(vectors).to(gl.float32)
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    return gl.allocate_shared_memory(gl.float32, [keys_s.shape[0]], flat, gl.rsqrt(gl.sum(key * key, 1) + 1e-6))


@gluon.jit
def history_operands(right_s, key_probe, query_probe, history_key, JOINT: gl.constexpr):
    """What is multiplied for couplings with the history's keys, in shared memory by quarters of the channels.

    Args:
        right_s: the window's keys, which if JOINT these stand behind, [4, TP + TH, K / 4]. key_probe, query_probe:
            [TP, K]. history_key: [TH, K], decayed to the history's end.
    Returns:
        Probes, unless JOINT, and keys.
    """
    TP: gl.constexpr = key_probe.shape[0]
    QUARTER: gl.constexpr = right_s.shape[2]
    layout: gl.constexpr = right_s.type.layout
    left_s = right_s
    keys_s = right_s.slice(TP, TP, dim=1) if JOINT else gl.allocate_shared_memory(gl.float32, [4, TP, QUARTER], layout)
    keys_s.store(split_tokens(history_key))
    if not JOINT:
        probes = split_tokens(below(key_probe, query_probe))
        left_s = gl.allocate_shared_memory(gl.float32, [4, 2 * TP, QUARTER], layout, probes)
    return left_s, keys_s


@gluon.jit
def history_couplings(sums_s, scale_s):
    """How probes meet the history's keys, these normalised, in two tf32 parts [N, TH] in shared memory.

    Args:
        sums_s: [4, N, TH], by quarters of the channels. scale_s: [TH], of the keys.
    """
    N: gl.constexpr = sums_s.shape[1]
    TH: gl.constexpr = sums_s.shape[2]
    quarters: gl.constexpr = gl.BlockedLayout([4, 1, TH // 8], [1, 4, 8], [1, 4, 1], [2, 1, 0])
    part: gl.constexpr = gl.NVMMASharedLayout(4 * TH, 32, 2)
    scale = scale_s.load(gl.SliceLayout(0, gl.SliceLayout(0, quarters)))
    lead, rest = tf32_parts(gl.sum(sums_s.load(quarters), 0) * scale[None, :])
    lead_s = gl.allocate_shared_memory(gl.float32, [N, TH], part)
    rest_s = gl.allocate_shared_memory(gl.float32, [N, TH], part)
    lead_s.store(lead)
    rest_s.store(rest)
    return lead_s, rest_s


@gluon.jit
def history_slice(history, couplings_s, I: gl.constexpr):
    """What the history adds to the products of value rows 64 I to 64 I + 63 with the probes, [64, N]."""
    _, _, corrections_s = history
    lead_s, rest_s = couplings_s
    N: gl.constexpr = lead_s.shape[0]
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N, 8])
    operand: gl.constexpr = gl.DotOperandLayout(0, mma, 1)
    lead, rest = cut_parts(corrections_s.slice(I * 64, 64, dim=1).permute((1, 0)).load(operand))
    added = gl.zeros([64, N], gl.float32, mma)
    added = warpgroup_mma(rest, lead_s.permute((1, 0)), added, use_acc=False, is_async=True)
    added = warpgroup_mma(lead, rest_s.permute((1, 0)), added, is_async=True)
    added = warpgroup_mma(lead, lead_s.permute((1, 0)), added, is_async=True)
    return warpgroup_mma_wait(0, deps=(added,))
