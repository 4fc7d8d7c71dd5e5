"""Device functions of a verify that commits the step before: its accepted records on the state, in registers.

Direct form (docs/algorithm.md section 3): S' = S diag(D) + sum_i u_i (k_i decayed to the end)^T in fp32, on the state
as it was loaded. The sum is a product of its own, in three tf32 parts; FMA adds it to the decayed state, so that this
is rounded and never cut off.
Gluon has no interpreter; tests run these in an emulator (tests/gluon_interpreter.py).
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait

from recoverssm.kernels.coupling import cut_parts, rows, stack, tf32_parts
from recoverssm.kernels.gate import log2_decay_step, power_of_two
from recoverssm.kernels.gluon_compat import thread_barrier
from recoverssm.kernels.probes import copy_tokens, load_places, to_bf16


@gluon.jit
def column_channel(n, ITEM_BITS: gl.constexpr):
    """Which channel stands at column n of a product, so that a thread has it for the very elements that it loads."""
    if ITEM_BITS == 32:
        return (n & ~15) | (((n >> 1) & 3) << 2) | (((n >> 3) & 1) << 1) | (n & 1)
    else:
        return (n & ~31) | (((n >> 1) & 3) << 3) | (((n >> 3) & 3) << 1) | (n & 1)


@gluon.jit
def load_columns(x_s, ITEM_BITS: gl.constexpr, layout: gl.constexpr):
    """Keys or gates [TF, K] from shared memory, their channels in the order of ``column_channel``."""
    if ITEM_BITS == 16:
        return load_places(x_s, ITEM_BITS, layout)
    else:
        TF: gl.constexpr = x_s.shape[0]
        K: gl.constexpr = x_s.shape[1]
        five: gl.constexpr = gl.BlockedLayout([TF, 1, 1, 1, 1], [1, 2, 2, 4, 2], [1, 4, 1, 1, 1], [4, 3, 2, 1, 0])
        x = x_s.reshape([TF, K // 16, 4, 2, 2]).permute((0, 1, 3, 2, 4)).load(five)
        return gl.convert_layout(gl.reshape(x, [TF, K]), layout, assert_trivial=True)


@gluon.jit
def as_loaded(x, ITEM_BITS: gl.constexpr, layout: gl.constexpr):
    """A product [64, N] with the state's channels in order again, as the state is loaded: no instruction."""
    N: gl.constexpr = x.shape[1]
    if ITEM_BITS == 32:
        x = gl.permute(gl.reshape(x, [64, N // 16, 2, 4, 2]), (0, 1, 3, 2, 4))
    else:
        x = gl.permute(gl.reshape(x, [64, N // 32, 4, 4, 2]), (0, 1, 3, 2, 4))
    return gl.convert_layout(gl.reshape(x, [64, N]), layout, assert_trivial=True)


@gluon.jit
def load_waiting(
    key_gate_ptr,
    correction_ptr,
    dt_bias_ptr,
    accepted,
    T: gl.constexpr,
    K: gl.constexpr,
    V: gl.constexpr,
    BV: gl.constexpr,
    ITEM_BITS: gl.constexpr,
):
    """Begin to copy a head's accepted tokens of an entry to shared memory, zeros for the others.

    Returns:
        keys and gates: [TF, K]; corrections: [TF, BV], T padded to TF, whole products; gate biases: [K] in registers,
            in the order of ``column_channel``.
    """
    TF: gl.constexpr = 8 if T <= 8 else 16
    vectors: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    of_values: gl.constexpr = gl.BlockedLayout([1, BV // 16], [2, 16], [4, 1], [1, 0])
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    spread: gl.constexpr = gl.SwizzledSharedLayout(4, 1, 8, [1, 0])
    raw_keys_s = gl.allocate_shared_memory(key_gate_ptr.dtype.element_ty, [TF, K], plain)
    raw_gates_s = gl.allocate_shared_memory(key_gate_ptr.dtype.element_ty, [TF, K], plain)
    corrections_s = gl.allocate_shared_memory(gl.float32, [TF, BV], spread)
    copy_tokens(raw_gates_s, key_gate_ptr + K, 2 * K, accepted, vectors)
    copy_tokens(raw_keys_s, key_gate_ptr, 2 * K, accepted, vectors)
    copy_tokens(corrections_s, correction_ptr, V, accepted, of_values)
    async_copy.commit_group()
    columns = gl.arange(0, K, gl.SliceLayout(0, gl.BlockedLayout([TF, 1], [1, 32], [1, 4], [1, 0])))
    dt_bias = gl.load(dt_bias_ptr + column_channel(columns, ITEM_BITS))
    return raw_keys_s, raw_gates_s, corrections_s, dt_bias


@gluon.jit
def decayed_keys(raw_key, raw_gate, dt_bias, gate_scale, lower_bound, accepted, BOUNDED: gl.constexpr):
    """Keys [TF, K] times the decay of the tokens after them, and the decay of all, [K]: a thread owns channels.

    Tokens that were not accepted do not decay; their keys are zeros. Sums over the tokens after one are taken as such.
    """
    TF: gl.constexpr = raw_key.shape[0]
    K: gl.constexpr = raw_key.shape[1]
    own: gl.constexpr = raw_key.type.layout
    place: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [1, 4], [1, 0])
    is_accepted = gl.arange(0, TF, gl.SliceLayout(1, own))[:, None] < accepted
    step = log2_decay_step(raw_gate, dt_bias[None, :], gate_scale, lower_bound, BOUNDED)
    steps = rows(gl.where(is_accepted, step, 0.0), place)
    after = (gl.zeros_like(steps[0]),)
    for i in gl.static_range(1, TF):
        after = (after[0] + steps[TF - i],) + after
    following = gl.convert_layout(stack(after, 0, TF), own, assert_trivial=True)
    decay = gl.convert_layout(gl.reshape(power_of_two(after[0] + steps[0]), [K]), gl.SliceLayout(0, own))
    return raw_key.to(gl.float32) * power_of_two(following), decay


@gluon.jit
def prepare_fold(waiting, gate_scale, lower_bound, accepted, BOUNDED: gl.constexpr, ITEM_BITS: gl.constexpr):
    """What slices need, in shared memory, complete behind the next barrier, from what ``load_waiting`` copied.

    Returns:
        keys_s, rest_s: two tf32 parts [K, TF], channels in the order of ``column_channel``.
        norms_s: [TF], inverse. decay_s: [K], channels as they are. corrections_s: [TF, BV].
    """
    raw_keys_s, raw_gates_s, corrections_s, dt_bias = waiting
    TF: gl.constexpr = raw_keys_s.shape[0]
    K: gl.constexpr = raw_keys_s.shape[1]
    own: gl.constexpr = gl.BlockedLayout([TF, 1], [1, 32], [1, 4], [1, 0])
    vectors: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    linear: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    part: gl.constexpr = gl.NVMMASharedLayout(4 * TF, 32, 2)
    raw_key = load_columns(raw_keys_s, ITEM_BITS, own)
    raw_gate = load_columns(raw_gates_s, ITEM_BITS, own)
    key, decay = decayed_keys(raw_key, raw_gate, dt_bias, gate_scale, lower_bound, accepted, BOUNDED)
    lead, rest = tf32_parts(gl.permute(key, (1, 0)))
    keys_s = gl.allocate_shared_memory(gl.float32, [K, TF], part)
    rest_s = gl.allocate_shared_memory(gl.float32, [K, TF], part)
    keys_s.store(lead)
    rest_s.store(rest)
    decay_s = gl.allocate_shared_memory(gl.float32, [K], linear)
    if ITEM_BITS == 32:
        by_column = decay_s.reshape([K // 16, 4, 2, 2]).permute((0, 2, 1, 3))
    else:
        by_column = decay_s.reshape([K // 32, 4, 4, 2]).permute((0, 2, 1, 3))
    by_column.store(gl.reshape(decay, by_column.shape))
    norms_s = gl.allocate_shared_memory(gl.float32, [TF], linear)
    whole_key = raw_keys_s.load(vectors).to(gl.float32)
    norms_s.store(gl.rsqrt(gl.sum(whole_key * whole_key, 1) + 1e-6))
    return keys_s, rest_s, norms_s, decay_s, corrections_s


@gluon.jit
def fold_chunk(chunk, lead, rest, keys, key_rests, decay_s):
    """64 value rows and N columns of the state with the tokens' sum, rounded, from those columns of what is prepared.

    Args:
        lead, rest: corrections [64, TF] in two parts. keys, key_rests: [N, TF]; decay_s: [N].
    """
    ITEM_BITS: gl.constexpr = chunk.dtype.primitive_bitwidth
    loaded: gl.constexpr = chunk.type.layout
    mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, chunk.shape[1], 8])
    lead = gl.convert_layout(lead, gl.DotOperandLayout(0, mma, 1), assert_trivial=True)
    rest = gl.convert_layout(rest, gl.DotOperandLayout(0, mma, 1), assert_trivial=True)
    update = gl.zeros(chunk.shape, gl.float32, mma)
    update = warpgroup_mma(rest, keys.permute((1, 0)), update, use_acc=False, is_async=True)
    update = warpgroup_mma(lead, key_rests.permute((1, 0)), update, is_async=True)
    update = warpgroup_mma(lead, keys.permute((1, 0)), update, is_async=True)
    decay = decay_s.load(gl.SliceLayout(0, loaded))[None, :]
    update = as_loaded(warpgroup_mma_wait(0, deps=(update,)), ITEM_BITS, loaded)
    state = chunk.to(gl.float32) * decay + update
    return to_bf16(state) if ITEM_BITS == 16 else state


@gluon.jit
def fold_slice(chunks, prepared, state_ptrs, accepted, I: gl.constexpr, KC: gl.constexpr):
    """The chunks with those of value rows 64 I to 64 I + 63 as the step before left them, rounded and stored."""
    keys_s, rest_s, norms_s, decay_s, corrections_s = prepared
    KK: gl.constexpr = chunks[0].shape[1]
    operand: gl.constexpr = gl.DotOperandLayout(0, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, KK, 8]), 1)
    norms = norms_s.load(gl.SliceLayout(0, operand))[None, :]
    lead, rest = cut_parts(corrections_s.slice(I * 64, 64, dim=1).permute((1, 0)).load(operand) * norms)
    folded = ()
    for j in gl.static_range(len(chunks)):
        if j // KC == I:
            keys, key_rests = keys_s.slice(j % KC * KK, KK), rest_s.slice(j % KC * KK, KK)
            decay = decay_s.slice(j % KC * KK, KK)
            folded = folded + (fold_chunk(chunks[j], lead, rest, keys, key_rests, decay),)
            gl.store(state_ptrs + (I * 64 * KK * KC + j % KC * KK), folded[j], accepted > 0)
        else:
            folded = folded + (chunks[j],)
    thread_barrier()  # else the assembler keeps what is stored in registers until behind the products
    return folded
