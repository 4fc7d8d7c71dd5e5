"""The window that ``graph-cold`` times: a CUDA graph of whole rounds, long enough to be read well, and warm."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .clock import CapturedGraph, DeviceTimer, Launch, Timing
from .errors import BelowResolutionError, MeasurementError
from .stats.summary import median
from .stopping import Sampling

MIN_RESOLUTIONS = 20  # a window of 20 steps of the clock is read to 5 % at worst, and a median far better
SETTLED = 0.01  # two batches of warm-up this close together, in time and SM clock: clocks have ramped up
WARM_UP_BATCH = 3
WARM_UP_CAP = 10  # times Sampling.warmup_s
CAPTURES = 5  # the time of a short round is read too long at first, so the number of rounds is found in steps
ROUNDS_MARGIN = 1.15


@dataclass(frozen=True, slots=True)
class Window:
    """What is timed: a warm graph of whole rounds, its time, and the time from one window to the next."""

    run: Launch
    rounds: int
    median_us: float
    period_s: float


def long_enough(
    launches: Sequence[Launch], sampling: Sampling, timer: DeviceTimer, restore: Launch | None, num_kernels: int | None
) -> Window:
    """A warm graph of whole rounds that lasts at least ``min_sample_us``."""
    target_us = max(sampling.min_sample_us, MIN_RESOLUTIONS * timer.resolution_us)
    rounds, warmup_s = 1, sampling.warmup_s
    for _ in range(CAPTURES):
        run = timer.capture(launches, rounds)
        require_kernels(run, rounds * len(launches), num_kernels)
        median_us, period_s = warm_up(run, warmup_s, timer, restore)
        if median_us >= target_us:
            return Window(run, rounds, median_us, period_s)
        rounds, warmup_s = math.ceil(rounds * ROUNDS_MARGIN * target_us / median_us), 0.0
    raise MeasurementError(
        f"a window of {target_us:g} us was not reached in {CAPTURES} captures, the last of {rounds} rounds"
    )


def require_kernels(run: Launch, num_calls: int, num_kernels: int | None, num_delays: int = 0) -> None:
    """Refuse a graph that does not hold every launch and these delays; only a real graph can be counted."""
    if not isinstance(run, CapturedGraph):
        return
    num_nodes = run.num_nodes - num_delays
    if num_kernels is None and num_nodes < num_calls:
        raise MeasurementError(
            f"the captured CUDA graph has {num_nodes} nodes for {num_calls} op calls: some launches went elsewhere"
        )
    if num_kernels is not None and num_nodes != num_calls * num_kernels:
        raise MeasurementError(
            f"the captured CUDA graph has {num_nodes} nodes, expected {num_calls} op calls of {num_kernels} kernels"
        )


def warm_up(run: Launch, warmup_s: float, timer: DeviceTimer, restore: Launch | None) -> tuple[float, float]:
    """Run until time and clock settle, at least ``warmup_s`` and at most ten times that.

    Returns the last median in us, and seconds from window to window.
    """
    begun_s, before_us, before_mhz = None, math.inf, None
    while True:
        batch = sample_windows(timer, WARM_UP_BATCH, run, restore)
        begun_s = began(batch) if begun_s is None else begun_s
        now_us, now_mhz = median([timing.elapsed_us for timing in batch]), batch[0].sm_mhz
        settled = abs(now_us / before_us - 1) <= SETTLED
        if now_mhz and before_mhz:
            settled = settled and abs(now_mhz / before_mhz - 1) <= SETTLED
        if batch[-1].ended_s - begun_s >= (warmup_s if settled else WARM_UP_CAP * warmup_s):
            return now_us, max(now_us / 1e6, (batch[-1].ended_s - batch[0].ended_s) / (len(batch) - 1))
        before_us, before_mhz = now_us, now_mhz


def sample_windows(timer: DeviceTimer, n: int, run: Launch, restore: Launch | None) -> Sequence[Timing]:
    """``n`` windows back to back. Raises BelowResolutionError for a time that is none."""
    return _readable(timer.elapsed_us(n, run) if restore is None else timer.elapsed_us(n, run, restore), timer)


def began(batch: Sequence[Timing]) -> float:
    """When the first window of a batch opened, on the host's monotonic clock."""
    return batch[0].ended_s - batch[0].elapsed_us / 1e6


def _readable(batch: Sequence[Timing], timer: DeviceTimer) -> Sequence[Timing]:
    for timing in batch:
        # A comparison with NaN is false, so this refuses NaN as well.
        if not 0 < timing.elapsed_us < math.inf:
            raise BelowResolutionError(
                f"a window read {timing.elapsed_us:g} us: below the timer's resolution of {timer.resolution_us:g} us"
            )
    return batch
