"""The newest accepted value of every series that fits, read by DuckDB from the JSON files where they lie."""

import json
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from benchmarks.harness.record_files import schema_version
from benchmarks.harness.records import SCHEMA_VERSION
from benchmarks.harness.stats.verdict import summarize
from benchmarks.harness.store import RECENT_NIGHTS, Store
from ci.exits import BrokenEnvironmentError, CommandError, Exit
from reports.derive import DERIVED, Derived, Series, overhead

from .layout import open_existing

if TYPE_CHECKING:
    import duckdb

Key = tuple[str, str, str, str, str]  # metric, op, provider, case, contract

_VERDICT = json.dumps(
    [
        dict.fromkeys(("metric", "op", "provider", "case", "contract", "unit"), "VARCHAR")
        | dict.fromkeys(("value", "low", "high", "process_sd_pct"), "DOUBLE")
        | {"n_processes": "INTEGER"}
    ]
)
_MEASUREMENT = json.dumps(
    [dict.fromkeys(("metric", "op", "provider", "case", "contract", "status"), "VARCHAR") | {"value": "DOUBLE"}]
)
# Materialised parts keep DuckDB from parsing a whole file again for every series in it.
# One row per series: the newest of those that accepted nights have.
_NEWEST = """
with night as materialized (
    select j->>'$.id' as id, j->>'$.created_utc' as created, j->>'$.gpu_model' as gpu,
           from_json(j->'$.records', '["VARCHAR"]') as records, from_json(j->'$.verdicts', $verdict) as verdicts
    from (select content::json as j from read_text($files))
    where (j->>'$.accepted') = 'true'
), series as (
    select id, created, gpu, records, unnest(verdicts) as v from night
)
select gpu, v.metric, v.op, v.provider, v.case, v.contract, v.unit, v.value, v.low, v.high, v.process_sd_pct,
       v.n_processes, id, records
from series
where v.value is not null
qualify row_number() over (
    partition by gpu, v.metric, v.op, v.provider, v.case, v.contract order by created desc, id desc
) = 1
order by all
"""
_IN_RECORDS = """
with record as materialized (
    select j->>'$.id' as id, j->>'$.subject.commit' as commit,
           from_json(j->'$.measurements', $measurement) as measurements
    from (select content::json as j from read_text($files))
), series as (
    select id, commit, unnest(measurements) as m from record
)
select m.metric, m.op, m.provider, m.case, m.contract, id, commit, m.value
from series
where m.status = 'ok' and m.value is not null
order by all
"""


class UnreadableStoreError(CommandError):
    """A file of the store is JSON, but not what a night or record holds."""

    code = Exit.INVALID


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

    Of an overhead, ``process_sd_pct`` is the spread of the ratio (1 + overhead) in percent of the ratio.
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


@dataclass(frozen=True, slots=True)
class _Found:
    """What one process measured of a series."""

    record: str
    commit: str | None
    value: float


@dataclass(frozen=True, slots=True)
class _Newest:
    gpu: str
    key: Key
    unit: str
    value: float
    low: float | None
    high: float | None
    process_sd_pct: float | None
    n_processes: int
    night: str
    records: Sequence[str]


def query(stores: Sequence[str], filters: Filters, *, nights: int = RECENT_NIGHTS) -> Answer:
    """Newest accepted values of all stores together; an id that two stores hold counts once.

    Only the newest ``nights`` of each GPU model are looked at, so that a question takes as long after years.

    Derived headline metrics (``reports.derive.DERIVED``) come from the processes of one night that has all they need.

    Raises:
        MissingDataError: a store does not exist.
        BrokenEnvironmentError: DuckDB is not installed.
    """
    answer = Answer()
    opened = [open_existing(spec) for spec in stores]
    paths = _night_paths(opened, filters.gpu_model, nights)
    with connect() as connection:
        usable = _usable(paths, answer)
        newest = [_newest(row) for row in run(connection, _NEWEST, usable, verdict=_VERDICT)]
        plain = [item for item in newest if filters.fit(item.gpu, *item.key[:4])]
        derived = _derivable(newest, filters)
        wanted: dict[str, set[str]] = {}
        for item in [*plain, *(pair[1] for pair in derived)]:
            wanted.setdefault(item.gpu, set()).update(item.records)
        records = _record_paths(opened, wanted)
        absent = sorted(set().union(*wanted.values()) - set(records))
        answer.problems += [f"record {name}: named by a night, in no store" for name in absent]
        measured = _measured(connection, _usable([records[name] for name in sorted(records)], answer))
    answer.rows = [_row(item, measured) for item in plain]
    answer.rows += [row for what, item in derived if (row := _derive(what, item, measured)) is not None]
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


