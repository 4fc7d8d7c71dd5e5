"""The contract ``nvbench-cold``: isolated cold launches, taken by NVBench through its Python package ``cuda-bench``.

NVBench flushes the L2 before each launch, blocks the stream until the launch is enqueued, times it with a pair of CUDA
events, reads the SM clock around it and drops samples taken under throttle. Its flush leaves the L2 full of lines that
have to be written back, whatever the op writes, and activations and code cold; ``predecessors.py`` puts in their place
what the launches before this one would have left. docs/measuring.md has the terms.

Its Python package runs its benchmarks once per process and registers nothing afterwards, while a measuring process
goes from series to series. So one benchmark with many states is registered, and its run is held open in a thread: each
series takes the next state, and between two series the run waits inside the benchmark function.
"""

import atexit
import importlib
import math
import queue
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .clock import CudaEventTimer, Launch, no_garbage_collection
from .errors import BelowResolutionError, MeasurementError, MissingToolError, NoDeviceError
from .measure import Samples
from .stats.summary import median, summarise
from .stopping import FEWEST_SAMPLES, Sampling
from .window import MIN_RESOLUTIONS

if TYPE_CHECKING:
    from .predecessors import Predecessors

COLD_SAMPLING = Sampling(min_samples=30, max_samples=150, warmup_s=0.02, max_s=0.4)
"""Each launch is a sample of its own here, and short ones scatter: more samples than under graph-cold."""

MAX_SERIES = 2048
"""States of the one benchmark, so series of one process: 160 cases, the most of any set, have seven kernels each."""

WARM_UP_RUNS = 5
"""NVBench's own runs before its first sample: flushed like a sample, but not kept."""

BLOCKED_S = 10.0
"""A launch that waits for the device would wait for ever behind NVBench's blocking kernel; after this it fails."""

CLOSING_S = 10.0

OnStream = Callable[[int], AbstractContextManager[Launch]]
"""Makes the stream at an address current, and gives what waits until it is idle."""


def measure_nvbench_cold(
    launches: Sequence[Launch],
    *,
    restore: Launch | None = None,
    num_kernels: int | None = None,
    sampling: Sampling = COLD_SAMPLING,
    device_index: int | None = None,
) -> Samples:
    """Device time of one op call launched alone, caches as in a graph of such calls: per-sample values from NVBench.

    Takes ``sampling.max_samples`` samples, or as many as ``sampling.max_s`` allows.

    Args:
        launches: each one op call, as many as cover the caches twice. The first is timed, after a replay of them all.
        restore: puts back what calls change, before each replay, outside the timed window.
        num_kernels: kernels of one op call; a captured call must have exactly as many.
        device_index: the current device by default; it must be the same for the whole process.
    Raises:
        MissingToolError: cuda-bench is not installed, or not for this CUDA; nothing else is tried.
        BelowResolutionError, MeasurementError, NoDeviceError: the contract cannot be kept; nothing else is tried.
    """
    import torch

    if not launches:
        raise ValueError("launches: expected at least one op call, got none")
    if not torch.cuda.is_available():
        raise NoDeviceError("nvbench-cold needs a CUDA device, and torch sees none; run `python -m ci doctor`")
    index = torch.cuda.current_device() if device_index is None else device_index
    run = open_run(index)
    # Compiles every launch, and refuses those that miss the stream or wait for the device: behind NVBench's blocking
    # kernel the first would be timed as nothing and the second would never return.
    before = _predecessors(launches, restore, index)
    if num_kernels is not None and before.num_nodes != num_kernels * len(launches):
        raise MeasurementError(
            f"{len(launches)} op calls ran {before.num_nodes} kernels, copies and fills: expected {num_kernels} each"
        )
    before.replay()  # compiles the restore, which must not happen for the first time while a stream is blocked
    return run.measure(launches[0], sampling, partial(_torch_stream, index), before.replay)


@cache
def open_run(device_index: int) -> "NVBenchRun":
    """The one run of this process, begun when first asked for; it ends with the process.

    Raises:
        MissingToolError: cuda-bench cannot be used here.
        MeasurementError: NVBench runs on another device already.
    """
    bench = load_nvbench()
    try:
        run = NVBenchRun(bench, device_index)
    except RuntimeError as error:  # of its registry
        raise MeasurementError(f"NVBench runs once per process, and on one device: {error}") from error
    atexit.register(run.close)
    return run


