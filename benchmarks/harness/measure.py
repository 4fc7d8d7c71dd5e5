"""The contracts ``graph-cold``, ``host-dispatch`` and ``cpu-reference``; docs/measuring.md has their terms."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .clock import CudaEventTimer, DeviceTimer, Launch, Timing, no_garbage_collection
from .errors import BelowResolutionError, HostLateError, MeasurementError, NoDeviceError
from .stats.summary import median
from .stopping import DEFAULT_SAMPLING, Sampling, num_next, stop_reason

MIN_RESOLUTIONS = 20  # a window of 20 steps of the clock is read to 5 % at worst, and a median far better
SETTLED = 0.01  # two batches of warm-up this close together: clocks have ramped up
WARM_UP_BATCH = 3
WARM_UP_CAP = 10  # times Sampling.warmup_s
CAPTURES = 5  # the time of a short round is read too long at first, so the number of rounds is found in steps
ROUNDS_MARGIN = 1.15
TOLERATED_LATE = 3  # windows retaken without question; beyond, they may be half of all at most
MAX_HOST_CALLS = 100  # far below the driver's queue of 1024 launches, where a launch would wait for the device
MAX_CPU_CALLS = 10_000


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples of one series, as they came: none is dropped for being slow.

    Attributes:
        values_us: time of one op call, one value per timed window.
        launches_per_sample: op calls inside one window.
        stop_reason: why sampling ended, and what was retaken.
        ended_s: ``time.monotonic`` at the end of each window, as near as the host saw it.
    """

    values_us: tuple[float, ...]
    launches_per_sample: int
    stop_reason: str
    ended_s: tuple[float, ...]


def measure_graph_cold(
    launches: Sequence[Launch], *, sampling: Sampling = DEFAULT_SAMPLING, timer: DeviceTimer | None = None
) -> Samples:
    """Device time of one op call inside a CUDA graph, its buffers cold and its activations as the caller left them.

    Args:
        launches: each one op call on its own buffer set; together at least twice the L2 (``cold_cache.num_rotations``).
        timer: CUDA events on the current device by default.
    Raises:
        BelowResolutionError, HostLateError, NoDeviceError: the contract cannot be kept; nothing else is tried.
    """
    if not launches:
        raise ValueError("launches: expected at least one op call, got none")
    timer = timer or CudaEventTimer()
    run, rounds, window_us = _long_enough(launches, sampling, timer)
    per_window = rounds * len(launches)
    kept, num_late, begun_s, spent_s = list[Timing](), 0, None, 0.0
    reason = None
    while reason is None:
        batch = _readable(timer.elapsed_us(num_next(len(kept), spent_s, window_us / 1e6, sampling), run), timer)
        begun_s = _began(batch) if begun_s is None else begun_s
        spent_s = batch[-1].ended_s - begun_s
        kept += [timing for timing in batch if not timing.host_late]
        num_late += sum(timing.host_late for timing in batch)
        _refuse_late(num_late, len(kept), window_us)
        reason = stop_reason([timing.elapsed_us for timing in kept], spent_s, sampling)
    if num_late:
        reason += f"; {num_late} windows retaken (host late)"
    values_us = tuple(timing.elapsed_us / per_window for timing in kept)
    return Samples(values_us, per_window, reason, tuple(timing.ended_s for timing in kept))


