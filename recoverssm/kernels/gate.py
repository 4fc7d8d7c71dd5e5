"""The gate in Gluon, as far as its kernels share it: Gluon cannot call the functions of recurrence.py."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def softplus(x):
    """log(1 + e^x) to the last bits, as ``softplus`` in recurrence.py has it."""
    z = gl.exp(-gl.abs(x))
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
    return gl.maximum(x, 0.0) + 2.0 * (y + y * yy * series)


@gluon.jit
def log_decay(raw_gate, dt_bias, gate_scale, lower_bound, BOUNDED: gl.constexpr):
    """The exponent of ``kda_decay`` in recurrence.py, at most 0."""
    x = raw_gate + dt_bias
    if BOUNDED:
        exponent = lower_bound / (1.0 + gl.exp(-gate_scale * x))
    else:
        exponent = -gate_scale * softplus(x)
    return exponent


@gluon.jit
def power_of_two(x):
    """2^x in one instruction: exp2 but for results below the normal numbers, which are 0."""
    return gl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def reciprocal(x):
    """1 / x of a normal number in one instruction."""
    return gl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def log2_decay_step(raw_gate, dt_bias, gate_scale, lower_bound, BOUNDED: gl.constexpr):
    """The logarithm to base 2 of a token's decay, for exp2, which is one instruction."""
    LOG2_E: gl.constexpr = 1.4426950408889634
    x = raw_gate.to(gl.float32) + dt_bias
    if BOUNDED:
        log2_decay = (lower_bound * LOG2_E) * reciprocal(1.0 + power_of_two(-(gate_scale * LOG2_E) * x))
    else:
        log2_decay = (-gate_scale * LOG2_E) * softplus(x)
    return log2_decay