def load_nvbench() -> Any:
    """The module ``cuda.bench`` with its native part, which needs a driver.

    Raises:
        MissingToolError: with the reason.
    """
    try:
        bench: Any = importlib.import_module("cuda.bench")
        _ = bench.run_all_benchmarks  # loads the native part that fits the installed cuda-bindings
    except (AttributeError, ImportError, RuntimeError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise MissingToolError(
            f"cuda-bench cannot be used here: {first} (extra `nvbench` of pyproject.toml)"
        ) from error
    return bench


class NVBenchRun:
    """NVBench's run of this process, held open until ``close``; series are measured one at a time.

    Args:
        bench: the module ``cuda.bench``.
        device_index: as CUDA and torch count devices.
    """

    def __init__(self, bench: Any, device_index: int, max_series: int = MAX_SERIES) -> None:
        def next_series(state: Any) -> None:
            self._serve(state)

        benchmark = bench.register(next_series)
        self._version = str(getattr(bench, "__version__", "of unknown version"))
        self._folder = tempfile.TemporaryDirectory(prefix="nvbench-", ignore_cleanup_errors=True)
        results = Path(self._folder.name) / "run.json"
        # NVBench's documented names: sample times, and SM clocks, one file for each state as soon as it is measured.
        self._times = _NewFiles(results.with_name(f"{results.name}-bin"))
        self._clocks = _NewFiles(results.with_name(f"{results.name}-freqs-bin"))
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._ended: str | None = None
        benchmark.add_int64_axis("series", list(range(max_series)))
        benchmark.set_stopping_criterion("sample-count")  # each state sets its number of samples
        benchmark.set_criterion_param_int64("target-samples", 1)
        arguments = ["nvbench-cold", "--quiet", "--devices", str(device_index), "--jsonbin", str(results)]
        self._thread = threading.Thread(target=self._run, args=(bench, arguments), name="nvbench", daemon=True)
        self._thread.start()

    def measure(
        self,
        launch: Launch,
        sampling: Sampling,
        on_stream: OnStream,
        precede: Launch = lambda: None,
    ) -> Samples:
        """One series; see ``measure_nvbench_cold``.

        Args:
            precede: sets the caches up after NVBench's flush, on another stream; returns when the device has done it.
        """
        request = _Request(partial(self._sample, launch, precede, sampling, on_stream))
        with self._lock:
            if self._ended is not None:
                raise MeasurementError(f"NVBench runs once per process, and its run has ended: {self._ended}")
            self._requests.put(request)
        return request.future.result()

    def close(self) -> None:
        """End the run and remove its files. Nothing can be measured afterwards, in this process."""
        self._requests.put(None)
        self._thread.join(CLOSING_S)
        self._folder.cleanup()

    def _run(self, bench: Any, arguments: list[str]) -> None:
        reason = "it has measured as many series as it can"
        try:
            bench.run_all_benchmarks(arguments)
        except Exception as error:  # whatever it is, each later series says it
            reason = f"{type(error).__name__}: {error}"
        with self._lock:
            self._ended = self._ended or reason
            while not self._requests.empty():
                if request := self._requests.get():
                    request.future.set_exception(MeasurementError(f"NVBench's run has ended: {reason}"))

    def _serve(self, state: Any) -> None:
        """One state of the benchmark: wait for a series and measure it."""
        request = None if self._ended else self._requests.get()
        if request is None:
            self._ended = "closed"
            state.skip("the process has no more series")
            return
        try:
            request.future.set_result(request.work(state))
        except Exception as error:
            state.skip(str(error))
            request.future.set_exception(error)

    def _sample(
        self,
        launch: Launch,
        precede: Launch,
        sampling: Sampling,
        on_stream: OnStream,
        state: Any,
    ) -> Samples:
        state.set_min_samples(sampling.max_samples)
        state.set_timeout(sampling.max_s)
        state.set_cold_warmup_runs(WARM_UP_RUNS)
        state.set_blocking_kernel_timeout(BLOCKED_S)
        self._times.mark()
        self._clocks.mark()
        window = _Window(launch, precede, state.get_stream().addressof())
        try:
            with on_stream(window.stream) as drain, no_garbage_collection():
                window.warm_up(sampling.warmup_s, drain)
                state.exec(window, timer=True)
        except MeasurementError:
            raise
        except Exception as error:
            raise MeasurementError(f"NVBench gave up: {type(error).__name__}: {error}") from error
        values_us = [1e6 * value for value in self._times.read()]
        if not values_us:
            raise MeasurementError("NVBench wrote no sample times")
        return self._samples(values_us, window.ended_s[WARM_UP_RUNS:], sampling)

    def _samples(self, values_us: list[float], ended_s: list[float], sampling: Sampling) -> Samples:
        num_kept, num_dropped = len(values_us), len(ended_s) - len(values_us)
        if num_dropped < 0:
            raise MeasurementError(
                f"NVBench has {num_kept} samples of {len(ended_s)} launches: they are not of this run"
            )
        if num_kept < FEWEST_SAMPLES:
            raise MeasurementError(
                f"{num_kept} samples in {sampling.max_s:g} s, and {num_dropped} dropped under throttle: "
                f"at least {FEWEST_SAMPLES} are needed"
            )
        if not all(0 < value < math.inf for value in values_us):
            raise BelowResolutionError(f"a launch read {min(values_us):g} us: below the resolution of CUDA events")
        reason = _reason(values_us, num_dropped, sampling)
        clocks_mhz = [value / 1e6 for value in self._clocks.read()]
        if clocks_mhz:
            reason += f"; SM clock {median(clocks_mhz):.0f} MHz"
        reason += f"; NVBench {self._version}"
        # Which windows were dropped is not told; with some dropped, these times are those of the last windows.
        sm_mhz = tuple(clocks_mhz) if len(clocks_mhz) == num_kept else ()
        return Samples(tuple(values_us), 1, reason, tuple(ended_s[num_dropped:]), sm_mhz)


class _Request:
    """A series on its way to the run's thread."""

    def __init__(self, work: Callable[[Any], Samples]) -> None:
        self.work = work
        self.future: Future[Samples] = Future()


class _Window:
    """What NVBench calls for each sample: flush, the launches before, then the timed one; counts the calls."""

    def __init__(self, call: Launch, precede: Launch, stream: int) -> None:
        self.stream = stream
        self.ended_s: list[float] = []
        self._call, self._precede = call, precede

    def __call__(self, launch: Any, timer: Any) -> None:
        if launch.get_stream().addressof() != self.stream:
            raise MeasurementError("NVBench changed its stream while it measured")
        timer.start()  # flushes, waits, blocks the stream; the first event is recorded behind the block
        # So the window has not opened, and does not before ``stop`` lifts the block: the host may wait here.
        self._precede()
        self._call()
        timer.stop()
        self.ended_s.append(time.monotonic())

    def warm_up(self, seconds: float, drain: Launch) -> None:
        """Idle cards run at a fraction of their clock."""
        begun_s = time.monotonic()
        while time.monotonic() - begun_s < seconds:
            self._precede()
            self._call()
            drain()


class _NewFiles:
    """Little-endian float32 values that NVBench writes into a folder, one file for each state."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._before: set[Path] = set()

    def mark(self) -> None:
        """Files that are there now belong to earlier states."""
        self._before = set(self._folder.glob("*.bin"))

    def read(self) -> list[float]:
        """Values of the file written since ``mark``; none when there is none."""
        new = set(self._folder.glob("*.bin")) - self._before
        if len(new) > 1:
            raise MeasurementError(f"NVBench wrote {len(new)} files into {self._folder.name} for one series")
        data = b"".join(path.read_bytes() for path in new)
        return list(struct.unpack(f"<{len(data) // 4}f", data))


def _reason(values_us: Sequence[float], num_dropped: int, sampling: Sampling) -> str:
    half_width = summarise(values_us).relative_half_width
    shown = "unknown" if half_width is None else f"{100 * half_width:.2f} %"
    enough = len(values_us) >= sampling.max_samples
    reason = "most samples" if enough else f"time limit of {sampling.max_s:g} s"
    reason += f": {len(values_us)} samples, interval half width {shown}"
    if num_dropped:
        reason += f"; {num_dropped} dropped under throttle"
    if median(values_us) < MIN_RESOLUTIONS * CudaEventTimer.resolution_us:
        reason += f"; shorter than {MIN_RESOLUTIONS} steps of the event clock, and not batched under this contract"
    return reason


def _predecessors(launches: Sequence[Launch], restore: Launch | None, device_index: int) -> "Predecessors":
    import torch

    from .predecessors import Predecessors

    device = torch.device("cuda", device_index)
    with torch.cuda.device(device):
        return Predecessors(launches, restore, device)


@contextmanager
def _torch_stream(device_index: int, address: int) -> Iterator[Launch]:
    import torch

    device = torch.device("cuda", device_index)
    stream = torch.cuda.ExternalStream(address, device=device)  # type: ignore[no-untyped-call]
    with torch.cuda.device(device), torch.cuda.stream(stream):
        yield stream.synchronize
