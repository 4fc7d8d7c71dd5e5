"""Gluon's names that differ between Triton versions: everything else in Gluon kernels is the same in all of them."""

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

__all__ = ["IS_TESTED", "gdc_launch_dependents", "gdc_wait", "mma_tf32", "thread_barrier"]

IS_TESTED: bool = triton.__version__.split(".")[:2] == ["3", "6"] and torch.version.hip is None
"""Whether our Gluon kernels ran on NVIDIA's GPUs with this Triton version; elsewhere ops take their portable forms."""


@gluon.jit
def mma_tf32(a, b, acc):
    """The product a b + acc on tf32 units, which cut fp32 operands to 11 bits."""
    return mma_v2(a, b, acc, input_precision="tf32")


thread_barrier = getattr(gl, "thread_barrier", None) or gl.barrier
"""Waits for all threads of a program, and makes what they wrote to shared memory visible to each other."""
