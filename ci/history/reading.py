"""What DuckDB reads of a store for `ci history query`, from the JSON files where they lie."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from benchmarks.harness.record_files import schema_version
from benchmarks.harness.records import SCHEMA_VERSION
from ci.exits import BrokenEnvironmentError, CommandError, Exit

if TYPE_CHECKING:
    import duckdb

Key = tuple[str, str, str, str, str]  # metric, op, provider, case, contract

SHARES = ("control_pct", "roofline_pct")
"""What a record holds beside a time: what its byte-matched stream, and the best stream, would take of it."""

ERRORS = ("out_error", "u_error", "state_error")
CHECKED = "exact"
"""The largest errors against float64 of an op that was checked before it was timed, and the contract they go by."""

_VERDICT = json.dumps(
    [
        dict.fromkeys(("metric", "op", "provider", "case", "contract", "unit"), "VARCHAR")
        | dict.fromkeys(("value", "low", "high", "process_sd_pct"), "DOUBLE")
        | {"n_processes": "INTEGER"}
    ]
)
_MEASUREMENT = json.dumps(
    [
        dict.fromkeys(("metric", "op", "provider", "case", "contract", "status"), "VARCHAR")
        | dict.fromkeys(("value", *SHARES), "DOUBLE")
    ]
)
_CHECK = json.dumps([dict.fromkeys(("metric", "op", "provider", "case"), "VARCHAR") | {"value": "DOUBLE"}])
# Materialised parts keep DuckDB from parsing a whole file again for every series in it.
# One row per series: the newest of those that accepted nights have, or with $passed those that exited 0.
_NEWEST = """
with night as materialized (
    select j->>'$.id' as id, j->>'$.created_utc' as created, j->>'$.gpu_model' as gpu,
           from_json(j->'$.records', '["VARCHAR"]') as records, from_json(j->'$.verdicts', $verdict) as verdicts
    from (select content::json as j from read_text($files))
    where (j->>'$.accepted') = 'true' or ($passed and (j->>'$.exit_code') = '0')
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
select m.metric, m.op, m.provider, m.case, m.contract, id, commit, m.value, m.control_pct, m.roofline_pct
from series
where m.status = 'ok' and m.value is not null
order by all
"""
_CHECKED = """
with record as materialized (
    select j->>'$.id' as id, j->>'$.subject.commit' as commit, from_json(j->'$.checks', $check) as checks
    from (select content::json as j from read_text($files))
), found as (
    select id, commit, unnest(checks) as c from record
)
select c.metric, c.op, c.provider, c.case, id, commit, c.value
from found
where c.value is not null
order by all
"""


class UnreadableStoreError(CommandError):
    """A file of the store is JSON, but not what a night or record holds."""

    code = Exit.INVALID


@dataclass(frozen=True, slots=True)
class Found:
    """What one process measured of a series."""

    record: str
    commit: str | None
    value: float


@dataclass(frozen=True, slots=True)
class Newest:
    """A series as the night with its newest accepted value has it; ``records`` are the night's."""

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


def usable(paths: Iterable[Path], problems: list[str]) -> list[str]:
    """Files of the newest schema version; DuckDB would refuse all of them for one that is damaged."""
    good = []
    for path in sorted(paths):
        try:
            version = schema_version(path.read_bytes())
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            problems.append(f"{path}: cannot be read: {error}; python -m ci history verify")
            continue
        if version == SCHEMA_VERSION:
            good.append(str(path))
        else:
            problems.append(f"{path}: schema version {version}; python -m ci history migrate")
    return good


def newest_in(connection: "duckdb.DuckDBPyConnection", files: Sequence[str], *, passed: bool = False) -> list[Newest]:
    """Of night files: every series once, as the newest night with a value has it that was accepted, or only passed."""
    found = []
    for gpu, *key, unit, value, low, high, spread, count, night, records in run(
        connection, _NEWEST, files, verdict=_VERDICT, passed=passed
    ):
        metric, op, provider, case, contract = key
        series = (metric, op, provider, case, contract)
        found.append(Newest(gpu, series, unit, value, low, high, spread, count, night, records))
    return found


def measured_in(connection: "duckdb.DuckDBPyConnection", files: Sequence[str]) -> dict[Key, list[Found]]:
    """Of record files, by series; what stands beside a time has its own metric (SHARES, ERRORS)."""
    found: dict[Key, list[Found]] = {}

    def add(key: Key, record: str, commit: str | None, value: float | None) -> None:
        if value is not None:
            found.setdefault(key, []).append(Found(record, commit, value))

    for metric, op, provider, case, contract, record, commit, value, *shares in run(
        connection, _IN_RECORDS, files, measurement=_MEASUREMENT
    ):
        add((metric, op, provider, case, contract), record, commit, value)
        if metric == "device_us":
            for name, share in zip(SHARES, shares, strict=True):
                add((name, op, provider, case, contract), record, commit, share)
    for metric, op, provider, case, record, commit, value in run(connection, _CHECKED, files, check=_CHECK):
        if metric in ERRORS:
            add((metric, op, provider, case, CHECKED), record, commit, value)
    return found
