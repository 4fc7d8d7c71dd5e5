"""Whether the card was held back while samples were taken: throttle counters around a block, SM clock within it."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

LEAST_CLOCK_SHARE = 0.97
"""Of the highest SM clock of this process. An H200 moves in steps of 15 MHz: two steps down from 1980 (1.5 %) are where
its power management sits under any heavy memory traffic; four (3 %) slowed a commit by up to 3.7 %."""

ALWAYS_COUNT = frozenset({"thermal", "board_limit"})
"""Reasons that drop a sample whatever the SM clock says: heat may slow the memory alone, which no SM clock shows.

The others count with a low clock only. "power" runs most of the time under heavy memory traffic on an H200 that draws
far less than its limit, with the clock one step down; "reliability" is the usual state of some cards at full clock.
"""

SAME_CLOCK = 1 - LEAST_CLOCK_SHARE
"""Two clocks this close are one. A load that is back at the same low clock after a rest is what takes the card there:
on an H200 verify on tensor cores runs at 1740 to 1850 of 1980 MHz in every block of every process, at 250 as at 600 W.
"""

RECOVERY_S = 0.02
"""Pause after a block under throttle: a power limit looks at averages of about this length."""


@dataclass(frozen=True, slots=True)
class Block:
    """What is known of the card while one block of samples was taken.

    Attributes:
        throttle_us: growth of each throttle counter that grew.
        held_back: why its samples do not count; empty when they do.
    """

    throttle_us: Mapping[str, int] = field(default_factory=dict)
    held_back: str = ""


class QuietCard:
    """Judges blocks of samples of one process, in order.

    Args:
        read_throttle_us: growth of the throttle counters by reason since some fixed moment, read now; empty where
            nobody tells, and then the clock decides alone.
    """

    def __init__(
        self,
        read_throttle_us: Callable[[], Mapping[str, int]] = dict,
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._read_throttle_us, self._sleep = read_throttle_us, sleep
        self._before: Mapping[str, int] = {}
        self._highest_mhz = 0.0
        self._before_rest_mhz: float | None = None  # of the last block of this series that did not count

    def begin(self) -> None:
        """Call right before the first work of a series is enqueued."""
        self._before, self._before_rest_mhz = self._read_throttle_us(), None

    def end(self, sm_mhz: float | None) -> Block:
        """Call when the last work of the block has ended: the next block begins there.

        Args:
            sm_mhz: SM clock over the block, where that was measured.
        """
        before, after = self._before, self._read_throttle_us()
        self._before = after
        known = before.keys() & after.keys()
        grown = {reason: after[reason] - before[reason] for reason in sorted(known)}
        throttle_us = {reason: us for reason, us in grown.items() if us > 0}
        self.learn(sm_mhz)
        if throttle_us.keys() & ALWAYS_COUNT:
            return Block(throttle_us, self._describe(throttle_us, sm_mhz))
        if not self._is_slow(sm_mhz) or self._is_own(sm_mhz) or (known and not throttle_us):
            return Block(throttle_us)
        self._before_rest_mhz = sm_mhz
        return Block(throttle_us, self._describe(throttle_us, sm_mhz))

    def _is_slow(self, sm_mhz: float | None) -> bool:
        return sm_mhz is not None and sm_mhz < LEAST_CLOCK_SHARE * self._highest_mhz

    def _is_own(self, sm_mhz: float | None) -> bool:
        """Whether this load was at that clock before it had a rest."""
        before_mhz = self._before_rest_mhz
        return sm_mhz is not None and before_mhz is not None and abs(sm_mhz / before_mhz - 1) <= SAME_CLOCK

    def learn(self, sm_mhz: float | None) -> None:
        """Take note of a clock that this card can have, from work that is not judged here."""
        self._highest_mhz = max(self._highest_mhz, sm_mhz or 0.0)

    def recover(self) -> None:
        """Give the card a moment after a block that did not count; the series goes on behind it."""
        self._sleep(RECOVERY_S)
        self._before = self._read_throttle_us()

    def _describe(self, throttle_us: Mapping[str, int], sm_mhz: float | None) -> str:
        parts = [f"{reason} {us / 1e3:.1f} ms" for reason, us in throttle_us.items()]
        if sm_mhz is not None:
            parts.append(f"SM clock {sm_mhz:.0f} of {self._highest_mhz:.0f} MHz")
        return ", ".join(parts)