def measure_host_dispatch(
    launch: Launch,
    *,
    sampling: Sampling = DEFAULT_SAMPLING,
    drain: Launch | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Samples:
    """Host time until one op call has returned, without waiting for the device.

    The device's queue is drained before each window, and a window is too short to fill it.

    Args:
        drain: waits until the device is idle; ``torch.cuda.synchronize`` by default.
    Raises:
        NoDeviceError: no CUDA device and no ``drain``.
    """
    return _measure_on_host(launch, drain or _cuda_drain(), sampling, clock, MAX_HOST_CALLS)


def measure_cpu_reference(
    launch: Launch, *, sampling: Sampling = DEFAULT_SAMPLING, clock: Callable[[], float] = time.monotonic
) -> Samples:
    """Wall time of one call that is complete when it returns: reference code on the CPU, warm caches."""
    return _measure_on_host(launch, lambda: None, sampling, clock, MAX_CPU_CALLS)


def _long_enough(launches: Sequence[Launch], sampling: Sampling, timer: DeviceTimer) -> tuple[Launch, int, float]:
    """A warm graph of whole rounds that lasts at least ``min_sample_us``; its rounds and its time."""
    target_us = max(sampling.min_sample_us, MIN_RESOLUTIONS * timer.resolution_us)
    rounds, warmup_s = 1, sampling.warmup_s
    for _ in range(CAPTURES):
        run = timer.capture(launches, rounds)
        window_us = _warm_up(run, warmup_s, timer)
        if window_us >= target_us:
            return run, rounds, window_us
        rounds, warmup_s = math.ceil(rounds * ROUNDS_MARGIN * target_us / window_us), 0.0
    raise MeasurementError(
        f"a window of {target_us:g} us was not reached in {CAPTURES} captures, the last of {rounds} rounds"
    )


def _warm_up(run: Launch, warmup_s: float, timer: DeviceTimer) -> float:
    """Run until the time settles, at least ``warmup_s`` and at most ten times that; the last median in us."""
    begun_s, before_us = None, math.inf
    while True:
        batch = _readable(timer.elapsed_us(WARM_UP_BATCH, run), timer)
        begun_s = _began(batch) if begun_s is None else begun_s
        now_us = median([timing.elapsed_us for timing in batch])
        settled = abs(now_us / before_us - 1) <= SETTLED
        if batch[-1].ended_s - begun_s >= (warmup_s if settled else WARM_UP_CAP * warmup_s):
            return now_us
        before_us = now_us


def _began(batch: Sequence[Timing]) -> float:
    return batch[0].ended_s - batch[0].elapsed_us / 1e6


def _readable(batch: Sequence[Timing], timer: DeviceTimer) -> Sequence[Timing]:
    for timing in batch:
        # A comparison with NaN is false, so this refuses NaN as well.
        if not 0 < timing.elapsed_us < math.inf:
            raise BelowResolutionError(
                f"a window read {timing.elapsed_us:g} us: below the timer's resolution of {timer.resolution_us:g} us"
            )
    return batch


def _refuse_late(num_late: int, num_kept: int, window_us: float) -> None:
    if num_late > max(TOLERATED_LATE, num_kept):
        raise HostLateError(
            f"{num_late} of {num_late + num_kept} windows of {window_us:.0f} us began before the host had enqueued "
            "them; the host is overloaded, or Sampling.min_sample_us is too short for it"
        )


def _measure_on_host(
    launch: Launch, drain: Launch, sampling: Sampling, clock: Callable[[], float], max_calls: int
) -> Samples:
    num_calls, sample_s = _host_warm_up(launch, drain, sampling, clock, max_calls)
    values, ended = list[float](), list[float]()
    begun_s = clock()
    reason = None
    while reason is None:
        for _ in range(num_next(len(values), clock() - begun_s, sample_s, sampling)):
            started_s, ended_s = _host_window(launch, drain, clock, num_calls)
            if ended_s <= started_s:
                raise BelowResolutionError(f"{num_calls} calls read {ended_s - started_s:g} s on the host's clock")
            values.append(1e6 * (ended_s - started_s) / num_calls)
            ended.append(ended_s)
        reason = stop_reason(values, clock() - begun_s, sampling)
    return Samples(tuple(values), num_calls, reason, tuple(ended))


def _host_window(launch: Launch, drain: Launch, clock: Callable[[], float], num_calls: int) -> tuple[float, float]:
    """Start and end, in seconds, of ``num_calls`` calls with an empty queue before and after."""
    drain()
    with no_garbage_collection():
        started_s = clock()
        for _ in range(num_calls):
            launch()
        ended_s = clock()
    drain()
    return started_s, ended_s


def _host_warm_up(
    launch: Launch, drain: Launch, sampling: Sampling, clock: Callable[[], float], max_calls: int
) -> tuple[int, float]:
    """Calls per window, and the wall time of one drained window in seconds."""
    begun_s, num_warm = clock(), 0
    while num_warm < WARM_UP_BATCH or (clock() - begun_s < sampling.warmup_s and num_warm < max_calls):
        started_s = clock()
        launch()
        returned_s = clock()
        drain()
        drained_s = clock()
        num_warm += 1
    call_s = max(returned_s - started_s, 1e-9)
    per_call_s = max(drained_s - started_s, call_s)
    wanted = math.ceil(sampling.min_sample_us / 1e6 / call_s)
    affordable = int(sampling.max_s / sampling.min_samples / per_call_s)
    num_calls = max(1, min(wanted, affordable, max_calls))
    return num_calls, num_calls * per_call_s


def _cuda_drain() -> Launch:
    import torch

    if not torch.cuda.is_available():
        raise NoDeviceError("host-dispatch needs a CUDA device, and torch sees none; run `python -m ci doctor`")
    return torch.cuda.synchronize
