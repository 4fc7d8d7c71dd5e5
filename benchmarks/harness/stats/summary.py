"""Median of a sample and its interval by order statistics: no assumption about the shape of the noise."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Summary:
    """What a sample says about its median, in the unit of the values.

    Attributes:
        low, high: interval of the median; None below the sample size that the confidence needs.
        relative_half_width: half the interval over the median; None where there is no interval or the median is 0.
    """

    n: int
    median: float
    low: float | None
    high: float | None
    minimum: float
    maximum: float

    @property
    def relative_half_width(self) -> float | None:
        if self.low is None or self.high is None or self.median == 0:
            return None
        return (self.high - self.low) / 2 / abs(self.median)


def summarise(values: Sequence[float], confidence: float = 0.95) -> Summary:
    """Median, interval and extremes of at least one value.

    Raises:
        ValueError: no values, or one that is not finite: a measurement without a number has no summary.
    """
    _refuse(values)
    interval = median_interval(values, confidence)
    return Summary(
        n=len(values),
        median=median(values),
        low=interval[0] if interval else None,
        high=interval[1] if interval else None,
        minimum=min(values),
        maximum=max(values),
    )


def median(values: Sequence[float]) -> float:
    """Middle value, or the mean of the middle two. Raises ValueError on none or on a non-finite one."""
    _refuse(values)
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float] | None:
    """Interval that covers the median with at least ``confidence``, from two order statistics.

    None below the needed sample size (6 values for 95 %): the interval would need values beyond the extremes.
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence: expected a share between 0 and 1, got {confidence}")
    _refuse(values)
    skip = _num_skipped(len(values), confidence)
    if skip is None:
        return None
    ordered = sorted(values)
    return ordered[skip], ordered[-1 - skip]


def _num_skipped(n: int, confidence: float) -> int | None:
    """Values that may be left out at each end; None when even the extremes cover too little."""
    # Each end misses the median with P(Binomial(n, 1/2) <= skip); counts stay integers, so nothing rounds.
    allowed = (1 - confidence) / 2 * 2**n if n < 1000 else math.inf
    if math.isinf(allowed):
        raise ValueError(f"values: expected fewer than 1000 for an exact interval, got {n}")
    missed, skip = 0, None
    for k in range(n // 2):
        missed += math.comb(n, k)
        if missed > allowed:
            break
        skip = k
    return skip


def _refuse(values: Sequence[float]) -> None:
    if not values:
        raise ValueError("values: expected at least one, got none")
    for value in values:
        if not math.isfinite(value):
            raise ValueError(f"values: expected finite numbers, got {value}")
