"""Whether two ways of starting a process give the same spread between processes: a Brown-Forsythe test over series.

The unit is the process. Processes shift as a whole (on an H200 one common factor carried 59 % of the variance), so the
series of one process are no independent witnesses: per series each process's distance from its group's median is taken,
scaled by the series' mean distance, and averaged over series. The two groups' averages are then compared.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .summary import median

MIN_PROCESSES = 8  # a group; resampling fewer gives intervals that are too narrow
NUM_RESAMPLES = 2000
SEED = 20261129  # a report must come out the same twice


@dataclass(frozen=True, slots=True)
class SpreadComparison:
    """Group B (forked) against group A (fresh).

    Attributes:
        ratio: spread of B over that of A (mean scaled distance); low and high its 95 % interval, bootstrapped over
            processes.
        p_value: Brown-Forsythe over processes; small where the spreads differ.
        share_rejected: of the series taken alone, those whose own Brown-Forsythe p is below 5 %; about 5 % by chance.
        shift_pct: median over series of B's median over A's, minus one, in percent: whether the level moved too.
    """

    num_series: int
    num_a: int
    num_b: int
    ratio: float
    low: float
    high: float
    p_value: float
    share_rejected: float
    shift_pct: float


def compare_spread(a: Sequence[Mapping[str, float]], b: Sequence[Mapping[str, float]]) -> SpreadComparison | None:
    """Compare groups of processes, each a mapping of series to its positive median; series that all have count.

    None with fewer than ``MIN_PROCESSES`` processes in a group, or without a series that all have.
    """
    from scipy import stats

    if min(len(a), len(b)) < MIN_PROCESSES:
        return None
    shared = sorted(set.intersection(*(set(process) for process in (*a, *b))))
    columns = [([math.log(p[name]) for p in a], [math.log(p[name]) for p in b]) for name in shared]
    columns = [column for column in columns if max(map(_range, column)) > 0]
    if not columns:
        return None
    scaled_a, scaled_b = _scaled_distances(columns)
    by_series = [float(stats.levene(*column, center="median").pvalue) for column in columns]
    low, high = _interval(scaled_a, scaled_b)
    return SpreadComparison(
        num_series=len(columns),
        num_a=len(a),
        num_b=len(b),
        ratio=_ratio(scaled_a, scaled_b),
        low=low,
        high=high,
        p_value=float(stats.f_oneway(scaled_a, scaled_b).pvalue),
        share_rejected=sum(p < 0.05 for p in by_series) / len(by_series),
        shift_pct=100 * (math.exp(median([median(y) - median(x) for x, y in columns])) - 1),
    )


def _scaled_distances(columns: Sequence[tuple[list[float], list[float]]]) -> tuple[list[float], list[float]]:
    """Per process the mean over series of its distance from its group's median, series scaled to a mean of 1."""
    sums = [0.0] * len(columns[0][0]), [0.0] * len(columns[0][1])
    for column in columns:
        distances = [[abs(value - median(group)) for value in group] for group in column]
        flat = [one for group in distances for one in group]
        scale = sum(flat) / len(flat)
        for total, group in zip(sums, distances, strict=True):
            for at, distance in enumerate(group):
                total[at] += distance / scale / len(columns)
    return sums


def _interval(a: Sequence[float], b: Sequence[float]) -> tuple[float, float]:
    rng = random.Random(SEED)
    ratios = sorted(_ratio([rng.choice(a) for _ in a], [rng.choice(b) for _ in b]) for _ in range(NUM_RESAMPLES))
    return ratios[int(0.025 * NUM_RESAMPLES)], ratios[int(0.975 * NUM_RESAMPLES) - 1]


def _ratio(a: Sequence[float], b: Sequence[float]) -> float:
    below = sum(a) / len(a)
    return math.inf if below == 0 else (sum(b) / len(b)) / below


def _range(values: Sequence[float]) -> float:
    return max(values) - min(values)
