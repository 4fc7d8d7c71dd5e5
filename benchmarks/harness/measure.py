"""The contracts ``graph-cold``, ``host-dispatch`` and ``cpu-reference``; docs/measuring.md has their terms."""

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from .clock import CudaEventTimer, DeviceTimer, Launch, Timing, no_garbage_collection
from .delay import Delay, slow_down
from .errors import BelowResolutionError, HostLateError, MeasurementError, NoDeviceError
from .quiet import Block, QuietCard
from .stats.summary import median
from .stopping import DEFAULT_SAMPLING, Sampling, num_next, stop_reason
from .window import WARM_UP_BATCH, began, long_enough, sample_windows

TOLERATED_LATE = 3  # windows retaken without question; beyond, they may be half of all at most
HOST_CALLS = 4  # in one window, whatever they cost: a number that followed the time would differ between processes
HOST_LEADS = 2  # calls before the window opens: the first ones after a drain find caches and driver cold
MAX_CPU_CALLS = 10_000


@dataclass(frozen=True, slots=True)
class DroppedSample:
    """A sample taken while the card was held back: kept with the samples, not counted."""

    value_us: float
    ended_s: float
    sm_mhz: float | None


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples of one series, as they came: none is dropped for being slow.

    Attributes:
        values_us: time of one op call, one value per timed window.
        launches_per_sample: op calls inside one window.
        stop_reason: why sampling ended, and what was retaken or dropped.
        ended_s: ``time.monotonic`` at the end of each window, as near as the host saw it.
        sm_mhz: SM clock over the block of each value, from the SMs' cycle counters; empty where nobody measured it.
        dropped: samples that do not count, because the card was held back.
        throttle_us: growth of the throttle counters over all blocks, dropped ones included, by reason.
        delay_pct: how much longer the windows were than without a delay that was asked for, as measured; else None.
    """

    values_us: tuple[float, ...]
    launches_per_sample: int
    stop_reason: str
    ended_s: tuple[float, ...]
    sm_mhz: tuple[float | None, ...] = ()
    dropped: tuple[DroppedSample, ...] = ()
    throttle_us: Mapping[str, int] = field(default_factory=dict)
    delay_pct: float | None = None


class ThrottledError(MeasurementError):
    """Too few samples were taken while the card ran freely; ``samples`` has them all."""

    def __init__(self, message: str, samples: Samples) -> None:
        super().__init__(message)
        self.samples = samples


def measure_graph_cold(
    launches: Sequence[Launch],
    *,
    sampling: Sampling = DEFAULT_SAMPLING,
    timer: DeviceTimer | None = None,
    restore: Launch | None = None,
    num_kernels: int | None = None,
    card: QuietCard | None = None,
    delay: Delay | None = None,
) -> Samples:
    """Device time of one op call inside a CUDA graph, its buffers cold and its activations as the caller left them.

    Args:
        launches: each one op call on its own buffer set; together at least twice the L2 (``cold_cache.num_rotations``).
        timer: CUDA events on the current device by default.
        restore: launches that give memory back the values it has before the first call, for ops that write their own
            inputs; captured in a graph of its own, which runs before each window, outside it.
        num_kernels: kernels of one op call; the captured graph must have exactly as many.
        card: judges each block of samples; those taken while the card was held back do not count.
        delay: makes every window longer on purpose, to see what a gate finds; the samples say by how much.
    Raises:
        BelowResolutionError, HostLateError, ThrottledError, NoDeviceError, MeasurementError: the contract cannot be
            kept; nothing else is tried.
    """
    if not launches:
        raise ValueError("launches: expected at least one op call, got none")
    timer, card = timer or CudaEventTimer(), card or QuietCard()
    # Before the op's own captures, which end in the graph that is timed.
    replay = timer.capture([restore], 1) if restore is not None else None
    window, delay_pct = long_enough(launches, sampling, timer, replay, num_kernels), None
    if delay is not None:
        window, delay_pct = slow_down(window, launches, delay, timer, replay, num_kernels)
    taken = _Taken(window.rounds * len(launches), delay_pct)
    begun_s, spent_s, reason = None, 0.0, None
    card.begin()
    while reason is None:
        num = num_next(len(taken.kept), spent_s, window.period_s, sampling)
        batch = sample_windows(timer, num, window.run, replay)
        block = card.end(batch[0].sm_mhz)
        begun_s = began(batch) if begun_s is None else begun_s
        spent_s = batch[-1].ended_s - begun_s
        taken.add(batch, block)
        _refuse_late(taken.num_late, len(taken.kept) + len(taken.dropped), window.median_us)
        reason = stop_reason([timing.elapsed_us for timing in taken.kept], spent_s, sampling)
        if block.held_back and reason is None:
            if spent_s >= sampling.max_s:
                raise taken.throttled(sampling)
            card.recover()
    return taken.samples(reason)


class _Taken:
    """Windows taken so far, sorted into those that count and those that do not."""

    def __init__(self, per_window: int, delay_pct: float | None) -> None:
        self.kept: list[Timing] = []
        self.dropped: list[Timing] = []
        self.num_late = 0
        self._per_window, self._delay_pct = per_window, delay_pct
        self._held_back = ""
        self._throttle_us: Counter[str] = Counter()

    def add(self, batch: Sequence[Timing], block: Block) -> None:
        in_time = [timing for timing in batch if not timing.host_late]
        self.num_late += len(batch) - len(in_time)
        (self.dropped if block.held_back else self.kept).extend(in_time)
        self._held_back = self._held_back or block.held_back
        self._throttle_us.update(block.throttle_us)

    def samples(self, reason: str) -> Samples:
        if self.num_late:
            reason += f"; {self.num_late} windows retaken (host late)"
        if self.dropped:
            reason += f"; {len(self.dropped)} samples dropped (throttled: {self._held_back})"
        return Samples(
            values_us=tuple(timing.elapsed_us / self._per_window for timing in self.kept),
            launches_per_sample=self._per_window,
            stop_reason=reason,
            ended_s=tuple(timing.ended_s for timing in self.kept),
            sm_mhz=tuple(timing.sm_mhz for timing in self.kept),
            dropped=tuple(
                DroppedSample(timing.elapsed_us / self._per_window, timing.ended_s, timing.sm_mhz)
                for timing in self.dropped
            ),
            throttle_us=dict(self._throttle_us),
            delay_pct=self._delay_pct,
        )

    def throttled(self, sampling: Sampling) -> ThrottledError:
        accepted = f"only {len(self.kept)} accepted samples" if self.kept else "no accepted samples"
        reason = (
            f"{accepted} in {sampling.max_s:g} s: {len(self.dropped)} were taken while the card was held back "
            f"({self._held_back})"
        )
        return ThrottledError(reason, self.samples(reason))


def measure_host_dispatch(
    launch: Launch,
    *,
    sampling: Sampling = DEFAULT_SAMPLING,
    drain: Launch | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Samples:
    """Host time until one op call has returned, without waiting for the device.

    The device's queue is drained before each window. A window holds ``HOST_CALLS`` calls (fewer where the device is so
    slow that they would not fit into ``max_s``) behind ``HOST_LEADS`` that are not timed.

    Args:
        launch: best one that leaves the device little to do, so that the host is what is measured.
        drain: waits until the device is idle; ``torch.cuda.synchronize`` by default.
    Raises:
        NoDeviceError: no CUDA device and no ``drain``.
    """
    drain = drain or _cuda_drain()
    per_call_s = _host_warm_up(launch, drain, sampling, clock, HOST_CALLS)[1]
    num_calls = max(1, min(HOST_CALLS, _affordable(per_call_s, sampling) - HOST_LEADS))
    return _measure_on_host(launch, drain, sampling, clock, num_calls, HOST_LEADS, per_call_s)


def measure_cpu_reference(
    launch: Launch, *, sampling: Sampling = DEFAULT_SAMPLING, clock: Callable[[], float] = time.monotonic
) -> Samples:
    """Wall time of one call that is complete when it returns: reference code on the CPU, warm caches."""
    call_s, per_call_s = _host_warm_up(launch, _nothing, sampling, clock, MAX_CPU_CALLS)
    wanted = math.ceil(sampling.min_sample_us / 1e6 / call_s)
    num_calls = max(1, min(wanted, _affordable(per_call_s, sampling), MAX_CPU_CALLS))
    return _measure_on_host(launch, _nothing, sampling, clock, num_calls, 0, per_call_s)


def _refuse_late(num_late: int, num_kept: int, window_us: float) -> None:
    if num_late > max(TOLERATED_LATE, num_kept):
        raise HostLateError(
            f"{num_late} of {num_late + num_kept} windows of {window_us:.0f} us began before the host had enqueued "
            "them; the host is overloaded, or Sampling.min_sample_us is too short for it"
        )


def _measure_on_host(
    launch: Launch,
    drain: Launch,
    sampling: Sampling,
    clock: Callable[[], float],
    num_calls: int,
    num_leads: int,
    per_call_s: float,
) -> Samples:
    values, ended = list[float](), list[float]()
    begun_s, sample_s = clock(), (num_leads + num_calls) * per_call_s
    reason = None
    while reason is None:
        for _ in range(num_next(len(values), clock() - begun_s, sample_s, sampling)):
            started_s, ended_s = _host_window(launch, drain, clock, num_calls, num_leads)
            if ended_s <= started_s:
                raise BelowResolutionError(f"{num_calls} calls read {ended_s - started_s:g} s on the host's clock")
            values.append(1e6 * (ended_s - started_s) / num_calls)
            ended.append(ended_s)
        reason = stop_reason(values, clock() - begun_s, sampling)
    return Samples(tuple(values), num_calls, reason, tuple(ended))


def _host_window(
    launch: Launch, drain: Launch, clock: Callable[[], float], num_calls: int, num_leads: int
) -> tuple[float, float]:
    """Start and end, in seconds, of ``num_calls`` calls behind ``num_leads`` more; the queue is empty before."""
    drain()
    with no_garbage_collection():
        for _ in range(num_leads):
            launch()
        started_s = clock()
        for _ in range(num_calls):
            launch()
        ended_s = clock()
    drain()
    return started_s, ended_s


def _host_warm_up(
    launch: Launch, drain: Launch, sampling: Sampling, clock: Callable[[], float], max_calls: int
) -> tuple[float, float]:
    """Seconds of one call on the host, and until it is drained: medians, so that one hiccup changes no window."""
    begun_s = clock()
    called, drained = list[float](), list[float]()
    while len(called) < WARM_UP_BATCH or (clock() - begun_s < sampling.warmup_s and len(called) < max_calls):
        started_s = clock()
        launch()
        called.append(clock() - started_s)
        drain()
        drained.append(clock() - started_s)
    call_s = max(median(called), 1e-9)
    return call_s, max(median(drained), call_s)


def _affordable(per_call_s: float, sampling: Sampling) -> int:
    """Calls of a window, so that the least number of windows fits into ``max_s``."""
    return int(sampling.max_s / sampling.min_samples / per_call_s)


def _nothing() -> None:
    """A call that is complete when it returns leaves nothing to drain."""


def _cuda_drain() -> Launch:
    import torch

    if not torch.cuda.is_available():
        raise NoDeviceError("host-dispatch needs a CUDA device, and torch sees none; run `python -m ci doctor`")
    return torch.cuda.synchronize
