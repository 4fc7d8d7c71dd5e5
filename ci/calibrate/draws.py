"""Gates drawn from recorded processes: of the code against itself, and against itself slowed down.

A gate takes all its processes from one occasion, for two commits are measured on one card in one go.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from benchmarks.harness.stats import calibration
from benchmarks.harness.stats.calibration import (
    GATE,
    WHOLE,
    Flags,
    Floats,
    Limits,
    Rng,
    Stage,
    clean_gate,
    exact_upper_pct,
    in_blocks,
)

from .dataset import Dataset
from .trust import DisjointGates, ResampledGates, rounded


@dataclass(frozen=True, slots=True)
class Kinds:
    """One occasion: log process medians in order of time, [processes, series], as they are and by delay in percent.

    ``realised``: mean delay that came out, as log ratios [series], by delay.
    """

    id: str
    plain: Floats
    delayed: dict[float, Floats]
    realised: dict[float, Floats]

    @property
    def measured(self) -> Flags:
        """[series]: whether any process of the occasion has it."""
        found: Flags = np.count_nonzero(~np.isnan(self.plain), axis=0) > 0
        return found

    @classmethod
    def of(cls, data: Dataset, occasion: str) -> "Kinds":
        """The sound processes of one occasion; delays of which no process is there are left out."""
        plain = np.log(data.medians(data.chosen(occasion=occasion, delay_pct=None)))
        delayed, realised = dict[float, Floats](), dict[float, Floats]()
        for pct in data.delays:
            own = data.chosen(occasion=occasion, delay_pct=pct)
            if own:
                delayed[pct] = np.log(data.medians(own))
                realised[pct] = np.log1p(data.realised_pct(own) / 100)
        return cls(occasion, plain, delayed, realised)


class Found(NamedTuple):
    """Of gates in which one series at a time was slowed, on occasions that have it: how many found it, [series]."""

    delay_pct: float
    num_gates: Floats
    real: Floats
    synthetic: Floats


def disjoint_gates(occasions: Sequence[Kinds], limits: Limits, rng: Rng) -> DisjointGates:
    """Gates of successive processes, each in one gate alone; suspects take the next ones for their confirmation."""
    counts = {"gates": 0, "suspected": 0, "alarms": 0, "unsettled": 0}
    for one in occasions:
        at = 0
        while at + GATE <= len(one.plain):
            screen = in_blocks(np.arange(at, at + GATE), rng).of(one.plain)
            at += GATE
            counts["gates"] += 1
            if not calibration.suspects(screen.diffs, limits).any():
                continue
            counts["suspected"] += 1
            if at + WHOLE - GATE > len(one.plain):
                counts["unsettled"] += 1
                continue
            confirm = in_blocks(np.arange(at, at + WHOLE - GATE), rng).of(one.plain)
            at += WHOLE - GATE
            counts["alarms"] += alarm(screen, confirm, limits)
    upper = exact_upper_pct(counts["alarms"] + counts["unsettled"], counts["gates"])
    return DisjointGates(
        num_gates=counts["gates"],
        num_with_suspects=counts["suspected"],
        num_with_alarm=counts["alarms"],
        num_unsettled=counts["unsettled"],
        upper_pct=None if upper is None else rounded(upper),
    )


def resampled_gates(occasions: Sequence[Kinds], limits: Limits, num_gates: int, rng: Rng) -> ResampledGates:
    """Gates of processes drawn at random, each from one occasion; occasions take turns."""
    suspected, alarms, tried = 0, dict.fromkeys((one.id for one in occasions), 0), dict[str, int]()
    for number in range(num_gates):
        one = occasions[number % len(occasions)]
        screen, confirm = (stage.of(one.plain) for stage in clean_gate(len(one.plain), rng))
        tried[one.id] = tried.get(one.id, 0) + 1
        if calibration.suspects(screen.diffs, limits).any():
            suspected += 1
            alarms[one.id] += alarm(screen, confirm, limits)
    return ResampledGates(
        num_gates=num_gates,
        num_with_suspects=suspected,
        num_with_alarm=sum(alarms.values()),
        rate_pct=rounded(100 * sum(alarms.values()) / num_gates) if num_gates else None,
        by_occasion_pct={name: 100 * alarms[name] / count for name, count in tried.items()},
    )


def power_of(occasions: Sequence[Kinds], limits: Limits, num_gates: int, rng: Rng) -> list[Found]:
    """For each delay, what gates find: ``num_gates`` of each occasion that has it, one series slowed at a time.

    *Real*: the head's processes are those with a delay on the device. *Synthetic*: the head's plain processes, their
    times scaled by the mean delay that came out.
    """
    delays = sorted({pct for one in occasions for pct in one.delayed})
    num_series = len(limits.margin)
    counts = {pct: Found(pct, *(np.zeros(num_series) for _ in range(3))) for pct in delays}
    for one in occasions:
        for _ in range(num_gates if one.delayed else 0):
            places = clean_gate(len(one.plain), rng)
            screen, confirm = (stage.of(one.plain) for stage in places)
            clean = calibration.tested(screen, confirm, limits)
            for pct, logs in one.delayed.items():
                real = tuple(stage.with_head(len(logs), rng).of(one.plain, logs) for stage in places)
                scaled = screen.slowed(one.realised[pct]), confirm.slowed(one.realised[pct])
                for (slow_screen, slow_confirm), count in ((real, counts[pct].real), (scaled, counts[pct].synthetic)):
                    changed = calibration.tested(slow_screen, slow_confirm, limits)
                    count += calibration.regressed_alone(clean, changed, slow_confirm, limits)
                counts[pct].num_gates[one.measured] += 1
    return [counts[pct] for pct in delays]


def alarm(screen: Stage, confirm: Stage, limits: Limits) -> bool:
    """Whether the gate fails: a gated series is called slower."""
    return bool(calibration.regressed(calibration.tested(screen, confirm, limits), confirm, limits).any())
