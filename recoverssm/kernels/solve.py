"""Device function of verify on wgmma: corrections and outputs from products with the state and couplings.

Gluon has no interpreter; tests run it in an emulator (tests/gluon_interpreter.py). Algebra: docs/algorithm.md.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from recoverssm.kernels.coupling import columns
from recoverssm.kernels.tail import tail_products


@gluon.jit
def solve(
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
    own_row: gl.constexpr,
    T: gl.constexpr,
    TP: gl.constexpr,
    GROUP: gl.constexpr,
    TN: gl.constexpr,
    R: gl.constexpr,
    V: gl.constexpr,
):
    """Corrections and outputs of the value rows in products_s, stored token by token; a thread has whole rows.

    Keys and queries stand by turns, GROUP tokens of each. Of the last R tokens, the tail's, products and couplings lie
    apart, and only their keys are scaled.
    """
    wide: gl.constexpr = gl.BlockedLayout([1, 2 * TP], [32, 1], [4, 1], [1, 0])
    narrow: gl.constexpr = gl.BlockedLayout([1, TP], [32, 1], [4, 1], [1, 0])
    tokens: gl.constexpr = gl.BlockedLayout([1, TN], [32, 1], [4, 1], [1, 0])
    four: gl.constexpr = gl.BlockedLayout([1, 4], [32, 1], [4, 1], [1, 0])
    products = columns(products_s.load(wide), own_row)
    value = columns(value.to(gl.float32), own_row)
    if R > 0:
        of_tail = tail_products(tail_products_s, own_row)
    corrections = ()
    for t in gl.static_range(T):
        if t < T - R:
            to_key = columns(couplings_s.slice(t + t // GROUP * GROUP, 1).load(narrow), own_row)
            to_query = columns(couplings_s.slice(t + (t // GROUP + 1) * GROUP, 1).load(narrow), own_row)
            scales = columns(scales_s.slice(t, 1).load(four), own_row)
            correction = scales[0] * value[t] - scales[1] * products[t + t // GROUP * GROUP]
            output = scales[2] * products[t + (t // GROUP + 1) * GROUP]
            for s in gl.static_range(t):
                correction -= to_key[s] * corrections[s]
                output += to_query[s] * corrections[s]
            output += to_query[t] * correction
        else:
            to_key = columns(tail_couplings_s.slice(2 * (t - TP), 1).load(tokens), own_row)
            to_query = columns(tail_couplings_s.slice(2 * (t - TP) + 1, 1).load(tokens), own_row)
            scales = columns(scales_s.slice(t, 1).load(four), own_row)
            of_key, of_query = of_tail[2 * (t - TP)], of_tail[2 * (t - TP) + 1]
            for s in gl.static_range(t):
                of_key += to_key[s] * corrections[s]
                of_query += to_query[s] * corrections[s]
            correction = scales[0] * value[t] - scales[1] * of_key
            output = scales[2] * (of_query + to_query[t] * correction)
        corrections = corrections + (correction,)
        is_token = t < query_len
        gl.store(correction_ptrs + t * V, correction, is_token, eviction_policy="evict_last")
        gl.store(out_ptrs + t * stride_out_token, output.to(out_ptrs.dtype.element_ty), is_token)
