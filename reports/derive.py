"""Derived figures, and the only place where they are derived: pure functions from records to numbers.

The unit is the process: a ratio is taken inside each process (numerator and denominator saw the same card, clock and
minute) and only then is the median over processes taken, with the smallest and largest process beside it.
"""

import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isnan, nan
from typing import NamedTuple, get_args

from benchmarks.harness.records import Check, Contract, Environment, Night, Verdict
from reports.process import ColumnName, Key, Line, Process, Shape


class Series(NamedTuple):
    """A series key without case and GPU model."""

    metric: str
    op: str
    provider: str
    contract: Contract


VERIFY = Series("device_us", "verify", "recoverssm", "graph-cold")
FULL_VERIFY = Series("device_us", "verify", "full_state", "graph-cold")
COMMIT = Series("device_us", "commit", "recoverssm", "graph-cold")
VERIFY_HOST = Series("host_us", "verify", "recoverssm", "host-dispatch")
VERIFY_LAUNCH = Series("host_us", "verify_launch", "recoverssm", "host-dispatch")
COMMIT_HOST = Series("host_us", "commit", "recoverssm", "host-dispatch")
COMMIT_LAUNCH = Series("host_us", "commit_launch", "recoverssm", "host-dispatch")
COMMIT_PLAN = Series("device_us", "commit_plan", "recoverssm", "graph-cold")
COMMIT_STATE = Series("device_us", "commit_state", "recoverssm", "graph-cold")
CONV = Series("device_us", "conv", "recoverssm", "graph-cold")
STEP = Series("device_us", "step", "recoverssm", "graph-cold")
FULL_STEP = Series("device_us", "step", "full_state", "graph-cold")
CACHE = Series("cache_bytes", "state", "recoverssm", "exact")
FULL_CACHE = Series("cache_bytes", "state", "full_state", "exact")
SAVED_BYTES = Series("memory_saved_bytes", "state", "recoverssm", "exact")
SAVED_PCT = Series("memory_saved_pct", "state", "recoverssm", "exact")
CAPACITY_GAIN = Series("capacity_gain_pct", "capacity", "recoverssm", "exact")


# From worst to best. The first three fail a night; the next two say that we do not know.
VERDICT_ORDER = ("regressed", "invalid", "missing", "inconclusive", "blind", "new", "unchanged", "improved")


@dataclass(frozen=True, slots=True)
class Figure:
    """One value per process and what is said of them together; ``reason`` says why there is none."""

    values: tuple[float, ...] = ()
    reason: str = ""

    @property
    def n(self) -> int:
        return len(self.values)

    @property
    def median(self) -> float | None:
        return statistics.median(self.values) if self.values else None

    @property
    def low(self) -> float | None:
        """Smallest process."""
        return min(self.values, default=None)

    @property
    def high(self) -> float | None:
        """Largest process."""
        return max(self.values, default=None)

    @property
    def sd_pct(self) -> float | None:
        """Standard deviation of the processes in percent of their mean. None below two processes or at mean 0."""
        if self.n < 2 or (mean := statistics.fmean(self.values)) == 0:
            return None
        return 100 * statistics.stdev(self.values) / abs(mean)


@dataclass(frozen=True, slots=True)
class Headline:
    """The headline figures of one case in one night."""

    verify_overhead_pct: Figure
    commit_us: Figure
    step_overhead_pct: Figure
    memory_saved_bytes: Figure
    memory_saved_pct: Figure


