"""Makes a window longer on purpose: a kernel that does nothing but wait runs behind its launches, in the same graph.

What a gate finds is known only for slowdowns whose size is known. The wait is sized by the window's own time, measured
just before, and what came out is measured as well.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .clock import DeviceTimer, Launch
from .errors import MeasurementError
from .stats.summary import median
from .window import Window, require_kernels, sample_windows

if TYPE_CHECKING:
    import torch

LAUNCH_US = 2.0  # what a kernel that returns at once adds to a graph, at first guess: the wait is shorter by so much
FALLBACK_MHZ = 1000.0  # where the device does not tell its clock
NUM_SIZINGS = 3
CLOSE_ENOUGH = 0.1  # of the delay asked for: what remains is recorded
NUM_PAIRS, BATCH = 2, 5  # batches of windows without and with the delay, in turn


@dataclass(frozen=True, slots=True)
class Delay:
    """A wait on the device.

    Attributes:
        pct: how much longer a window shall become.
        launch: enqueues the waiting kernel.
        set_cycles: SM cycles that launches wait from now on, those captured before included.
    """

    pct: float
    launch: Launch
    set_cycles: Callable[[int], None]

    @classmethod
    def on(cls, device: "torch.device", pct: float) -> "Delay":
        """A kernel of one program that watches its SM's cycle counter."""
        import torch

        from .stream_kernels import _wait_kernel

        cycles = torch.zeros(2, dtype=torch.int64, device=device)

        def launch() -> None:
            _wait_kernel[(1,)](cycles, num_warps=1)

        def set_cycles(num: int) -> None:
            cycles[:1].fill_(num)

        return cls(pct, launch, set_cycles)


def slow_down(
    window: Window,
    launches: Sequence[Launch],
    delay: Delay,
    timer: DeviceTimer,
    restore: Launch | None,
    num_kernels: int | None,
) -> tuple[Window, float]:
    """The window with the delay behind its last launch, and by how many percent it is longer, as measured.

    Raises:
        MeasurementError: the waiting kernel takes longer than it shall wait, or the graph does not hold every launch.
    """
    run = timer.capture([*(list(launches) * window.rounds), delay.launch], 1)
    require_kernels(run, window.rounds * len(launches), num_kernels, num_delays=1)
    wanted_us = delay.pct / 100 * window.median_us
    wait_us = wanted_us - LAUNCH_US
    for _ in range(NUM_SIZINGS):
        mhz = sample_windows(timer, 1, window.run, restore)[0].sm_mhz or FALLBACK_MHZ
        delay.set_cycles(max(0, round(wait_us * mhz)))
        plain_us, slow_us = _compare(window.run, run, timer, restore)
        wanted_us, found_us = delay.pct / 100 * plain_us, slow_us - plain_us
        if abs(found_us - wanted_us) <= CLOSE_ENOUGH * wanted_us:
            break
        if wait_us <= 0 and found_us > wanted_us:
            raise MeasurementError(
                f"a delay of {delay.pct:g} % of a window of {plain_us:.0f} us is {wanted_us:.2f} us, and a kernel that "
                f"does not wait takes {found_us:.2f} us"
            )
        wait_us += wanted_us - found_us
    grown = slow_us / plain_us
    period_s = window.period_s + (slow_us - plain_us) / 1e6
    return replace(window, run=run, median_us=slow_us, period_s=period_s), 100 * (grown - 1)


def _compare(plain: Launch, slow: Launch, timer: DeviceTimer, restore: Launch | None) -> tuple[float, float]:
    """Median window without and with the delay; batches take turns, so that a card that warms up favours neither."""
    taken: tuple[list[float], list[float]] = ([], [])
    for _ in range(NUM_PAIRS):
        for run, times in zip((plain, slow), taken, strict=True):
            times += [timing.elapsed_us for timing in sample_windows(timer, BATCH, run, restore)]
    return median(taken[0]), median(taken[1])
