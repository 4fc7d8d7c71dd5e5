"""Device time of CUDA graphs: what a timer must do, and the one made of CUDA event pairs."""

import gc
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from .errors import MeasurementError, NoDeviceError

if TYPE_CHECKING:
    import torch

Launch = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Timing:
    """One timed window.

    Attributes:
        elapsed_us: device time between the window's two events.
        ended_s: ``time.monotonic`` when the host saw the window's end.
        host_late: the device reached the window before the host had enqueued its work, so that launch cost may be
            part of ``elapsed_us``.
    """

    elapsed_us: float
    ended_s: float
    host_late: bool = False


class DeviceTimer(Protocol):
    """Turns launches into something replayable and times replays on the device."""

    @property
    def resolution_us(self) -> float:
        """Step of the clock; windows shorter than 20 of these are refused."""

    def capture(self, launches: Sequence[Launch], rounds: int) -> Launch:
        """All launches in order, ``rounds`` times over, as one unit of work for the device."""

    def elapsed_us(self, n: int, run: Launch) -> list[Timing]:
        """Device time of each of ``n`` runs, enqueued back to back behind one that is not timed."""


class CudaEventTimer:
    """CUDA graphs between pairs of CUDA events, on the current stream of one device.

    Every window has its own pair: differences to one early event would lose digits, as they are float32 milliseconds.
    """

    resolution_us = 0.5  # CUDA runtime API, cudaEventElapsedTime: "around 0.5 microseconds"

    def __init__(self, device: "torch.device | int | None" = None) -> None:
        import torch

        if not torch.cuda.is_available():
            raise NoDeviceError("device time needs a CUDA device, and torch sees none; run `python -m ci doctor`")
        if device is None or isinstance(device, int):
            device = torch.device("cuda", torch.cuda.current_device() if device is None else device)
        self._device = device
        # A stream of our own: the one that torch.cuda.graph keeps by default lives on the first device that captured.
        self._capture_stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def capture(self, launches: Sequence[Launch], rounds: int) -> Launch:
        """One CUDA graph of all launches, ``rounds`` times over; every launch runs once before, outside the graph."""
        import torch

        with torch.cuda.device(self._device), no_garbage_collection():
            # Compilation and module loading must not happen inside a capture.
            for launch in launches:
                launch()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            # Recorded, not raised: an exception inside would leave the capturing stream current.
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                with torch.cuda.graph(graph, stream=self._capture_stream):
                    for _ in range(rounds):
                        for launch in launches:
                            launch()
        for warning in caught:
            if "CUDA Graph is empty" in str(warning.message):
                raise MeasurementError(
                    "the captured CUDA graph is empty: the launches went to another stream or device, or launch nothing"
                )
            warnings.warn(warning.message, stacklevel=2)
        return graph.replay

    def elapsed_us(self, n: int, run: Launch) -> list[Timing]:
        """Times of ``n`` runs; a run whose start the device reached while the host still enqueued it is marked."""
        import torch

        with torch.cuda.device(self._device), no_garbage_collection():
            starts, ends = ([_event() for _ in range(n)] for _ in range(2))
            late = []
            run()  # keeps the device busy while the windows behind it are enqueued
            for start, end in zip(starts, ends, strict=True):
                start.record()
                run()
                late.append(bool(start.query()))  # type: ignore[no-untyped-call]
                end.record()
            timings = []
            for start, end, is_late in zip(starts, ends, late, strict=True):
                end.synchronize()
                ended_s = time.monotonic()
                timings.append(Timing(1e3 * start.elapsed_time(end), ended_s, is_late))
        return timings


def _event() -> "torch.cuda.Event":
    import torch

    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """No collection until the end: in a capture it may unload modules and break it, in a window it costs host time."""
    # Nothing is collected beforehand: with torch loaded that takes 0.1 s, once per capture of every series.
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
