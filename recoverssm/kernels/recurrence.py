"""Device functions of the KDA recurrence that verify, full state and commit share.

They fix the order of operations, so that what verify computes in registers, full state stores and commit folds
is the same arithmetic. Formulas: docs/algorithm.md section 1.
"""

import triton
import triton.language as tl

NORM_EPS = tl.constexpr(1e-6)
SOFTPLUS_LINEAR = tl.constexpr(20.0)  # softplus(x) is x to fp32 precision above this


@triton.jit
def l2_normalised(x):
    """x / sqrt(sum x^2 + eps), x: [BK] fp32."""
    return x * tl.rsqrt(tl.sum(x * x, axis=0) + NORM_EPS)


@triton.jit
def kda_decay(raw_gate, dt_bias, gate_scale, lower_bound, BOUNDED: tl.constexpr):
    """exp(g) in (0, 1]; raw_gate, dt_bias: [BK] fp32; gate_scale: exp(A_log) of the head."""
    x = raw_gate + dt_bias
    if BOUNDED:
        log_decay = lower_bound * tl.sigmoid(gate_scale * x)
    else:
        softplus = tl.where(x > SOFTPLUS_LINEAR, x, tl.log(1.0 + tl.exp(x)))
        log_decay = -gate_scale * softplus
    return tl.exp(log_decay)


@triton.jit
def delta_step(state, decay, key, query, value, beta):
    """One token: returns the new state [BV, BK], the correction u [BV] and the output [BV]."""
    state = state * decay[None, :]
    correction = beta * (value - tl.sum(state * key[None, :], axis=1))
    state = state + correction[:, None] * key[None, :]
    output = tl.sum(state * query[None, :], axis=1)
    return state, correction, output
