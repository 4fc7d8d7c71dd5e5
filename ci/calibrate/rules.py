"""Rules by which other tools call a benchmark slower, in our own words: each sees a pair of sides and says yes or no.

What a tool was made for counts: those that compare two runs get one process a side, as their users give them; those
that look at a series of runs get one value of each process. Published defaults stand, but where a name says otherwise.
"""

import importlib
import importlib.metadata
import importlib.util
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
from scipy import stats

Samples = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a pair.

    Attributes:
        medians: of its processes, in order of time.
        samples: of one process, for rules of one; with the SM clock of each, empty where nobody measured it.
    """

    medians: Sequence[float]
    samples: Samples
    sm_mhz: Samples = ()


@dataclass(frozen=True, slots=True)
class Rule:
    """``slower``: whether head is called slower than base. ``processes``: of each side that it looks at."""

    name: str
    processes: int
    slower: Callable[[Side, Side], bool]


def more_than(pct: float, base: Side, head: Side) -> bool:
    """A plain threshold on the median of one process's samples."""
    return float(np.median(head.samples)) > float(np.median(base.samples)) * (1 + pct / 100)


def medians_more_than(pct: float, base: Side, head: Side) -> bool:
    """The same on the median of all process medians."""
    return float(np.median(head.medians)) > float(np.median(base.medians)) * (1 + pct / 100)


def ranks_differ(base: Side, head: Side) -> bool:
    """Mann-Whitney on the samples of one process a side, two-sided p < 0.002, and the larger median is the head's."""
    return _mann_whitney_p(base.samples, head.samples) < 0.002 and np.median(head.samples) > np.median(base.samples)


def asv_compare(factor: float, base: Side, head: Side) -> bool:
    """What asv does with recorded samples: ranks differ, and the head's median is larger by more than the factor."""
    return ranks_differ(base, head) and float(np.median(head.samples)) > factor * float(np.median(base.samples))


def nvbench_legacy(base: Side, head: Side) -> bool:
    """NVBench's compare until July 2026: the means differ by more than the smaller of the two relative deviations."""
    means = [float(np.mean(side.samples)) for side in (base, head)]
    noise = min(float(np.std(side.samples, ddof=1)) / mean for side, mean in zip((base, head), means, strict=True))
    return (means[1] - means[0]) / means[0] > noise


def nvbench_robust(base: Side, head: Side, gap: float = 0.005) -> bool:
    """NVBench's compare since: the head's fastest sample is half a percent above the base's third quartile.

    And it is so in SM cycles as well, sample by sample; without clocks nothing is called slower.
    """
    if len(base.sm_mhz) != len(base.samples) or len(head.sm_mhz) != len(head.samples):
        return False
    times = [np.asarray(side.samples) for side in (base, head)]
    cycles = [time * np.asarray(side.sm_mhz) for time, side in zip(times, (base, head), strict=True)]
    return all(
        float(np.min(after)) / float(np.sort(before)[(75 * (len(before) - 1) + 50) // 100]) - 1 >= gap
        for before, after in (times, cycles)
    )


def otava_version() -> str | None:
    """Of the installed Apache Otava; None without one."""
    return importlib.metadata.version("apache-otava") if importlib.util.find_spec("otava") else None


def otava(min_magnitude: float, base: Side, head: Side) -> bool:
    """Apache Otava on the process medians of the base followed by those of the head: a change point to slower.

    Anywhere in the series: on a series of the same code none should be there.
    """
    analysis = importlib.import_module("otava.analysis")  # no dependency of ours, and it has no types
    series = [*base.medians, *head.medians]
    found, _ = analysis.compute_change_points(series, min_magnitude=min_magnitude)
    return any(point.stats.mean_2 > point.stats.mean_1 for point in found)


def known_rules(screen: int) -> list[Rule]:
    """The rules of the table; ``screen``: processes a side that our own gate screens with."""
    rules = [
        Rule("one process, median + 2 %", 1, partial(more_than, 2.0)),
        Rule("one process, median + 5 %", 1, partial(more_than, 5.0)),
        Rule(f"{screen} processes, median + 2 %", screen, partial(medians_more_than, 2.0)),
        Rule("Mann-Whitney on samples, p < 0.002", 1, ranks_differ),
        Rule("NVBench compare, legacy", 1, nvbench_legacy),
        Rule("NVBench compare, robust", 1, nvbench_robust),
        Rule("asv compare, factor 1.1 (default)", 1, partial(asv_compare, 1.1)),
        Rule("asv compare, factor 1.02", 1, partial(asv_compare, 1.02)),
    ]
    if version := otava_version():
        rules += [
            Rule(f"Apache Otava {version} (defaults)", screen, partial(otava, 0.0)),
            Rule(f"Apache Otava {version}, magnitude 1.5 %", screen, partial(otava, 0.015)),
        ]
    return rules


@lru_cache(maxsize=4096)
def _mann_whitney_p(base: Samples, head: Samples) -> float:
    if len(base) < 2 or len(head) < 2:
        return math.nan  # compares false
    return float(stats.mannwhitneyu(base, head, method="asymptotic").pvalue)
