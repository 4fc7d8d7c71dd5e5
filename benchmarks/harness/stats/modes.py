"""Whether the processes of a series fall into two modes: a label that explains a blind series, never a verdict."""

import math
from collections.abc import Sequence

import numpy as np

MIN_VALUES = 8
MIN_MODE = 3  # processes of the rarer mode: two are an accident
MIN_SHARE = 0.10
# Distance of the modes over the spread within them. The best split of 12 normal values passes 5.5 once in a hundred
# times, of 24 once in ten thousand; recorded series of two modes on an H200 reach 5.9 and 7.6.
MIN_SEPARATION = 5.5
MIN_DISTANCE_PCT = 3.0  # closer modes do not keep a gate from its limit


def mode_distance_pct(medians: Sequence[float]) -> float | None:
    """How far apart two modes of positive process medians are, in percent of the lower; None where there is one mode.

    The values are split where the squares within both parts are least. Needs 8 values, None below.
    """
    if len(medians) < MIN_VALUES or not all(math.isfinite(v) and v > 0 for v in medians):
        return None
    logs = np.sort(np.log(np.asarray(medians, dtype=float)))
    smallest = max(MIN_MODE, math.ceil(MIN_SHARE * len(logs)))
    splits = [(logs[:k], logs[k:]) for k in range(smallest, len(logs) - smallest + 1)]
    squares = [float(np.var(a) * len(a) + np.var(b) * len(b)) for a, b in splits]
    best = int(np.argmin(squares))
    low, high = splits[best]
    distance = float(np.mean(high) - np.mean(low))
    within = math.sqrt(squares[best] / (len(logs) - 2))
    distance_pct = 100 * math.expm1(distance)
    return distance_pct if distance_pct >= MIN_DISTANCE_PCT and distance >= MIN_SEPARATION * within else None
