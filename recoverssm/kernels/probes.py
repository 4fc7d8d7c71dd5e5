"""Device functions of verify on wgmma: the state in the order of tensor-core fragments, and its products with probes.

Gluon has no interpreter; tests run these in an emulator (tests/gluon_interpreter.py). Algebra: docs/algorithm.md.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma, warpgroup_mma_wait

from recoverssm.kernels.coupling import below, cut_parts, halves, interleaved, tf32_parts
from recoverssm.kernels.gluon_compat import async_load


@gluon.jit
def channel(i, ITEM_BITS: gl.constexpr):
    """Which channel stands at place i of the operands, so that 16-byte loads of the state are fragments of it."""
    if ITEM_BITS == 32:
        return (i & ~15) | ((i & 3) << 2) | ((i >> 2) & 3)
    else:
        return (i & ~31) | (((i >> 1) & 3) << 3) | (((i >> 3) & 3) << 1) | (i & 1)


@gluon.jit
def as_fragments(x, layout: gl.constexpr):
    """The state [R, K] as loaded, its channels renamed by ``channel``: no instruction."""
    R: gl.constexpr = x.shape[0]
    K: gl.constexpr = x.shape[1]
    if x.dtype == gl.float32:
        x = gl.permute(gl.reshape(x, [R, K // 16, 4, 4]), (0, 1, 3, 2))
    else:
        x = gl.permute(gl.reshape(x, [R, K // 32, 4, 4, 2]), (0, 1, 3, 2, 4))
    return gl.convert_layout(gl.reshape(x, [R, K]), layout, assert_trivial=True)


@gluon.jit
def copy_tokens(x_s, head_ptr, stride, query_len, layout: gl.constexpr):
    """Begin to copy a row's tokens of a head to x_s [T, N], zeros where there is none; they begin at whole 16 bytes."""
    offs_t = gl.arange(0, x_s.shape[0], gl.SliceLayout(1, layout))[:, None]
    offs_n = gl.arange(0, x_s.shape[1], gl.SliceLayout(0, layout))[None, :]
    async_load(x_s, gl.multiple_of(head_ptr + offs_t * stride + offs_n, (1, 16)), mask=offs_t < query_len)


