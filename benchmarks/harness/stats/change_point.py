"""Steps in a nightly series, and the surprise of a first night: pure functions on floats.

A night's value is the median of its process medians. A series holds the values of nights of one environment, oldest
first: another GPU model, driver or torch begins another series, another card or commit does not. Only a step that
several nights carry, or a confirmation, raises an alarm: one slow night is a reason to measure again, never more.
Creep that makes no step is for ``verdict.judge_night``, by nights against those of a pinned release.

Which library finds the steps, with what rules, and what they find: docs/decisions/0025-steps-by-ruptures.md.
"""

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .distributions import t_above
from .verdict import FALSE_DISCOVERY_RATE, discoveries

MIN_PROCESSES = 5  # of a night's value
MIN_BEFORE = 12  # nights of the old level
MIN_AFTER = 3  # nights of the new level before it is an alarm; two slow nights can be chance
PENALTY = 10.0  # of a step, in units of the noise's variance times log(nights)
CARRIED = 0.8  # share of each side's nights that must lie on its own side of the middle between the levels
NUM_SPREADS = 3.0  # a step is at least so many standard deviations between nights
RECENT, MIN_RECENT = 20, 8  # nights of the current level that a first night is held against
SUSPICIOUS_Z = 4.0
SPIKE = 3.0  # noise standard deviations from the median of five nights
MIN_CHANGES = 8  # from night to night, to fit a coefficient by
LESS_SPREAD = 0.9  # an adjustment by the control is worth having when it leaves at most this much
TO_SD = 1.4826  # of a median absolute deviation, for normal noise

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Step:
    """A lasting change.

    Attributes:
        index: of the first night at the new level.
        change_pct: of the median of the nights after over that of the nights before.
        nights_before, nights_after: of the two levels that it lies between.
    """

    index: int
    change_pct: float
    nights_before: int
    nights_after: int


@dataclass(frozen=True, slots=True)
class Surprise:
    """How far the last night lies from its series' current level; a large one asks for a confirmation.

    Attributes:
        shift_pct: over the median of the level's recent nights.
        z: the shift over their robust standard deviation.
        p: two-sided, by Student's distribution with one freedom less than nights.
        nights: that it was held against.
    """

    shift_pct: float
    z: float
    p: float
    nights: int


def night_value(medians: Sequence[float]) -> float | None:
    """Median of the process medians; None below five processes, which a single odd one could move."""
    return statistics.median(medians) if len(medians) >= MIN_PROCESSES else None


def adjusted(values: Sequence[float], controls: Sequence[float]) -> tuple[list[float], float]:
    """Values less what they share with the control, and the coefficient; as they are, and 0, where none helps.

    The coefficient is fitted to the changes from night to night of both logarithms, so that a step of the series is one
    outlier and no trend. It is used when, each change predicted from all the others, it leaves at most 0.9 of the
    spread. Division by the control would be a coefficient of 1: it helps commits and hurts verifies. Needs 8 changes.
    """
    y, x = _logs(values), _logs(controls)
    if len(x) != len(y):
        raise ValueError(f"controls: expected one for each of the {len(y)} values, got {len(x)}")
    dy, dx = np.diff(y), np.diff(x)
    if len(dy) < MIN_CHANGES or not dx.any():
        return list(values), 0.0
    both, own = dx * dy, dx * dx
    left_out = own.sum() - own
    if not left_out.all():  # one night alone moved the control: nothing to check a coefficient by
        return list(values), 0.0
    residuals = dy - dx * (both.sum() - both) / left_out
    if _rms(residuals) > LESS_SPREAD * _rms(dy):
        return list(values), 0.0
    coefficient = float(both.sum() / own.sum())
    return [float(v) for v in np.exp(y - coefficient * (x - np.median(x)))], coefficient


