"""The newest accepted value of every series that fits, read by DuckDB from the JSON files where they lie."""

import math
import statistics
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from benchmarks.harness.stats.distributions import t_quantile
from benchmarks.harness.stats.verdict import Summary, summarize
from benchmarks.harness.store import RECENT_NIGHTS, Store
from reports.derive import Series
from reports.derived import DERIVED, Derived

from .layout import open_existing
from .reading import CHECKED, ERRORS, SHARES, Found, Key, Newest, connect, measured_in, newest_in, usable


@dataclass(frozen=True, slots=True)
class Filters:
    """Globs."""

    gpu_model: str = "*"
    metric: str = "*"
    op: str = "*"
    provider: str = "*"
    case: str = "*"

    def fit(self, gpu: str, metric: str, op: str, provider: str, case: str) -> bool:
        globs = (self.gpu_model, self.metric, self.op, self.provider, self.case)
        return all(
            fnmatchcase(value, glob) for value, glob in zip((gpu, metric, op, provider, case), globs, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Row:
    """One value. ``low`` and ``high`` are its 95 % interval over processes; ``record`` holds the process nearest to it.

    Of an overhead, ``process_sd_pct`` is the spread of the ratio (1 + overhead) in percent of the ratio. An error is
    the largest of all processes and has no interval.
    """

    metric: str
    op: str
    provider: str
    case: str
    gpu: str
    contract: str
    value: float
    unit: str
    low: float | None
    high: float | None
    process_sd_pct: float | None
    n_processes: int
    commit: str | None
    record: str | None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(slots=True)
class Answer:
    rows: list[Row] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)  # files that could not be used


def query(stores: Sequence[str], filters: Filters, *, nights: int = RECENT_NIGHTS, passed: bool = False) -> Answer:
    """Newest accepted values of all stores together; an id that two stores hold counts once.

    Only the newest ``nights`` of each GPU model are looked at, so that a question takes as long after years; with
    ``passed`` also those that had too few processes to be accepted, as a league or one that was cut short.

    Derived metrics (``reports.derived.DERIVED``) come from the processes of one night that has all they need. What
    records hold beside a time comes from those of the time: shares of streams (SHARES), errors of its op (ERRORS).

    Raises:
        MissingDataError: a store does not exist.
        BrokenEnvironmentError: DuckDB is not installed.
    """
    answer = Answer()
    opened = [open_existing(spec) for spec in stores]
    paths = _night_paths(opened, filters.gpu_model, nights)
    with connect() as connection:
        newest = newest_in(connection, usable(paths, answer.problems), passed=passed)
        plain = [item for item in newest if filters.fit(item.gpu, *item.key[:4])]
        derived, beside = _derivable(newest, filters), _beside(newest, filters)
        wanted: dict[str, set[str]] = {}
        for item in [*plain, *(pair[1] for pair in (*derived, *beside))]:
            wanted.setdefault(item.gpu, set()).update(item.records)
        records = _record_paths(opened, wanted)
        absent = sorted(set().union(*wanted.values()) - set(records))
        answer.problems += [f"record {name}: named by a night, in no store" for name in absent]
        measured = measured_in(connection, usable([records[name] for name in sorted(records)], answer.problems))
    answer.rows = [_row(item, measured) for item in plain]
    answer.rows += [row for what, item in derived if (row := _derive(what, item, measured)) is not None]
    answer.rows += [row for metric, item in beside if (row := _held(metric, item, measured)) is not None]
    answer.rows.sort(
        key=lambda row: (row.gpu, row.case, row.provider != "recoverssm", row.op, row.metric, row.contract)
    )
    return answer


def _night_paths(stores: Sequence[Store], gpu_model: str, count: int) -> list[Path]:
    """The newest so many of each GPU model of each store; an id counts once, as the first store has it."""
    found: dict[str, Path] = {}
    for store in stores:
        for model in store.gpu_models():
            if fnmatchcase(model, gpu_model):
                for path in store.files("nights", None, model, newest=count):
                    found.setdefault(path.stem, path)
    return list(found.values())


def _record_paths(stores: Sequence[Store], wanted: Mapping[str, Set[str]]) -> dict[str, Path]:
    """Of ids by GPU model; samples need not come."""
    found: dict[str, Path] = {}
    for store in stores:
        for model, ids in wanted.items():
            for path in store.files("records", set(ids), model, samples=False):
                found.setdefault(path.stem, path)
    return found


def _row(item: Newest, measured: Mapping[Key, Sequence[Found]]) -> Row:
    found = [one for one in measured.get(item.key, ()) if one.record in item.records]
    summary = Summary(item.n_processes, item.value, item.low, item.high, item.process_sd_pct)
    return _row_of(item.key[0], item.unit, item, item.key[4], summary, found)


def _derivable(newest: Sequence[Newest], filters: Filters) -> list[tuple[Derived, Newest]]:
    """Derived metrics whose series have their newest accepted values in one night, with the row of the first series."""
    by_key = {(item.gpu, item.key): item for item in newest}
    found = []
    for what in DERIVED:
        for item in newest:
            if item.key != _key(what.series, item.key[3]):
                continue
            base = by_key.get((item.gpu, _key(what.base, what.base_case(item.key[3])))) if what.base else item
            fits = filters.fit(item.gpu, what.metric, what.series.op, what.series.provider, item.key[3])
            if fits and base is not None and base.night == item.night:
                found.append((what, item))
    return found


def _beside(newest: Sequence[Newest], filters: Filters) -> list[tuple[str, Newest]]:
    """Metrics that records hold beside a time, with the row of the time."""
    return [
        (metric, item)
        for item in newest
        if item.key[0] == "device_us" and item.key[4] == "graph-cold"
        for metric in (*SHARES, *ERRORS)
        if filters.fit(item.gpu, metric, *item.key[1:4])
    ]


def _key(series: Series, case: str) -> Key:
    return (series.metric, series.op, series.provider, case, series.contract)


def _derive(what: Derived, item: Newest, measured: Mapping[Key, Sequence[Found]]) -> Row | None:
    case = item.key[3]
    own = {f.record: f for f in measured.get(item.key, ()) if f.record in item.records}
    if what.base is not None:
        base = {f.record: f.value for f in measured.get(_key(what.base, what.base_case(case)), ())}
        # Formed inside each process: both sides saw the same card, clock and minute.
        own = {
            name: Found(name, found.commit, what.form(found.value, base[name]))
            for name, found in own.items()
            if base.get(name)
        }
    if not own:
        return None
    values = [found.value for found in own.values()]
    summary = _of_differences(values) if what.how == "difference" else summarize(values)
    return _row_of(what.metric, what.unit, item, what.series.contract, summary, list(own.values()), what.shift)


def _held(metric: str, item: Newest, measured: Mapping[Key, Sequence[Found]]) -> Row | None:
    """What stands beside a time: a share as the time itself is summed up, an error as the largest."""
    contract = CHECKED if metric in ERRORS else item.key[4]
    found = [one for one in measured.get((metric, *item.key[1:4], contract), ()) if one.record in item.records]
    if not found:
        return None
    values = [one.value for one in found]
    if metric in ERRORS:
        return _row_of(metric, "ratio", item, contract, Summary(n=len(values), value=max(values)), found)
    return _row_of(metric, "%", item, contract, summarize(values), found)


def _of_differences(values: Sequence[float]) -> Summary:
    """Of values of any sign: their median, and the interval of their mean."""
    n, value = len(values), statistics.median(values)
    if n < 2:
        return Summary(n=n, value=value)
    half = t_quantile(0.975, n - 1) * statistics.stdev(values) / math.sqrt(n)
    mean = statistics.fmean(values)
    return Summary(n=n, value=value, low=mean - half, high=mean + half)


def _row_of(
    metric: str,
    unit: str,
    item: Newest,
    contract: str,
    summary: Summary,
    found: Sequence[Found],
    shift: float = 0.0,
) -> Row:
    """A row of op, provider, case and GPU model of ``item``; ``shift`` is taken from the value and its interval."""
    nearest = _nearest(found, summary.value)
    return Row(
        metric=metric,
        op=item.key[1],
        provider=item.key[2],
        case=item.key[3],
        gpu=item.gpu,
        contract=contract,
        value=summary.value - shift,
        unit=unit,
        low=None if summary.low is None else summary.low - shift,
        high=None if summary.high is None else summary.high - shift,
        process_sd_pct=summary.sd_pct,
        n_processes=summary.n,
        commit=nearest.commit if nearest else None,
        record=nearest.record if nearest else None,
    )


def _nearest(found: Sequence[Found], value: float) -> Found | None:
    return min(found, key=lambda one: (abs(one.value - value), one.record), default=None)
