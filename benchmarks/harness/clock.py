"""Device time of CUDA graphs: what a timer must do, and the one made of CUDA event pairs."""

import ctypes
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
        sm_mhz: SM clock over the whole batch that the window was enqueued with, from the SMs' own cycle counters; None
            where the device does not tell.
    """

    elapsed_us: float
    ended_s: float
    host_late: bool = False
    sm_mhz: float | None = None


class DeviceTimer(Protocol):
    """Turns launches into something replayable and times replays on the device."""

    @property
    def resolution_us(self) -> float:
        """Step of the clock; windows shorter than 20 of these are refused."""

    def capture(self, launches: Sequence[Launch], rounds: int) -> Launch:
        """All launches in order, ``rounds`` times over, as one unit of work for the device."""

    def elapsed_us(self, n: int, run: Launch, restore: Launch | None = None) -> list[Timing]:
        """Device time of each of ``n`` runs, enqueued back to back behind one that is not timed.

        ``restore`` runs before each window opens, outside it. It is not passed where there is nothing to restore.
        """


@dataclass(frozen=True, slots=True)
class CapturedGraph:
    """A CUDA graph that is replayed when called.

    Attributes:
        num_nodes: kernels, copies and fills that one replay runs, as the driver counts them.
    """

    replay: Launch
    num_nodes: int

    def __call__(self) -> None:
        self.replay()


STAMP_ROWS = 1024  # SM ids are not contiguous on cards with disabled SMs; no card has more than 200 SMs so far
PROGRAMS_PER_SM = 2  # so that nearly every SM leaves a stamp; those that left none at either end are skipped


class CudaEventTimer:
    """CUDA graphs between pairs of CUDA events, on the current stream of one device.

    Every window has its own pair: differences to one early event would lose digits, as they are float32 milliseconds.

    Args:
        capture_stream: graphs are captured on it, and their kernels get its priority; one of its own by default.
    """

    resolution_us = 0.5  # CUDA runtime API, cudaEventElapsedTime: "around 0.5 microseconds"

    def __init__(
        self, device: "torch.device | int | None" = None, capture_stream: "torch.cuda.Stream | None" = None
    ) -> None:
        import torch

        if not torch.cuda.is_available():
            raise NoDeviceError("device time needs a CUDA device, and torch sees none; run `python -m ci doctor`")
        if device is None or isinstance(device, int):
            device = torch.device("cuda", torch.cuda.current_device() if device is None else device)
        self._device = device
        # A stream of our own: the one that torch.cuda.graph keeps by default lives on the first device that captured.
        self._capture_stream = capture_stream or torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._num_programs = PROGRAMS_PER_SM * torch.cuda.get_device_properties(device).multi_processor_count
        self._stamps = torch.zeros((2, STAMP_ROWS, 2), dtype=torch.int64, device=device)
        self._stamp_tables = self._stamps.unbind()

    def capture(self, launches: Sequence[Launch], rounds: int) -> CapturedGraph:
        """One CUDA graph of all launches, ``rounds`` times over; every launch runs once before, outside the graph.

        Raises:
            MeasurementError: the graph is empty, or the driver does not count its nodes.
        """
        import torch

        with torch.cuda.device(self._device), no_garbage_collection():
            # Compilation and module loading must not happen inside a capture.
            for launch in launches:
                launch()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph(keep_graph=True)  # kept, so that its nodes can be counted
            # Recorded, not raised: an exception inside would leave the capturing stream current.
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                with torch.cuda.graph(graph, stream=self._capture_stream):
                    for _ in range(rounds):
                        for launch in launches:
                            launch()
            num_nodes = count_nodes(graph.raw_cuda_graph())
            if num_nodes == 0:
                raise MeasurementError(
                    "the captured CUDA graph is empty: the launches went to another stream or device, or launch nothing"
                )
            graph.instantiate()
        for warning in caught:
            warnings.warn(warning.message, stacklevel=2)
        return CapturedGraph(graph.replay, num_nodes)

    def elapsed_us(self, n: int, run: Launch, restore: Launch | None = None) -> list[Timing]:
        """Times of ``n`` runs; a run whose start the device reached while the host still enqueued it is marked."""
        import torch

        with torch.cuda.device(self._device), no_garbage_collection():
            starts, ends = ([_event() for _ in range(n)] for _ in range(2))
            late = []
            self._stamps.zero_()
            self._stamp(self._stamp_tables[0])
            run()  # keeps the device busy while the windows behind it are enqueued
            for start, end in zip(starts, ends, strict=True):
                if restore is not None:
                    restore()
                start.record()
                run()
                late.append(bool(start.query()))  # type: ignore[no-untyped-call]
                end.record()
            self._stamp(self._stamp_tables[1])
            read = []
            for start, end in zip(starts, ends, strict=True):
                end.synchronize()
                ended_s = time.monotonic()
                read.append((1e3 * start.elapsed_time(end), ended_s))
            sm_mhz = clock_mhz(*self._stamps.tolist())
        return [Timing(*pair, is_late, sm_mhz) for pair, is_late in zip(read, late, strict=True)]

    def _stamp(self, table: "torch.Tensor") -> None:
        from .stream_kernels import _stamp_kernel

        _stamp_kernel[(self._num_programs,)](table, ROWS=STAMP_ROWS, num_warps=1)


def clock_mhz(begun: Sequence[Sequence[int]], ended: Sequence[Sequence[int]]) -> float | None:
    """SM clock between two tables of (cycles, nanoseconds) by SM; (0, 0) means that no program ran on that SM.

    The fastest SM counts: all run at one clock, and an idle one may stop counting. None where no SM is in both tables.
    """
    rates = [
        1e3 * (cycles - first_cycles) / (ns - first_ns)
        for (first_cycles, first_ns), (cycles, ns) in zip(begun, ended, strict=True)
        if first_ns > 0 and ns > first_ns
    ]
    return max(rates, default=None)


def count_nodes(graph: int) -> int:
    """Nodes of a ``cudaGraph_t``.

    Raises:
        MeasurementError: the driver refuses; launches that nobody counted are not timed.
    """
    num_nodes = ctypes.c_size_t(0)
    try:
        code = ctypes.CDLL("libcuda.so.1").cuGraphGetNodes(ctypes.c_void_p(graph), None, ctypes.byref(num_nodes))
    except (OSError, AttributeError) as error:
        raise MeasurementError(f"the launches of a CUDA graph cannot be counted: {error}") from error
    if code != 0:
        raise MeasurementError(f"the launches of a CUDA graph cannot be counted: cuGraphGetNodes returned {code}")
    return num_nodes.value


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
