"""Gluon's names that differ between Triton versions: everything else in Gluon kernels is the same in all of them."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

__all__ = ["async_load", "gdc_launch_dependents", "gdc_wait", "mma_tf32", "reinterpret", "thread_barrier"]


@gluon.jit
def mma_tf32(a, b, acc):
    """The product a b + acc on tf32 units, which cut fp32 operands to 11 bits."""
    return mma_v2(a, b, acc, input_precision="tf32")


thread_barrier = getattr(gl, "thread_barrier", None) or gl.barrier
"""Waits for all threads of a program, and makes what they wrote to shared memory visible to each other."""

async_load = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared
"""Begins to copy what ``pointer`` points to, where ``mask`` is true, to shared memory."""

reinterpret = getattr(gl.shared_memory_descriptor, "reinterpret", None) or gl.shared_memory_descriptor._reinterpret
"""Another view of shared memory: reinterpret(memory, dtype, shape, layout)."""