class Processes:
    """The processes of one night, or of one commit of a backfill, in order of time."""

    def __init__(self, records: Sequence[Process], checks_of: Callable[[str], Sequence[Check]] = lambda _: ()) -> None:
        """``checks_of``: the checks of a record, by its id."""
        self.records = sorted(records, key=lambda record: record.created_utc)
        self._columns = [record.columns for record in self.records]
        self._arrays = {name: [getattr(columns, name) for columns in self._columns] for name in get_args(ColumnName)}
        self._alike = self._columns[0].shape if len(self.shapes) == 1 else None  # as nearly always
        self._checks_of = checks_of

    @property
    def shapes(self) -> list[Shape]:
        """Each once, in order of first appearance."""
        return list({id(columns.shape): columns.shape for columns in self._columns}.values())

    def lines(self) -> dict[Key, Line]:
        """Every series that any process has, as its first process has it."""
        return {line.key: line for shape in reversed(self.shapes) for line in shape.lines}

    def cases(self) -> list[str]:
        """Names of the cases that anything was measured or computed of."""
        return list(dict.fromkeys(line.case for shape in self.shapes for line in shape.lines))

    def series_of(self, case: str) -> list[Series]:
        """Every series that any process has for this case."""
        lines = [line for shape in self.shapes for line in shape.lines if line.case == case]
        return list(dict.fromkeys(Series(line.metric, line.op, line.provider, line.contract) for line in lines))

    def line(self, series: Series, case: str) -> Line | None:
        """A series as its first process has it that says what one call moves; without such a one, its first."""
        key = full_key(series, case)
        places = ((shape, shape.places.get(key)) for shape in self.shapes)
        found = [shape.lines[place] for shape, place in places if place is not None]
        return next((line for line in found if line.read_bytes is not None), found[0] if found else None)

    def values(self, series: Series, case: str, name: ColumnName = "values") -> list[float]:
        """One per process, NaN where it has no valid one."""
        key = full_key(series, case)
        if self._alike is not None:
            place = self._alike.places.get(key)
            columns = self._arrays[name]
            return [nan] * len(columns) if place is None else [column[place] for column in columns]
        places = [columns.shape.places.get(key) for columns in self._columns]
        pairs = zip(places, self._arrays[name], strict=True)
        return [nan if place is None else column[place] for place, column in pairs]

    def problems(self, series: Series, case: str) -> list[str]:
        """Why processes have no value, each reason once; empty where none was asked for one."""
        key = full_key(series, case)
        found = []
        for columns in self._columns:
            place = columns.shape.places.get(key)
            if place in columns.problems:
                found.append(columns.problems[place])
        return list(dict.fromkeys(f"{status}: {reason}" for status, reason in found))

    def figure(self, series: Series, case: str) -> Figure:
        """The value in each process that has a valid one."""
        return self._collect(series, case, "values")

    def roofline_pct(self, series: Series, case: str) -> Figure:
        return self._collect(series, case, "roofline_pct")

    def control_pct(self, series: Series, case: str) -> Figure:
        return self._collect(series, case, "control_pct")

    def bandwidth(self, series: Series, case: str) -> Figure:
        """Compulsory bytes of one call over its time, in bytes per second."""
        key, rates = full_key(series, case), []
        for columns in self._columns:
            place = columns.shape.places.get(key)
            if place is not None and (value := columns.values[place]) > 0:
                line = columns.shape.lines[place]
                if line.unit == "us" and line.moved_bytes:
                    rates.append(1e6 * line.moved_bytes / value)
        return Figure(tuple(rates)) if rates else self._none(series, case)

    def moved_bytes(self, series: Series, case: str) -> int | None:
        """Compulsory bytes of one call, the same in every process; None where nothing is said of them."""
        line = self.line(series, case)
        return line.moved_bytes or None if line else None

    def exact(self, series: Series, case: str) -> Figure:
        """A computed value. Processes of one night must agree to the last digit; else there is no value."""
        figure = self.figure(series, case)
        if len(set(figure.values)) > 1:
            return Figure(reason=f"processes disagree on an exact value: {sorted(set(figure.values))}")
        return figure

    def ratio_pct(self, numerator: Series, denominator: Series, case: str) -> Figure:
        """100 * (numerator / denominator - 1) inside each process that has both."""
        pairs = zip(self.values(numerator, case), self.values(denominator, case), strict=True)
        values = tuple(100 * ratio for top, bottom in pairs if bottom and not isnan(ratio := overhead(top, bottom)))
        if values:
            return Figure(values)
        for series in (numerator, denominator):
            if not (figure := self.figure(series, case)).n:
                return Figure(reason=f"{series.provider} {series.op}: {figure.reason}")
        return Figure(reason=f"no process has both {numerator.provider} and {denominator.provider} {numerator.op}")

    def headline(self, case: str) -> Headline:
        return Headline(
            verify_overhead_pct=self.ratio_pct(VERIFY, FULL_VERIFY, case),
            commit_us=self.figure(COMMIT, case),
            step_overhead_pct=self.ratio_pct(STEP, FULL_STEP, case),
            memory_saved_bytes=self.exact(SAVED_BYTES, case),
            memory_saved_pct=self.exact(SAVED_PCT, case),
        )

    def timed_series(self, case: str) -> list[Series]:
        """Series that were measured or should have been, in contrast to computed ones."""
        return [series for series in self.series_of(case) if series.contract not in ("exact", "static")]

    def skip_reasons(self, case: str) -> list[str]:
        """Why a case has no time of ours at all; empty when any series of it has one, or none was asked for."""
        found: dict[str, None] = {}
        for columns in self._columns:
            for place, line in enumerate(columns.shape.lines):
                if line.case != case or line.contract in ("exact", "static") or line.provider in self.others:
                    continue
                if place not in columns.problems:
                    return []
                status, reason = columns.problems[place]
                found[f"{status}: {reason or 'no reason given'}"] = None
        return list(found)

    @cached_property
    def others(self) -> frozenset[str]:
        """Providers that are other projects' kernels: the league shows them, and nothing else is said of them."""
        return frozenset[str]().union(*(record.peer_names for record in self.records))

    @cached_property
    def all_checks(self) -> list[Check]:
        return [check for record in self.records for check in self._checks_of(record.id)]

    def checks(self, case: str) -> list[Check]:
        """Of this library's own results."""
        return self._checks_by_case.get(case, [])

    @cached_property
    def _checks_by_case(self) -> dict[str, list[Check]]:
        found: dict[str, list[Check]] = {}
        for check in self.all_checks:
            if check.provider not in self.others:
                found.setdefault(check.case, []).append(check)
        return found

    def _collect(self, series: Series, case: str, name: ColumnName) -> Figure:
        values = self.values(series, case, name)
        if isnan(sum(values)):
            values = [value for value in values if not isnan(value)]
        return Figure(tuple(values)) if values else self._none(series, case)

    def _none(self, series: Series, case: str) -> Figure:
        return Figure(reason="; ".join(self.problems(series, case)) or "not measured")