def steps(values: Sequence[float], limit_pct: float) -> list[Step]:
    """Lasting changes by at least ``limit_pct`` and three times the spread between nights.

    Optimal segmentation of the logarithms into levels (PELT, squared error), spikes of single nights taken out and
    levels joined that differ by less than the limit. A step between two levels counts when 12 nights before and 3 after
    carry it, each with four fifths of its nights on their own side of the middle. Values are positive and of one
    environment; below 15 nights there is no step.

    Raises:
        ValueError: a value is no positive finite number.
        ModuleNotFoundError: without ``ruptures``, which comes with the extra ``report``.
    """
    import ruptures

    logs = _logs(values)
    if len(logs) < MIN_BEFORE + MIN_AFTER:
        return []
    noise = _noise(logs)
    scaled = (_without_spikes(logs, noise) - np.median(logs)) / noise
    search = ruptures.KernelCPD(kernel="linear", min_size=MIN_AFTER).fit(scaled[:, None])
    least = math.log1p(limit_pct / 100)
    bounds = _levels(logs, [0, *search.predict(pen=PENALTY * math.log(len(logs)))], least)
    found = []
    for start, at, end in zip(bounds, bounds[1:], bounds[2:], strict=False):
        before, after = logs[start:at], logs[at:end]
        change = float(np.median(after) - np.median(before))
        spread = max(noise, _mad(np.concatenate([before - np.median(before), after - np.median(after)])))
        if len(before) >= MIN_BEFORE and abs(change) >= max(least, NUM_SPREADS * spread) and _carried(before, after):
            found.append(Step(int(at), 100 * math.expm1(change), len(before), len(after)))
    return found


def surprise(values: Sequence[float], level_start: int = 0) -> Surprise | None:
    """How far the last night lies from the level that began at ``level_start``; None below 8 nights before it.

    Median and median absolute deviation of at most 20 nights, so that a spike among them widens nothing.
    """
    logs = _logs(values)
    recent = logs[max(level_start, len(logs) - 1 - RECENT) : -1]
    if len(recent) < MIN_RECENT:
        return None
    shift, spread = float(logs[-1] - np.median(recent)), _mad(recent)
    z = shift / spread if spread > 0 else math.copysign(math.inf, shift) if shift else 0.0
    return Surprise(100 * math.expm1(shift), z, float(2 * t_above(abs(z), len(recent) - 1)), len(recent))


def to_confirm(
    surprises: Sequence[Surprise | None], least_pct: float = 1.0, rate: float = FALSE_DISCOVERY_RATE
) -> list[bool]:
    """Which series of a night ask for a confirmation, in order.

    By |z| > 4, a shift of at least ``least_pct``, and Benjamini-Hochberg at ``rate`` over all series that have one.
    """
    family = [s for s in surprises if s is not None]
    found = iter(discoveries([s.p for s in family], rate))
    return [
        s is not None and next(found) and abs(s.z) > SUSPICIOUS_Z and abs(s.shift_pct) >= least_pct for s in surprises
    ]


def _levels(logs: Floats, bounds: Sequence[int], least: float) -> list[int]:
    # Changes below the limit are no steps, so they end no level either: the smallest goes first, until none is left.
    bounds = list(bounds)
    while len(bounds) > 2:
        medians = [np.median(logs[start:end]) for start, end in itertools.pairwise(bounds)]
        changes = np.abs(np.diff(medians))
        smallest = int(np.argmin(changes))
        if changes[smallest] >= least:
            break
        del bounds[smallest + 1]
    return bounds


def _carried(before: Floats, after: Floats) -> bool:
    low, high = float(np.median(before)), float(np.median(after))
    side, middle = math.copysign(1.0, high - low), (low + high) / 2
    shares = np.mean(side * (before - middle) < 0), np.mean(side * (after - middle) > 0)
    return bool(min(shares) >= CARRIED)


def _noise(logs: Floats) -> float:
    # From changes between neighbours, so that steps do not count. The least keeps exact repeats divisible.
    return max(_mad(np.diff(logs)) / math.sqrt(2), 1e-6)


def _without_spikes(logs: Floats, noise: float) -> Floats:
    padded = np.pad(logs, 2, constant_values=np.nan)
    middles = np.nanmedian(np.lib.stride_tricks.sliding_window_view(padded, 5), axis=1)
    calm: Floats = np.where(np.abs(logs - middles) > SPIKE * noise, middles, logs)
    return calm


def _mad(values: Floats) -> float:
    return TO_SD * float(np.median(np.abs(values - np.median(values))))


def _rms(changes: Floats) -> float:
    return float(np.sqrt(np.mean(changes**2)))


def _logs(values: Sequence[float]) -> Floats:
    for value in values:
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"values: expected positive finite numbers, got {value}; leave such a night out")
    logs: Floats = np.log(np.asarray(values, dtype=float))
    return logs