@gluon.jit
def places(x_s, ITEM_BITS: gl.constexpr):
    """Shared memory [T, K] with channels as they are, seen in the order of ``channel``, in several dimensions."""
    T: gl.constexpr = x_s.shape[0]
    K: gl.constexpr = x_s.shape[1]
    if ITEM_BITS == 32:
        return x_s.reshape([T, K // 16, 4, 4]).permute((0, 1, 3, 2))
    else:
        return x_s.reshape([T, K // 32, 4, 4, 2]).permute((0, 1, 3, 2, 4))


@gluon.jit
def load_places(x_s, ITEM_BITS: gl.constexpr, layout: gl.constexpr):
    """Activations [T, K] from shared memory, their channels in the order of ``channel``."""
    T: gl.constexpr = x_s.shape[0]
    K: gl.constexpr = x_s.shape[1]
    if ITEM_BITS == 32:
        four: gl.constexpr = gl.BlockedLayout([T, 1, 1, 1], [1, 2, 4, 4], [1, 4, 1, 1], [3, 2, 1, 0])
        x = places(x_s, ITEM_BITS).load(four)
    else:
        five: gl.constexpr = gl.BlockedLayout([T, 1, 1, 1, 1], [1, 1, 4, 4, 2], [1, 4, 1, 1, 1], [4, 3, 2, 1, 0])
        x = places(x_s, ITEM_BITS).load(five)
    return gl.convert_layout(gl.reshape(x, [T, K]), layout, assert_trivial=True)


@gluon.jit
def load_lines(ptrs, EVICT: gl.constexpr):
    """What ptrs [R, N] point to, 16 bytes of a row a thread; the L2 fetches all of a line of which a part is missing.

    In the order of fragments four threads take half a line at once, and the other half with their next load.
    """
    ITEMS: gl.constexpr = 128 // ptrs.dtype.element_ty.primitive_bitwidth
    L1: gl.constexpr = "L1::evict_first." if EVICT else ""
    return gl.inline_asm_elementwise(
        "ld.global." + L1 + "L2::128B.v4.b32 {$0, $1, $2, $3}, [$4];",
        "=r,=r,=r,=r" + ",l" * ITEMS,
        [ptrs],
        dtype=ptrs.dtype.element_ty,
        is_pure=False,
        pack=ITEMS,
    )


@gluon.jit
def load_chunk(state_ptrs, I: gl.constexpr, K: gl.constexpr, KK: gl.constexpr, EVICT: gl.constexpr):
    """Chunk I of the state: 64 value rows, KK channels; chunks go along the channels first."""
    return load_lines(state_ptrs + ((I // (K // KK)) * 64 * K + (I % (K // KK)) * KK), EVICT)


@gluon.jit
def prefetch(state_ptr, offset, first_row, FIRST: gl.constexpr, END: gl.constexpr, K: gl.constexpr):
    """Ask for rows FIRST to END behind first_row of the state at offset to come to the L2; nobody waits."""
    LINE: gl.constexpr = 128 * 8 // state_ptr.dtype.element_ty.primitive_bitwidth
    lines = gl.arange(0, (END - FIRST) * K // LINE, gl.BlockedLayout([1], [32], [4], [0])) * LINE
    ptrs = state_ptr + offset + first_row * K + (FIRST * K + lines)
    gl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [ptrs.to(gl.int64)], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def to_bf16(x):
    """The nearest bf16 numbers; a thread's elements, an even number, two at a time."""
    return gl.inline_asm_elementwise(
        "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [x], dtype=gl.bfloat16, is_pure=True, pack=2
    )


@gluon.jit
def shared_probes(key_probe, query_probe, ITEM_BITS: gl.constexpr, GROUP: gl.constexpr):
    """Probes [T, K] in parts to shared memory: two parts [4 T, K] and, of 16 bits, a third one.

    Keys and queries of GROUP tokens by turns. Where there is no third part, what stands for it is the first two.
    """
    T: gl.constexpr = key_probe.shape[0]
    K: gl.constexpr = key_probe.shape[1]
    probes = interleaved(key_probe, query_probe, GROUP)
    if ITEM_BITS == 32:
        lead, rest = tf32_parts(probes)
    else:
        lead = to_bf16(probes)
        left = probes - lead.to(gl.float32)
        rest = to_bf16(left)
    probes_s = gl.allocate_shared_memory(lead.dtype, [4 * T, K], gl.NVMMASharedLayout(128, ITEM_BITS, 2))
    probes_s.store(below(lead, rest))
    third_s = probes_s
    if ITEM_BITS == 16:
        third = to_bf16(left - rest.to(gl.float32))
        third_s = gl.allocate_shared_memory(gl.bfloat16, [2 * T, K], gl.NVMMASharedLayout(128, 16, 2))
        third_s.store(third)
    return probes_s, third_s


@gluon.jit
def probe_slice(
    chunks,
    probes_s,
    third_s,
    state_ptrs,
    I: gl.constexpr,
    TP: gl.constexpr,
    KC: gl.constexpr,
    AHEAD: gl.constexpr,
    EVICT: gl.constexpr,
    NUM_SLICES: gl.constexpr,
):
    """The products of value rows 64 I to 64 I + 63 with all probes, [64, 2 TP] fp32, and the chunks that follow.

    The parts of a probe lie side by side in probes_s, so that one instruction multiplies both. A chunk that the tensor
    cores are done with makes room for the next one.
    """
    FP32: gl.constexpr = chunks[0].dtype == gl.float32
    KK: gl.constexpr = chunks[0].shape[1]
    wide: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 4 * TP, 8 if FP32 else 16])
    narrow: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 2 * TP, 8 if FP32 else 16])
    a_wide: gl.constexpr = gl.DotOperandLayout(0, wide, 1 if FP32 else 2)
    a_narrow: gl.constexpr = gl.DotOperandLayout(0, narrow, 1 if FP32 else 2)
    both = gl.zeros([64, 4 * TP], gl.float32, wide)
    small = gl.zeros([64, 2 * TP], gl.float32, narrow)
    for j in gl.static_range(KC):
        chunk = chunks[I * KC + j]
        places = probes_s.slice(j * KK, KK, dim=1)
        if FP32:
            lead, rest = cut_parts(chunk)
            both = warpgroup_mma(as_fragments(lead, a_wide), places.permute((1, 0)), both, use_acc=j > 0, is_async=True)
            small = warpgroup_mma(
                as_fragments(rest, a_narrow),
                places.slice(0, 2 * TP, dim=0).permute((1, 0)),
                small,
                use_acc=j > 0,
                is_async=True,
            )
            both, small = warpgroup_mma_wait(0, deps=(both, small))
        else:
            both = warpgroup_mma(
                as_fragments(chunk, a_wide), places.permute((1, 0)), both, use_acc=j > 0, is_async=True
            )
            small = warpgroup_mma(
                as_fragments(chunk, a_narrow),
                third_s.slice(j * KK, KK, dim=1).permute((1, 0)),
                small,
                use_acc=j > 0,
                is_async=True,
            )
            if I + AHEAD < NUM_SLICES or j + 1 == KC:
                both, small = warpgroup_mma_wait(0, deps=(both, small))
        if I + AHEAD < NUM_SLICES:
            chunks = chunks + (load_chunk(state_ptrs, (I + AHEAD) * KC + j, KK * KC, KK, EVICT),)
    lead_sum, rest_sum = halves(both)
    lead_sum = gl.convert_layout(lead_sum, narrow, assert_trivial=True)
    rest_sum = gl.convert_layout(rest_sum, narrow, assert_trivial=True)
    return lead_sum + (rest_sum + small), chunks