@dataclass(frozen=True, slots=True)
class CheckSummary:
    """What the correctness checks of a case say over all processes."""

    num_checks: int
    num_failed: int
    worst: tuple[Check, ...]  # per op, provider and metric the largest value over processes


def summarize_checks(checks: Sequence[Check]) -> CheckSummary:
    worst: dict[tuple[str, str, str], Check] = {}
    for check in checks:
        key = (check.op, check.provider, check.metric)
        if key not in worst or _badness(check) > _badness(worst[key]):
            worst[key] = check
    num_failed = sum(not check.passed for check in checks)
    return CheckSummary(len(checks), num_failed, tuple(worst[key] for key in sorted(worst)))


def worst_verdict(verdicts: Sequence[Verdict]) -> Verdict | None:
    """The worst of the gated verdicts, or of all when none is gated."""
    judged = [verdict for verdict in verdicts if verdict.gated] or list(verdicts)
    return min(judged, key=lambda verdict: VERDICT_ORDER.index(verdict.verdict), default=None)


def verdict_counts(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """How many gated verdicts of each name, worst first; names that do not occur are left out."""
    counts = Counter(verdict.verdict for verdict in verdicts if verdict.gated)
    return {name: counts[name] for name in VERDICT_ORDER if counts[name]}  # type: ignore[index]  # VERDICT_ORDER holds the literal's names


def environment_changes(before: Environment, after: Environment) -> list[str]:
    """Fields that cut a series of device times, as ``driver 570.1 -> 580.2``; empty when none differs."""
    names = [name for name in after.__struct_fields__ if name not in ("missing", "cpu_model", "os_kernel")]
    pairs = [(name, getattr(before, name), getattr(after, name)) for name in names]
    return [f"{name} {old} → {new}" for name, old, new in pairs if old != new]


NIGHT_SETS = ("full", "nightly")


def shown_night(nights: Sequence[Night]) -> Night | None:
    """The newest night that covers everything; the newest of all when there is none."""
    ordered = sorted(nights, key=lambda night: (night.created_utc, night.id))
    broad = [night for night in ordered if night.case_set in NIGHT_SETS and not night.is_part]
    candidates = broad or ordered
    return candidates[-1] if candidates else None


def overhead(value: float, base: float) -> float:
    """How far a value lies above its base, as a share of the base: -0.25 is a quarter less."""
    return value / base - 1


def full_key(series: Series, case: str) -> Key:
    return (series.metric, series.op, series.provider, case, series.contract)


def _badness(check: Check) -> tuple[bool, float]:
    return (not check.passed, float("inf") if check.value is None else check.value)
