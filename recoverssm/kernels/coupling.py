"""Device functions of the WY form of verify: exact products on tf32 units, and how tokens of a window couple.

Gluon has no interpreter; tests run these in an emulator (tests/gluon_interpreter.py). Algebra: docs/algorithm.md.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from recoverssm.kernels.gluon_compat import mma_tf32


@gluon.jit
def add(a, b):
    """What scans over tokens combine with."""
    return a + b


@gluon.jit
def tf32_parts(x):
    """Two numbers of 11 bits that add up to x, the first rounded so that what is left over has either sign.

    Cutting bits off instead would leave rests of one sign, whose products with each other, which are dropped, add up.
    """
    lead = ((x.to(gl.int32, bitcast=True) + 0x1000) & -0x2000).to(gl.float32, bitcast=True)
    return lead, x - lead


@gluon.jit
def cut_parts(x):
    """The same with the leading part cut: a step less, and as good where the other operand's is rounded.

    Then the dropped products, of two rests, have either sign.
    """
    lead = (x.to(gl.int32, bitcast=True) & -0x2000).to(gl.float32, bitcast=True)
    return lead, x - lead


@gluon.jit
def rounded_product(a, b):
    """The product a b, rounded before anything is done with it.

    Where no branch stands between a product and what is subtracted from it, compilers take the difference from the
    exact product. Tilings differ in their branches, and the bits of a row must not depend on its tiling.
    """
    return gl.inline_asm_elementwise("mul.rn.f32 $0, $1, $2;", "=f,f,f", [a, b], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def halves(x):
    """First and second half of the columns of x, in registers."""
    half: gl.constexpr = x.shape[1] // 2
    return gl.split(gl.permute(gl.reshape(x, [x.shape[0], 2, half]), (0, 2, 1)))


@gluon.jit
def below(a, b):
    """Two tensors below one another, along the first axis, in registers."""
    if len(a.shape) == 1:
        return gl.reshape(gl.permute(gl.join(a, b), (1, 0)), [2 * a.shape[0]])
    else:
        return gl.reshape(gl.permute(gl.join(a, b), (2, 0, 1)), [2 * a.shape[0], a.shape[1]])


@gluon.jit
def rows(x, layout: gl.constexpr):
    """The rows of x [R, K], each [1, K] in ``layout``; a thread owns whole columns of x."""
    if x.shape[0] == 1:
        return (gl.convert_layout(x, layout, assert_trivial=True),)
    else:
        first, second = gl.split(gl.permute(gl.reshape(x, [2, x.shape[0] // 2, x.shape[1]]), (1, 2, 0)))
        return rows(first, layout) + rows(second, layout)


@gluon.jit
def stack(rows, FIRST: gl.constexpr, N: gl.constexpr):
    """N rows [1, K] from FIRST on, below one another: what ``rows`` took apart."""
    if N == 1:
        return rows[FIRST]
    else:
        return below(stack(rows, FIRST, N // 2), stack(rows, FIRST + N // 2, N // 2))


@gluon.jit
def block_sums(steps, BLOCK: gl.constexpr, layout: gl.constexpr):
    """Of each token of each block of tokens: its sum with those before it in the block, and the sum of those after it.

    Neither takes the difference of two sums, which would lose a slow channel behind a strong decay.
    """
    N: gl.constexpr = len(steps)
    before = ()
    for t in gl.static_range(N):
        before = before + ((steps[t] if t % BLOCK == 0 else before[t - 1] + steps[t]),)
    after = (steps[N - 1] * 0.0,)
    for i in gl.static_range(1, N):
        after = ((steps[0] * 0.0 if (N - i) % BLOCK == 0 else after[0] + steps[N - i]),) + after
    return (
        gl.convert_layout(stack(before, 0, N), layout, assert_trivial=True),
        gl.convert_layout(stack(after, 0, N), layout, assert_trivial=True),
    )


@gluon.jit
def columns(x, layout: gl.constexpr):
    """The columns of x [R, N], each [R, 1] in ``layout``; a thread owns whole rows of x."""
    if x.shape[1] == 1:
        return (gl.convert_layout(x, layout, assert_trivial=True),)
    else:
        first, second = halves(x)
        return columns(first, layout) + columns(second, layout)


@gluon.jit
def interleaved(a, b, GROUP: gl.constexpr):
    """GROUP rows of a, as many of b, and so on, below one another, in registers."""
    N: gl.constexpr = a.shape[0]
    K: gl.constexpr = a.shape[1]
    x = below(a, b)
    if N == GROUP:
        return x
    else:
        return gl.reshape(gl.permute(gl.reshape(x, [2, N // GROUP, GROUP, K]), (1, 0, 2, 3)), [2 * N, K])


@gluon.jit
def split_tokens(x):
    """[N, K] -> [4, N, K / 4]: a warp's share of the channels each."""
    return gl.permute(gl.reshape(x, [x.shape[0], 4, x.shape[1] // 4]), (1, 0, 2))


@gluon.jit
def left_fragments(x, mma: gl.constexpr, IN_ORDER: gl.constexpr):
    """[4, M, 32] as loaded to the fragments of a tf32 product.

    IN_ORDER: it was loaded as such. Else a thread has 16 bytes of a row, and channels are renamed.
    """
    M: gl.constexpr = x.shape[1]
    KQ: gl.constexpr = x.shape[2]
    if not IN_ORDER:
        x = gl.reshape(gl.permute(gl.reshape(x, [4, M, KQ // 16, 4, 4]), (0, 1, 2, 4, 3)), [4, M, KQ])
    return gl.convert_layout(x, gl.DotOperandLayout(0, mma, 1), assert_trivial=True)


@gluon.jit
def right_fragments(right_s, mma: gl.constexpr, IN_ORDER: gl.constexpr):
    """[4, N, 32] in shared memory as the other operand of such a product."""
    N: gl.constexpr = right_s.shape[1]
    KQ: gl.constexpr = right_s.shape[2]
    right = right_s.permute((0, 2, 1)).load(gl.DotOperandLayout(1, mma, 1 if IN_ORDER else 4))
    if not IN_ORDER:
        right = gl.reshape(gl.permute(gl.reshape(right, [4, KQ // 16, 4, 4, N]), (0, 1, 3, 2, 4)), [4, KQ, N])
    return gl.convert_layout(right, gl.DotOperandLayout(1, mma, 1), assert_trivial=True)


@gluon.jit
def coupling_sums(left_lead, left_rest, right_s, mma: gl.constexpr, IN_ORDER: gl.constexpr):
    """Sums over a quarter of the channels of left [4, M, 32] times right [4, N, 32]: [4, M, N], three tf32 products.

    The parts of the left operand must be rounded.
    """
    M: gl.constexpr = left_lead.shape[1]
    N: gl.constexpr = right_s.shape[1]
    right_lead, right_rest = cut_parts(right_fragments(right_s, mma, IN_ORDER))
    small = mma_tf32(left_rest, right_lead, gl.zeros([4, M, N], gl.float32, mma))
    small = mma_tf32(left_lead, right_rest, small)
    return mma_tf32(left_lead, right_lead, small)


@gluon.jit
def joint_coupling_sums(left, right_s, mma: gl.constexpr):
    """The same of parts that lie below one another on both sides, leading ones first: one product has all four."""
    M: gl.constexpr = left.shape[1]
    N: gl.constexpr = right_s.shape[1]
    return mma_tf32(left, right_fragments(right_s, mma, True), gl.zeros([4, M, N], gl.float32, mma))
