"""For programs that compile without a GPU: Triton is told of a card that is not there."""

import atexit
from tempfile import TemporaryDirectory
from types import SimpleNamespace

from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime import driver


def compile_for(arch: int, *, ptx_alone: bool = False) -> None:
    """What is compiled in this process is for ``arch`` from now on, down to PTX alone where that is all one reads.

    The latter is cached for this process only: whoever has such a card would find kernels there without code.
    """
    driver.set_active(
        SimpleNamespace(
            get_current_target=lambda: GPUTarget("cuda", arch, 32),
            get_current_device=lambda: 0,
            get_current_stream=lambda device=0: 0,
        )
    )
    if ptx_alone:
        cache = TemporaryDirectory(prefix="ptx-alone-")
        atexit.register(cache.cleanup)
        knobs.cache.dir = cache.name
        CUDABackend.make_cubin = lambda *_: b""
