"""What an op launches, without the op: the yardstick for what its checks cost the host."""

import math
from collections.abc import Sequence
from unittest.mock import patch

from torch import Tensor

from recoverssm.cost import Cost
from recoverssm.triton_compat import KernelLaunch

from .base import Call, Series

Launched = tuple[KernelLaunch, Sequence[Tensor]]


def launches_of(call: Call) -> list[Launched]:
    """Run ``call`` and return what it launched, in order, with the tensors of each launch."""
    launched: list[Launched] = []
    launch = KernelLaunch.__call__

    def note(self: KernelLaunch, tensors: Sequence[Tensor], addresses: tuple[int, ...]) -> None:
        again = bool(launched) and launched[-1][0] is self and launched[-1][1] is tensors
        if not again:  # on another device a launch calls itself once more
            launched.append((self, tensors))
        launch(self, tensors, addresses)

    with patch.object(KernelLaunch, "__call__", note):
        call()
    return launched


def num_programs(call: Call, number: int = 0) -> int:
    """Programs of the launch with this number among those that ``call`` makes, over all layers."""
    launch, _ = launches_of(call)[number]
    return math.prod(launch.grid)


def bare_launches(call: Call) -> Call:
    """The same kernels on the same grids and arguments as ``call`` has, launched through Triton, unchecked."""
    launches = [
        (launch.kernel, launch.grid, (*tensors, *launch.scalars), launch.constants)
        for launch, tensors in launches_of(call)
    ]

    def launch_all() -> None:
        for kernel, grid, arguments, constants in launches:
            kernel[grid](*arguments, **constants)

    return launch_all


def host_series(op: str, call: Call, cost: Cost) -> tuple[Series, Series]:
    """Host time of a call of ``op``, and beside it that of what it launches."""
    bare = bare_launches(call)
    return Series(op, "host-dispatch", (call,), cost), Series(f"{op}_launch", "host-dispatch", (bare,), cost)
