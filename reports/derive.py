"""Derived figures, and the only place where they are derived: pure functions from records to numbers.

The unit is the process: a ratio is taken inside each process (numerator and denominator saw the same card, clock and
minute) and only then is the median over processes taken, with the smallest and largest process beside it.
"""

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.harness.records import Check, Contract, Environment, Measurement, Night, Record, Verdict

Key = tuple[str, str, str, str, str]  # metric, op, provider, case, contract


class Series(NamedTuple):
    """A series key without case and GPU model."""

    metric: str
    op: str
    provider: str
    contract: Contract


VERIFY = Series("device_us", "verify", "recoverssm", "graph-cold")
FULL_VERIFY = Series("device_us", "verify", "full_state", "graph-cold")
COMMIT = Series("device_us", "commit", "recoverssm", "graph-cold")
COMMIT_HOST = Series("host_us", "commit", "recoverssm", "host-dispatch")
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


class Derived(NamedTuple):
    """A headline metric that no record holds: ``series`` itself, or with ``base`` how far it lies above that."""

    metric: str
    unit: str
    series: Series
    base: Series | None = None


DERIVED = (
    Derived("verify_overhead", "ratio", VERIFY, FULL_VERIFY),
    Derived("step_overhead", "ratio", STEP, FULL_STEP),
    Derived("commit_latency_us", "us", COMMIT),
    Derived("commit_host_us", "us", COMMIT_HOST),
)

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
    """The records of one night, one per measuring process, indexed by series and case."""

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = sorted(records, key=lambda record: record.created_utc)
        keys: dict[Key, Key] = {}  # equal ones of several processes, once
        self._by_key = [
            {keys.setdefault(item.key, item.key): item for item in record.measurements} for record in self.records
        ]

    def series_of(self, case: str) -> list[Series]:
        """Every series that any process has for this case, in the order of first appearance."""
        items = [item for by_key in self._by_key for item in by_key.values() if item.case == case]
        return list(dict.fromkeys(Series(item.metric, item.op, item.provider, item.contract) for item in items))

    def measurements(self, series: Series, case: str) -> list[Measurement | None]:
        """One entry per process, None where the process does not have the series."""
        key = (series.metric, series.op, series.provider, case, series.contract)
        return [by_key.get(key) for by_key in self._by_key]

    def figure(self, series: Series, case: str) -> Figure:
        """The value in each process that has a valid one."""
        return self._collect(series, case, lambda item: item.value)

    def roofline_pct(self, series: Series, case: str) -> Figure:
        return self._collect(series, case, lambda item: item.roofline_pct)

    def control_pct(self, series: Series, case: str) -> Figure:
        return self._collect(series, case, lambda item: item.control_pct)

    def bandwidth(self, series: Series, case: str) -> Figure:
        """Compulsory bytes of one call over its time, in bytes per second."""
        return self._collect(series, case, _bytes_per_s)

    def moved_bytes(self, series: Series, case: str) -> int | None:
        """Compulsory bytes of one call, the same in every process; None where nothing is said of them."""
        items = [item for item in self.measurements(series, case) if item is not None]
        return next((moved for item in items if (moved := _moved(item))), None)

    def exact(self, series: Series, case: str) -> Figure:
        """A computed value. Processes of one night must agree to the last digit; else there is no value."""
        figure = self.figure(series, case)
        if len(set(figure.values)) > 1:
            return Figure(reason=f"processes disagree on an exact value: {sorted(set(figure.values))}")
        return figure

    def ratio_pct(self, numerator: Series, denominator: Series, case: str) -> Figure:
        """100 * (numerator / denominator - 1) inside each process that has both."""
        values = []
        for top, bottom in zip(self.measurements(numerator, case), self.measurements(denominator, case), strict=True):
            if (above := _valid(top)) is not None and (below := _valid(bottom)):
                values.append(100 * overhead(above, below))
        if values:
            return Figure(tuple(values))
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
        """Why a case has no time at all; empty when any series of it has one, or none was asked for."""
        items = [item for series in self.timed_series(case) for item in self.measurements(series, case)]
        if any(item is not None and item.status == "ok" for item in items):
            return []
        return _distinct(f"{item.status}: {item.reason or 'no reason given'}" for item in items if item is not None)

    def checks(self, case: str) -> list[Check]:
        return [check for record in self.records for check in record.checks if check.case == case]

    def _collect(self, series: Series, case: str, read: Callable[[Measurement], float | None]) -> Figure:
        items = [item for item in self.measurements(series, case) if item is not None]
        values = tuple(value for item in items if item.status == "ok" and (value := read(item)) is not None)
        if values:
            return Figure(values)
        reasons = _distinct(f"{item.status}: {item.reason}" for item in items if item.status != "ok")
        return Figure(reason="; ".join(reasons) or "not measured")


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
    """The newest night of a set that covers everything; the newest of any set when there is none."""
    ordered = sorted(nights, key=lambda night: (night.created_utc, night.id))
    broad = [night for night in ordered if night.case_set in NIGHT_SETS]
    candidates = broad or ordered
    return candidates[-1] if candidates else None


def overhead(value: float, base: float) -> float:
    """How far a value lies above its base, as a share of the base: -0.25 is a quarter less."""
    return value / base - 1


def _moved(item: Measurement) -> int:
    return (item.read_bytes or 0) + (item.write_bytes or 0)


def _bytes_per_s(item: Measurement) -> float | None:
    moved = _moved(item)
    return 1e6 * moved / item.value if moved and item.value and item.unit == "us" else None


def _valid(item: Measurement | None) -> float | None:
    return item.value if item is not None and item.status == "ok" else None


def _badness(check: Check) -> tuple[bool, float]:
    return (not check.passed, float("inf") if check.value is None else check.value)


def _distinct(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))
