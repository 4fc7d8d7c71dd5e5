"""How a kernel is launched: everything in the library that depends on the Triton version.

Triton's own launch looks at every argument again, each time: its type, whether it is 1 or a multiple of 16, which
compiled kernel that makes. Here the caller vouches that none of this changes between calls, so that where the version
is known the compiled kernel is launched as it is. Elsewhere, and while a profiler watches, launches go through Triton.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, NoReturn

import torch
import triton
from torch import Tensor
from triton import knobs
from triton.runtime import driver

from recoverssm.errors import CaptureError
from recoverssm.types import Device, PlannedDevice

INTERPRETED: bool = knobs.runtime.interpret  # decided at import, as @triton.jit does
VERSION = tuple(int(part) for part in triton.__version__.split(".")[:2])
TESTED = {(3, 6), (3, 9)}
"""Where direct launches and our Gluon kernels ran on a card."""

IS_TESTED: bool = VERSION in TESTED and torch.version.hip is None
"""Elsewhere launches go through Triton, ops take their portable forms, and no Gluon kernel is even imported."""

_Direct = Callable[[int, tuple[int, ...]], None]  # takes a stream and the addresses of the tensors


class KernelLaunch:
    """One kernel with all that a launch needs but tensors; ``@triton.jit`` and ``@gluon.jit`` alike.

    Args:
        kernel: takes tensors first, then ``scalars``, then compile-time constants. A scalar None is a tensor that the
            launch lacks: it is compiled as if the kernel took no such argument.
        grid: one to three numbers of programs.
        device: of the tensors; need not be the current one. On one that is only planned for, launching does nothing.
        constants: by name, every compile-time parameter, and options such as num_warps.
    Every call must bring tensors of the same dtypes and alignment to 16 bytes as the first.
    """

    __slots__ = ("_device_index", "_direct", "_is_planned", "constants", "grid", "kernel", "scalars")

    def __init__(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        device: Device,
        *,
        scalars: tuple[float | None, ...] = (),
        constants: Mapping[str, Any],
    ) -> None:
        self.kernel, self.grid, self.scalars = kernel, grid, scalars
        self.constants = {"enable_fp_fusion": True, **constants}  # off by default from Triton 3.10 on
        self._device_index = device.index if isinstance(device, torch.device) and device.type == "cuda" else None
        self._is_planned = isinstance(device, PlannedDevice)
        self._direct: _Direct | None = None

    def __call__(self, tensors: Sequence[Tensor], addresses: tuple[int, ...]) -> None:
        """Launch on the current stream of the tensors' device; ``addresses`` are those of ``tensors``.

        Raises:
            CaptureError: the kernel would have to be compiled, while a CUDA graph is captured.
        """
        index = self._device_index
        if index is None:
            if not self._is_planned:
                self.through_triton(tensors)
        elif driver.active.get_current_device() != index:
            with torch.cuda.device(index):
                self(tensors, addresses)
        elif self._direct is None or _is_watched():
            with _no_compiling() if torch.cuda.is_current_stream_capturing() else nullcontext():
                compiled = self.through_triton(tensors)
            self._direct = _direct_launch(compiled, self, len(tensors))
        else:
            self._direct(driver.active.get_current_stream(index), addresses)

    def through_triton(self, tensors: Sequence[Tensor]) -> Any:
        """Launch on the current device as anybody would; returns the compiled kernel, if there is one."""
        return self.kernel[self.grid](*tensors, *self.scalars, **self.constants)


def _is_watched() -> bool:
    """Whether launches must be seen by hooks, as profilers set them, or compiled anew for debugging."""
    runtime = knobs.runtime
    return bool(_calls(runtime.launch_enter_hook) or _calls(runtime.launch_exit_hook) or runtime.debug)


@contextmanager
def _no_compiling() -> Iterator[None]:
    """Inside, a kernel that Triton has not compiled in this process is refused; loading one is no part of a capture."""
    before, knobs.runtime.jit_cache_hook = knobs.runtime.jit_cache_hook, _refuse_to_compile
    try:
        yield
    finally:
        knobs.runtime.jit_cache_hook = before


def _refuse_to_compile(*, fn: Any, **_: Any) -> NoReturn:
    raise CaptureError(
        f"{fn.name}: expected to be compiled before a CUDA graph is captured, got its first launch for such sizes, "
        "strides and alignments in a capture; call warm_up(config, device), or run the step once before capturing it"
    )


def _calls(hook: Any) -> Any:
    """True where somebody put a plain function in the place of Triton's chain of hooks."""
    return hook is not None and getattr(hook, "calls", True)


def _direct_launch(compiled: Any, launch: KernelLaunch, num_tensors: int) -> _Direct | None:
    """Triton's last step alone, a C function; None where it is not known or would not do."""
    if not IS_TESTED or compiled is None or compiled.metadata.target.backend != "cuda":
        return None
    launcher = compiled.run
    if launcher.global_scratch_size or launcher.profile_scratch_size or getattr(launcher, "gsan_enabled", False):
        return None  # memory that Triton allocates for each launch, or arguments that it adds
    begin = partial(launcher.launch, *(*launch.grid, 1, 1)[:3])
    attributes = (launcher.launch_cooperative_grid, launcher.launch_pdl)
    no_scratch, no_hooks = (None, None), (None, None, None)
    names = launch.kernel.arg_names[num_tensors + len(launch.scalars) :]
    rest = (*launch.scalars, *(launch.constants[name] for name in names))

    if VERSION == (3, 6):  # a function for each signature
        before: tuple[Any, ...] = (*attributes, *no_scratch, compiled.packed_metadata, *no_hooks)

        def direct(stream: int, addresses: tuple[int, ...]) -> None:
            begin(stream, compiled.function, *before, *addresses, *rest)

    else:  # one function, which is told the signature
        signature = (launcher.arg_annotations, launcher.kernel_signature)
        before = (*attributes, compiled.packed_metadata, *no_hooks, *no_scratch, *signature)

        def direct(stream: int, addresses: tuple[int, ...]) -> None:
            begin(stream, compiled.function, *before, (*addresses, *rest))

    return direct  # keeps the compiled kernel, which unloads itself when nobody does