def connect() -> "duckdb.DuckDBPyConnection":
    """A DuckDB in memory that fetches nothing. Raises BrokenEnvironmentError where DuckDB is not installed."""
    try:
        import duckdb
    except ImportError as error:
        raise BrokenEnvironmentError(
            f"DuckDB reads the store for this command and is not installed: {error}", "pip install 'duckdb>=2.0'"
        ) from error
    offline: dict[str, str | bool | int | float | list[str]] = {
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
    }
    return duckdb.connect(":memory:", config=offline)


def run(
    connection: "duckdb.DuckDBPyConnection", sql: str, files: Sequence[str], **values: object
) -> list[tuple[Any, ...]]:
    """Rows of a statement over ``$files``; none without files. Raises UnreadableStoreError."""
    import duckdb

    if not files:
        return []
    try:
        return connection.execute(sql, {"files": list(files), **values}).fetchall()
    except duckdb.Error as error:
        raise UnreadableStoreError(f"DuckDB cannot read a file: {error}", "python -m ci history verify") from error


def _usable(paths: Iterable[Path], answer: Answer) -> list[str]:
    """Files of the newest schema version; DuckDB would refuse all of them for one that is damaged."""
    good = []
    for path in sorted(paths):
        try:
            version = schema_version(path.read_bytes())
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            answer.problems.append(f"{path}: cannot be read: {error}; python -m ci history verify")
            continue
        if version == SCHEMA_VERSION:
            good.append(str(path))
        else:
            answer.problems.append(f"{path}: schema version {version}; python -m ci history migrate")
    return good


def _newest(row: Sequence[Any]) -> _Newest:
    gpu, metric, op, provider, case, contract, unit, value, low, high, spread, count, night, records = row
    return _Newest(gpu, (metric, op, provider, case, contract), unit, value, low, high, spread, count, night, records)


def _measured(connection: "duckdb.DuckDBPyConnection", files: Sequence[str]) -> dict[Key, list[_Found]]:
    found: dict[Key, list[_Found]] = {}
    for metric, op, provider, case, contract, record, commit, value in run(
        connection, _IN_RECORDS, files, measurement=_MEASUREMENT
    ):
        found.setdefault((metric, op, provider, case, contract), []).append(_Found(record, commit, value))
    return found


def _row(item: _Newest, measured: Mapping[Key, Sequence[_Found]]) -> Row:
    metric, op, provider, case, contract = item.key
    nearest = _nearest([found for found in measured.get(item.key, ()) if found.record in item.records], item.value)
    return Row(
        metric=metric,
        op=op,
        provider=provider,
        case=case,
        gpu=item.gpu,
        contract=contract,
        value=item.value,
        unit=item.unit,
        low=item.low,
        high=item.high,
        process_sd_pct=item.process_sd_pct,
        n_processes=item.n_processes,
        commit=nearest.commit if nearest else None,
        record=nearest.record if nearest else None,
    )


def _derivable(newest: Sequence[_Newest], filters: Filters) -> list[tuple[Derived, _Newest]]:
    """Derived metrics whose series have their newest accepted values in one night, with the row of the first series."""
    by_key = {(item.gpu, item.key): item for item in newest}
    found = []
    for what in DERIVED:
        for item in newest:
            if item.key != _key(what.series, item.key[3]):
                continue
            base = by_key.get((item.gpu, _key(what.base, item.key[3]))) if what.base else item
            fits = filters.fit(item.gpu, what.metric, what.series.op, what.series.provider, item.key[3])
            if fits and base is not None and base.night == item.night:
                found.append((what, item))
    return found


def _key(series: Series, case: str) -> Key:
    return (series.metric, series.op, series.provider, case, series.contract)


def _derive(what: Derived, item: _Newest, measured: Mapping[Key, Sequence[_Found]]) -> Row | None:
    case = item.key[3]
    own = {f.record: f for f in measured.get(item.key, ()) if f.record in item.records}
    if what.base is not None:
        base = {f.record: f.value for f in measured.get(_key(what.base, case), ())}
        # The ratio is taken inside each process: both sides saw the same card, clock and minute.
        own = {
            name: _Found(name, found.commit, 1 + overhead(found.value, base[name]))
            for name, found in own.items()
            if base.get(name)
        }
    if not own:
        return None
    summary = summarize([found.value for found in own.values()])
    nearest = _nearest(list(own.values()), summary.value)
    shift = 0.0 if what.base is None else 1.0
    return Row(
        metric=what.metric,
        op=what.series.op,
        provider=what.series.provider,
        case=case,
        gpu=item.gpu,
        contract=what.series.contract,
        value=summary.value - shift,
        unit=what.unit,
        low=None if summary.low is None else summary.low - shift,
        high=None if summary.high is None else summary.high - shift,
        process_sd_pct=summary.sd_pct,
        n_processes=summary.n,
        commit=nearest.commit if nearest else None,
        record=nearest.record if nearest else None,
    )


def _nearest(found: Sequence[_Found], value: float) -> _Found | None:
    return min(found, key=lambda one: (abs(one.value - value), one.record), default=None)
