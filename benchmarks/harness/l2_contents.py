"""What the L2 holds when a launch is timed alone: what it would hold in a graph of such launches."""

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from .cold_cache import L2_MULTIPLE
from .errors import MeasurementError
from .restore import whole_memories
from .stream_kernels import _read_through_kernel, _sweep_kernel

if TYPE_CHECKING:
    import torch

BLOCK = 4096  # words: eight loads of 16 bytes per thread
NUM_WARPS = 4
NUM_TOUCHES = 8
"""Programs that read each block of warm memory. They run on SMs all over the card, and an L2 of several partitions may
keep a line once for each: with one reader half the SMs would find it in the other partition only."""

SETTLING_S = 1.0
"""It takes some 50 us; longer, and it waits for the stream that is blocked until it is done."""


class L2Contents:
    """Sweeps the L2 and touches warm memory, on a stream of its own.

    NVBench flushes within ``timer.start()``, the last moment before it blocks its stream, so whatever should be in the
    L2 when the launch begins must be brought there while that stream is blocked. That takes another stream: of high
    priority, since streams of one priority may share a queue, and one behind the blocked stream would never get on.

    Args:
        warm: tensors whose memory the launch finds in the L2; several may lie in one storage, which counts once.
        l2_bytes: of the device.
        dirty_share: of the swept lines, how many are written; 0 leaves a clean L2. In a graph a launch drives the lines
            that those before it wrote out to DRAM, and leaves its own in their place. In a clean L2 its writes would be
            free, up to the size of the L2; in one full of written lines a launch that only reads would pay for all.
    """

    def __init__(
        self, warm: Iterable["torch.Tensor"], device: "torch.device", l2_bytes: int, dirty_share: float = 0.0
    ) -> None:
        import torch

        self._warm = whole_memories(warm)
        self._num_blocks = -(-L2_MULTIPLE * l2_bytes // (4 * BLOCK))
        self._num_written = round(dirty_share * self._num_blocks)
        self._swept = torch.zeros(self._num_blocks * BLOCK, dtype=torch.int32, device=device)
        self._sums = torch.zeros(BLOCK, dtype=torch.int32, device=device)
        self._stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]

    def sweep(self) -> None:
        """Read and write memory of twice the L2: what was there before is written back or dropped."""
        _sweep_kernel[(self._num_blocks,)](
            self._swept, self._sums, self._num_written, self._num_blocks, BLOCK=BLOCK, num_warps=NUM_WARPS
        )

    def touch(self) -> None:
        """Read the warm memory."""
        for memory in self._warm:
            num_blocks = -(-memory.numel() // BLOCK)
            if num_blocks:
                _read_through_kernel[(num_blocks * NUM_TOUCHES,)](
                    memory, self._sums, memory.numel(), num_blocks, BLOCK=BLOCK, num_warps=NUM_WARPS
                )

    def settle(self) -> None:
        """Sweep, then touch, and return when the device has done both. The current stream is not waited for.

        The first call compiles, so it must come before any stream is blocked.

        Raises:
            MeasurementError: the device does not get to it; it is held up by what it is meant to precede.
        """
        import torch

        with torch.cuda.stream(self._stream):
            self.sweep()
            self.touch()
        # Asked again and again: to wait would be to wait for ever if the stream were queued behind the blocked one.
        deadline_s = time.monotonic() + SETTLING_S
        while not self._stream.query():
            if time.monotonic() > deadline_s:
                raise MeasurementError(
                    f"the L2 could not be swept within {SETTLING_S:g} s while NVBench's stream waits"
                )
