"""``benchmarks.run`` with a provider that goes wrong on the GPU: crashing_run.py WHAT CASE ARGUMENTS...

WHAT is ``illegal`` (writes where nothing is: a sticky error), ``spin`` (a kernel that never ends) or ``segfault``; it
happens while CASE is prepared, and in no other case.
"""

import os
import signal
import sys

import torch
import triton
import triton.language as tl

from benchmarks import gpu_process
from benchmarks.providers import PROVIDERS
from benchmarks.run import app


@triton.jit
def _illegal_kernel(ptr):
    """One program writes 1 TiB away from its pointer."""
    tl.store(ptr + (1 << 38), 1.0)


@triton.jit
def _spin_kernel(ptr):
    """One program waits for a value that nobody writes."""
    while tl.atomic_add(ptr, 0.0) < 1.0:
        pass


class Crashing:
    """A provider, except that WHAT happens when CASE is prepared."""

    def __init__(self, provider, what, case):
        self._provider, self._what, self._case = provider, what, case

    def __getattr__(self, name):
        return getattr(self._provider, name)

    def prepare(self, case, device, seed, l2_bytes):
        if case.name == self._case:
            buffer = torch.zeros(1024, device=device)
            if self._what == "segfault":
                os.kill(os.getpid(), signal.SIGSEGV)
            (_illegal_kernel if self._what == "illegal" else _spin_kernel)[(1,)](buffer)
            torch.cuda.synchronize(device)
        return self._provider.prepare(case, device, seed, l2_bytes)


if __name__ == "__main__":
    what, case, *arguments = sys.argv[1:]
    gpu_process.PROVIDERS = tuple(Crashing(provider, what, case) for provider in PROVIDERS)
    app(arguments)
