"""Program: compiles what the gpu tests of a module launch, into Triton's cache, without touching the GPU.

    python -m tests.compile_forms MODULE ARCH INDEX COUNT      every COUNT-th launch, from INDEX on

Compiling takes seconds and a test suite runs in one process: `compile_ahead` lets several share the work.
"""

import importlib
import os
import subprocess
import sys
from pathlib import Path

MAX_WORKERS = 8


def compile_ahead(module: str, arch: int) -> None:
    """Compile the launches of ``module.gpu_calls`` in other processes.

    Raises:
        CalledProcessError: one of them failed.
    """
    count = min(MAX_WORKERS, os.cpu_count() or 1)
    root = Path(__file__).parents[1]
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | {"PYTHONPATH": str(root)}
    commands = [
        [sys.executable, "-m", "tests.compile_forms", module, str(arch), str(i), str(count)] for i in range(count)
    ]
    workers = [subprocess.Popen(command, cwd=root, env=env) for command in commands]
    for worker in workers:
        if worker.wait():
            raise subprocess.CalledProcessError(worker.returncode, worker.args)


def _main(module: str, arch: int, index: int, count: int) -> None:
    from recoverssm import checks, launch
    from recoverssm.triton_compat import KernelLaunch
    from tests.absent_card import compile_for

    def compile_only(self, tensors, addresses):
        self.kernel.run(*tensors, *self.scalars, grid=(1,), warmup=True, **self.constants)

    compile_for(arch)
    checks.check_device = lambda name, device: None
    launch.device_arch = lambda device: arch
    KernelLaunch.__call__ = compile_only
    for number, call in enumerate(importlib.import_module(module).gpu_calls("cpu")):
        if number % count == index:
            call()


if __name__ == "__main__":
    _main(sys.argv[1], *map(int, sys.argv[2:]))
