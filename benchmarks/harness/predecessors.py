"""The device as the launches before this one leave it in a graph: what they put into the caches, code included."""

import time
from typing import TYPE_CHECKING

from .clock import CudaEventTimer, Launch
from .errors import MeasurementError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

SETTLING_S = 1.0
"""A replay takes milliseconds at most; longer, and it waits for the stream that is blocked until it is done."""


class Predecessors:
    """Replays a graph of all launches, on a stream of its own, so that the first of them comes next in turn.

    NVBench flushes within ``timer.start()``, the last moment before it blocks its stream, so whatever a launch should
    find in the caches must be brought there while that stream is blocked. That takes another stream: of high priority,
    since streams of one priority may share a queue, and one behind the blocked stream would never get on.

    Args:
        launches: captured once, in order.
        restore: puts back what they change. Runs before the replay, as it does before a window of graph-cold, so that
            the next launch is like one of that window's later rounds.
    Attributes:
        num_nodes: kernels, copies and fills of one replay.
    """

    def __init__(self, launches: "Sequence[Launch]", restore: Launch | None, device: "torch.device") -> None:
        import torch

        self._stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
        self._replay = CudaEventTimer(device, self._stream).capture(launches, 1)
        self._restore = restore
        self.num_nodes = self._replay.num_nodes

    def replay(self) -> None:
        """Restore and replay; returns when the device has done both. The current stream is not waited for.

        The first call may compile, so it must come before any stream is blocked.

        Raises:
            MeasurementError: the device does not get to it; it is held up by what it is meant to precede.
        """
        import torch

        with torch.cuda.stream(self._stream):
            if self._restore is not None:
                self._restore()
            self._replay()
        # Asked again and again: to wait would be to wait for ever if the stream were queued behind the blocked one.
        deadline_s = time.monotonic() + SETTLING_S
        while not self._stream.query():
            if time.monotonic() > deadline_s:
                raise MeasurementError(
                    f"the launches before it did not end within {SETTLING_S:g} s while NVBench's stream waits"
                )
