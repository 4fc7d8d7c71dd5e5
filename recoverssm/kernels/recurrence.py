"""Device functions of the KDA recurrence that verify, full state and commit share.

They fix the order of operations, so that what verify computes in registers, full state stores and commit folds
is the same arithmetic. Formulas: docs/algorithm.md section 1.

A state tile is [BV, K / BK, BK], not [BV, K]: with BK = 32 eight lanes of a warp share one value row and four rows lie
side by side, so that a dot product over K takes three shuffles for four rows instead of five for each row. Vectors
over K are [K / BK, BK] likewise.

Constants stand in the functions: with module-level ones the key of a kernel in Triton 3.6's cache depends on which
kernel was launched first, and every process that launches in another order compiles anew.
"""

import triton
import triton.language as tl


@triton.jit
def key_offsets(K: tl.constexpr, BK: tl.constexpr):
    """Channel numbers of a vector over K, [K / BK, BK]."""
    return tl.arange(0, K // BK)[:, None] * BK + tl.arange(0, BK)[None, :]


@triton.jit
def l2_normalised(x):
    """The unit vector x / sqrt(sum x^2 + 1e-6), x: [K / BK, BK] fp32."""
    return x * tl.rsqrt(tl.sum(tl.sum(x * x, axis=1), axis=0) + 1e-6)


@triton.jit
def softplus(x):
    """log(1 + e^x) to a few units in the last place, where it is small too.

    With z = e^-|x| it is max(x, 0) + log(1 + z), and log(1 + z) = 2 artanh(z / (2 + z)), as a series up to the 17th
    power, since z / (2 + z) <= 1 / 3. A logarithm of 1 + z would have lost what is left of a small z.
    """
    z = tl.exp(-tl.abs(x))
    y = z / (2.0 + z)
    yy = y * y
    series = 1.0 / 17.0
    series = series * yy + 1.0 / 15.0
    series = series * yy + 1.0 / 13.0
    series = series * yy + 1.0 / 11.0
    series = series * yy + 1.0 / 9.0
    series = series * yy + 1.0 / 7.0
    series = series * yy + 1.0 / 5.0
    series = series * yy + 1.0 / 3.0
    return tl.maximum(x, 0.0) + 2.0 * (y + y * yy * series)


@triton.jit
def kda_decay(raw_gate, dt_bias, gate_scale, lower_bound, BOUNDED: tl.constexpr):
    """exp(g) in [0, 1]; raw_gate, dt_bias: [K / BK, BK] fp32; gate_scale: exp(A_log) of the head."""
    x = raw_gate + dt_bias
    if BOUNDED:
        log_decay = lower_bound * tl.sigmoid(gate_scale * x)
    else:
        log_decay = -gate_scale * softplus(x)
    return tl.exp(log_decay)


@triton.jit
def row_dot(state, vector):
    """The product state @ vector, [BV]: in-thread over K / BK first, then across the lanes of a row."""
    return tl.sum(tl.sum(state * vector[None, :, :], axis=1), axis=1)


@triton.jit
def delta_step(state, decay, key, query, value, beta):
    """One token: returns the new state [BV, K / BK, BK], the correction u [BV] and the output [BV]."""
    state = state * decay[None, :, :]
    correction = beta * (value - row_dot(state, key))
    state = state + correction[:, None, None] * key[None, :, :]
    return state, correction, row_dot(state, query)


@triton.jit
def folded(
    state,
    key_gate_ptrs,
    correction_ptrs,
    dt_bias,
    gate_scale,
    lower_bound,
    K: tl.constexpr,
    BOUNDED: tl.constexpr,
):
    """The state after one recorded token more, whose key, raw gate and correction the pointers name."""
    key = l2_normalised(tl.load(key_gate_ptrs).to(tl.float32))
    raw_gate = tl.load(key_gate_ptrs + K).to(tl.float32)
    correction = tl.load(correction_ptrs)
    decay = kda_decay(raw_gate, dt_bias, gate_scale, lower_bound, BOUNDED)
    return state * decay[None, :, :] + correction[:, None, None] * key[None, :, :]
