"""Levels and lasting steps of timed series over nights: for the page of series, and as events beside verdicts."""

import itertools
import statistics
from dataclasses import dataclass

from benchmarks.harness.stats.change_point import MIN_PROCESSES, steps
from ci.config import Thresholds
from reports.derive import Series, full_key
from reports.pages.timeline import INVALID, Timeline

EXACT = ("exact", "static")


@dataclass(frozen=True, slots=True)
class Rule:
    """What ``ci/thresholds.toml`` says of a series: the least change that is a step, which way is better, who minds."""

    limit_pct: float
    better: str
    gated: bool

    @classmethod
    def of(cls, line: Timeline, case: str, key: Series, num_requests: int, thresholds: Thresholds) -> "Rule":
        full = (key.metric, key.op, key.provider, case, key.contract)
        row = thresholds.row_for(full, num_requests=num_requests, gpu_model=line.model)
        limit, _ = thresholds.paired_pct_for(row)
        limits = thresholds.limits_for(full, num_requests=num_requests, gpu_model=line.model)
        return cls(limit, limits.better, limits.gated and key.provider not in line.others)

    def is_worse(self, change_pct: float) -> bool:
        return (change_pct > 0) == (self.better == "lower")


@dataclass(frozen=True, slots=True)
class Level:
    """Nights between two steps or cuts, by their places in the timeline, and the median of their values."""

    first: int
    last: int
    value: float


@dataclass(frozen=True, slots=True)
class Change:
    """A lasting step, by the place of its first night."""

    night: int
    change_pct: float
    nights_before: int
    nights_after: int


@dataclass(frozen=True, slots=True)
class Segments:
    """``missing`` says why no step was looked for; empty when it was."""

    levels: tuple[Level, ...]
    changes: tuple[Change, ...]
    missing: str = ""


def segments(line: Timeline, key: Series, case: str, limit_pct: float) -> Segments:
    """Levels and steps of one series, environment by environment, as ``ci trends`` finds them.

    A night counts with five processes or more; one that was judged invalid counts for nothing. Values are as
    measured, adjusted by no control.

    Args:
        limit_pct: the least change that is a step.
    """
    medians, counts = line.grid.nights(line.grid.values(full_key(key, case)))
    counts_at_all = (counts >= MIN_PROCESSES) & (medians > 0)
    levels: list[Level] = []
    changes: list[Change] = []
    missing = ""
    for environment in range(len(line.environments)):
        known = [
            (place, float(medians[place]))
            for place, moment in enumerate(line.moments)
            if moment.environment == environment and moment.night.exit_code != INVALID and counts_at_all[place]
        ]
        try:
            found = steps([value for _, value in known], limit_pct)
        except ModuleNotFoundError as error:
            found, missing = [], f"no steps were looked for: {error}"
        bounds = [0, *(step.index for step in found), len(known)]
        changes += [Change(known[s.index][0], s.change_pct, s.nights_before, s.nights_after) for s in found]
        for start, end in itertools.pairwise(bounds):
            own = known[start:end]
            if own:
                levels.append(Level(own[0][0], own[-1][0], statistics.median(value for _, value in own)))
    return Segments(tuple(levels), tuple(sorted(changes, key=lambda change: change.night)), missing)


def steps_of(line: Timeline, thresholds: Thresholds) -> dict[str, Segments]:
    """Of every timed series of a GPU model, by ``step_name``."""
    found = {}
    for case, keys in line.keys().items():
        newest = line.newest(case)
        for key in keys:
            if key.contract not in EXACT:
                limit_pct = Rule.of(line, case, key, newest.num_requests if newest else 0, thresholds).limit_pct
                found[step_name(key, case)] = segments(line, key, case, limit_pct)
    return found


def step_name(key: Series, case: str) -> str:
    return "/".join((*key, case))
