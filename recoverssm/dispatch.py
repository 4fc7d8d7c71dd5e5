"""What a call costs the host: checks and launch configuration are done once for all calls that look alike.

An op hands its tensors over; what is checked, chosen and compiled for them is a function of their metadata alone, and
is kept under it. A call that was never seen takes about 0.1 ms, any other a few microseconds (docs/measuring.md,
host-dispatch).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, partial, reduce
from operator import attrgetter, or_
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.compiler import is_compiling

from recoverssm.triton_compat import KernelLaunch
from recoverssm.types import Device, PlannedDevice

MAX_KEPT = 1024
"""Launches kept per op, the least recently used going first. An engine without CUDA graphs meets one for each number
of tokens and rows; each takes a few kilobytes."""

ALIGNMENT = 16  # bytes; Triton compiles kernels for pointers that are multiples of it, and for others


class TensorMeta(NamedTuple):
    """All that checks and launches may know of a tensor.

    Attributes:
        strides: elements between neighbours, by dimension.
        aligned: whether the first element's address is a multiple of 16.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: Device
    strides: tuple[int, ...]
    aligned: bool


_planned: ContextVar[PlannedDevice | None] = ContextVar("planned", default=None)


@contextmanager
def planned_for(arch: int) -> Iterator[None]:
    """Inside, tensors on the meta device stand for tensors on a card of this compute capability (90 for sm_90).

    Ops check them and choose what to launch as they would there; the launch does nothing. Nothing of it is kept.
    """
    token = _planned.set(PlannedDevice(arch))
    try:
        yield
    finally:
        _planned.reset(token)


_get_facts = attrgetter("shape", "dtype", "device")


def describe(tensor: Tensor) -> TensorMeta:
    """The metadata of one tensor."""
    return TensorMeta(*_get_facts(tensor), tensor.stride(), tensor.data_ptr() % ALIGNMENT == 0)


_META = torch.device("meta")


def device_of(tensor: Tensor) -> Device:
    """Where its ops are launched: of the meta device, the card that is planned for."""
    planned = _planned.get()
    return planned if planned is not None and tensor.device == _META else tensor.device


_Launch = Callable[[Sequence[Tensor], tuple[int, ...]], None]


def _launch_planned(
    prepare: Callable[..., KernelLaunch | None],
    metas: Sequence[TensorMeta],
    options: Sequence[Any],
    tensors: Sequence[Tensor],
    addresses: tuple[int, ...],
) -> None:
    """Prepare for the card that is planned for at this moment; without one, ``prepare`` refuses the meta device."""
    planned = _planned.get()

    def placed(value: Any) -> Any:
        is_planned = planned is not None and isinstance(value, TensorMeta) and value.device == _META
        return value._replace(device=planned) if is_planned else value

    launch = prepare([placed(meta) for meta in metas], *map(placed, options))
    if launch is not None:
        launch(tensors, addresses)


class Prepared:
    """An op that runs ``prepare`` for the first of all calls that look alike, and its launch for every one.

    ``prepare`` gets a list of a ``TensorMeta`` for each tensor, and the options, so that what it refuses or returns
    cannot depend on anything else. It raises what is wrong with them, which is never kept: a bad call is refused every
    time. Else it returns the launch, None where there is nothing to do. Options are hashable; 1, 1.0 and True differ.
    """

    def __init__(self, prepare: Callable[..., KernelLaunch | None]) -> None:
        self.prepare = prepare
        self.name = prepare.__name__.removeprefix("_")

        @lru_cache(MAX_KEPT, typed=True)
        def launch_of(
            facts: Sequence[Any], strides: Sequence[tuple[int, ...]], aligned: Sequence[bool], *options: Any
        ) -> _Launch | None:
            aligned = aligned or (True,) * len(facts)
            each = zip(facts, strides, aligned, strict=True)
            metas = [TensorMeta(*fact, *rest) for fact, *rest in each]
            if any(meta.device == _META for meta in metas):
                return partial(_launch_planned, prepare, metas, options)
            return prepare(metas, *options)

        self._launch_of = launch_of

    def __call__(self, tensors: Sequence[Tensor], *options: Any) -> None:
        """Launch on ``tensors``, which come in the order of ``prepare`` and of the kernel.

        While torch traces, the call becomes one of the operator ``torch.ops.recoverssm.<name>`` (``ops.registered``).
        """
        if is_compiling():
            getattr(torch.ops.recoverssm, self.name)(*tensors, *options)
            return
        # One call into C for each property of all tensors: a loop in Python takes twice as long.
        facts = tuple(map(_get_facts, tensors))
        addresses = tuple(map(Tensor.data_ptr, tensors))
        aligned: tuple[bool, ...] = ()  # all are
        if reduce(or_, addresses) % ALIGNMENT:
            aligned = tuple(address % ALIGNMENT == 0 for address in addresses)
        launch = self._launch_of(facts, tuple(map(Tensor.stride, tensors)), aligned, *options)
        if launch is not None:
            launch(tensors, addresses)
