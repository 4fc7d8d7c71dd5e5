"""The public A/A set: processes of the same code on several occasions, as they are and slowed down by a known amount.

Three Parquet files in one folder (reports/aa/README.md says what each column means): processes, series, and values with
every sample. Version 1 is what this module writes; a change that old readers would misread needs another folder.
"""

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ci.exits import MissingDataError, UsageError

VERSION = 1
FILES = ("processes.parquet", "series.parquet", "values.parquet")

PROCESSES = pa.schema(
    [
        pa.field("process", pa.string(), nullable=False),
        pa.field("occasion", pa.string(), nullable=False),
        pa.field("card", pa.string(), nullable=False),
        pa.field("gpu_model", pa.string(), nullable=False),
        pa.field("began_utc", pa.string(), nullable=False),
        pa.field("started", pa.string(), nullable=False),
        pa.field("seed", pa.int64(), nullable=False),
        pa.field("commit", pa.string()),
        pa.field("source_hash", pa.string(), nullable=False),
        pa.field("driver", pa.string()),
        pa.field("torch", pa.string(), nullable=False),
        pa.field("triton", pa.string()),
        pa.field("harness", pa.string(), nullable=False),
        pa.field("delay_pct", pa.float64()),
        pa.field("unsound", pa.string(), nullable=False),
    ]
)
SERIES = pa.schema(
    [
        pa.field("series", pa.int32(), nullable=False),
        pa.field("metric", pa.string(), nullable=False),
        pa.field("op", pa.string(), nullable=False),
        pa.field("provider", pa.string(), nullable=False),
        pa.field("case", pa.string(), nullable=False),
        pa.field("contract", pa.string(), nullable=False),
        pa.field("unit", pa.string(), nullable=False),
        pa.field("num_requests", pa.int32(), nullable=False),
    ]
)
VALUES = pa.schema(
    [
        pa.field("process", pa.string(), nullable=False),
        pa.field("series", pa.int32(), nullable=False),
        pa.field("median", pa.float64(), nullable=False),
        pa.field("delay_pct", pa.float64()),
        pa.field("samples", pa.list_(pa.float32()), nullable=False),
        pa.field("sm_mhz", pa.list_(pa.float32()), nullable=False),
    ]
)
Floats = npt.NDArray[np.float64]
Key = tuple[str, str, str, str, str]


@dataclass(frozen=True, slots=True)
class Process:
    """One measuring process. ``delay_pct``: asked for, None for none; ``unsound``: why it does not count."""

    process: str
    occasion: str
    card: str
    gpu_model: str
    began_utc: str
    started: str
    seed: int
    commit: str | None
    source_hash: str
    driver: str | None
    torch: str
    triton: str | None
    harness: str
    delay_pct: float | None = None
    unsound: str = ""


class Series(NamedTuple):
    """Names of one series, and the batch it is of."""

    metric: str
    op: str
    provider: str
    case: str
    contract: str
    unit: str
    num_requests: int

    @property
    def key(self) -> Key:
        return self[:5]


@dataclass(frozen=True, slots=True)
class Value:
    """What one process measured of one series; ``delay_pct``: how much longer its windows were, as measured."""

    median: float
    delay_pct: float | None
    samples: tuple[float, ...]
    sm_mhz: tuple[float, ...]  # of the block of each sample; empty where nobody measured it


@dataclass(frozen=True, slots=True)
class Dataset:
    """Processes in order of occasion and time; series in order of their names."""

    processes: tuple[Process, ...]
    series: tuple[Series, ...]
    values: dict[tuple[str, Key], Value]

    @property
    def occasions(self) -> list[str]:
        return list(dict.fromkeys(one.occasion for one in self.processes))

    def chosen(self, *, occasion: str, delay_pct: float | None) -> list[Process]:
        """The sound processes of one kind on one occasion, in order of time."""
        own = (one for one in self.processes if one.occasion == occasion and not one.unsound)
        return [one for one in own if one.delay_pct == delay_pct]

    def without(self, op: str, before: str) -> "Dataset":
        """Less the values of one op on occasions that began before a time (UTC, ISO): it was timed in another way."""
        begun = {one.process: _first(one.occasion, self.processes) for one in self.processes}
        kept = {at: value for at, value in self.values.items() if at[1][1] != op or begun[at[0]] >= before}
        return replace(self, values=kept)

    @property
    def delays(self) -> list[float]:
        """The delays asked for, in percent."""
        return sorted({one.delay_pct for one in self.processes if one.delay_pct is not None})

    def medians(self, processes: Sequence[Process]) -> Floats:
        """[processes, series]; NaN where a process has no valid value."""
        found = [[self.values.get((one.process, series.key)) for series in self.series] for one in processes]
        rows = [[value.median if value else math.nan for value in row] for row in found]
        return np.array(rows, dtype=float).reshape(len(processes), len(self.series))

    def realised_pct(self, processes: Sequence[Process]) -> Floats:
        """[series]: mean delay that came out; NaN where no process has one."""
        found = [[self.values.get((one.process, series.key)) for one in processes] for series in self.series]
        known = [[v.delay_pct for v in row if v is not None and v.delay_pct is not None] for row in found]
        return np.array([math.fsum(row) / len(row) if row else math.nan for row in known])

    def counts(self) -> list[str]:
        """One line for each occasion: how many sound processes of each kind, and how many that do not count."""
        lines = []
        for occasion in self.occasions:
            kinds = [f"{len(self.chosen(occasion=occasion, delay_pct=None))} processes as they are"]
            kinds += [f"{len(self.chosen(occasion=occasion, delay_pct=pct))} +{pct:g} %" for pct in self.delays]
            unsound = sum(one.occasion == occasion and bool(one.unsound) for one in self.processes)
            kinds += [f"{unsound} that do not count"] if unsound else []
            lines.append(f"{occasion}: {', '.join(kinds)}")
        return lines


def merged(parts: Iterable[Dataset]) -> Dataset:
    """All processes once, in order. Raises UsageError when one process came with different values."""
    processes: dict[str, Process] = {}
    series: set[Series] = set()
    values: dict[tuple[str, Key], Value] = {}
    for part in parts:
        for one in part.processes:
            if processes.setdefault(one.process, one) != one:
                raise UsageError(f"process {one.process}: two sources describe it differently")
        series.update(part.series)
        for (process, key), value in part.values.items():
            known = values.setdefault((process, key), value)
            # Samples are stored in half the digits of a record's.
            if (known.median, known.delay_pct, len(known.samples)) != (
                value.median,
                value.delay_pct,
                len(value.samples),
            ):
                raise UsageError(f"process {process}: two sources have different values of {'/'.join(key)}")
    ordered = sorted(
        processes.values(), key=lambda one: (_first(one.occasion, processes.values()), one.began_utc, one.process)
    )
    found = Dataset(tuple(ordered), tuple(sorted(series)), values)
    _require_one_code(found)
    return found


def write(data: Dataset, folder: Path) -> None:
    """Replace the three files; the same data give the same rows in the same order."""
    folder.mkdir(parents=True, exist_ok=True)
    number = {series.key: index for index, series in enumerate(data.series)}
    rows = [
        {"process": one.process, "series": number[series.key], **asdict(value)}
        for one in data.processes
        for series in data.series
        if (value := data.values.get((one.process, series.key))) is not None
    ]
    tables: list[tuple[pa.Schema, list[dict[str, Any]]]] = [
        (PROCESSES, [asdict(one) for one in data.processes]),
        (SERIES, [{"series": index, **series._asdict()} for index, series in enumerate(data.series)]),
        (VALUES, rows),
    ]
    for name, (schema, content) in zip(FILES, tables, strict=True):
        table = pa.Table.from_pylist(content, schema=schema.with_metadata({"recoverssm.aa": str(VERSION)}))
        temporary = folder / f".{name}.tmp"
        pq.write_table(table, temporary, compression="zstd", write_page_checksum=True)
        temporary.replace(folder / name)


def read(folder: Path) -> Dataset:
    """What ``write`` wrote. Raises MissingDataError without files, UsageError where they are no set of this version."""
    absent = [name for name in FILES if not (folder / name).exists()]
    if absent:
        raise MissingDataError(f"{folder}: no A/A set: {', '.join(absent)} missing", "python -m ci calibrate publish")
    try:
        tables = [
            _checked(pq.read_table(folder / name, page_checksum_verification=True), schema, folder / name)
            for name, schema in zip(FILES, (PROCESSES, SERIES, VALUES), strict=True)
        ]
    except pa.ArrowException as error:
        raise UsageError(f"{folder}: cannot be read: {error}") from error
    processes, series, values = (table.to_pylist() for table in tables)
    named = {row.pop("series"): Series(**row) for row in series}
    found = {
        (row["process"], named[row["series"]].key): Value(
            row["median"], row["delay_pct"], tuple(row["samples"]), tuple(row["sm_mhz"])
        )
        for row in values
    }
    return Dataset(tuple(Process(**row) for row in processes), tuple(named.values()), found)


def fingerprint(folder: Path) -> str:
    """SHA-256 over the three files, so that a figure names the data that it is of."""
    digest = hashlib.sha256()
    for name in FILES:
        digest.update((folder / name).read_bytes())
    return digest.hexdigest()


def _checked(table: pa.Table, schema: pa.Schema, path: Path) -> pa.Table:
    if not table.schema.equals(schema):
        raise UsageError(f"{path}: expected the columns of version {VERSION}: {', '.join(schema.names)}")
    return table


def _first(occasion: str, processes: Iterable[Process]) -> str:
    return min(one.began_utc for one in processes if one.occasion == occasion)


def _require_one_code(data: Dataset) -> None:
    # Across occasions the code may differ: nothing is compared across them.
    for occasion in data.occasions:
        own = [one for one in data.processes if one.occasion == occasion]
        for name in ("source_hash", "card", "gpu_model", "driver", "torch", "triton", "harness"):
            found = sorted({str(getattr(one, name)) for one in own})
            if len(found) > 1:
                raise UsageError(f"occasion {occasion}: expected one {name}, found {', '.join(found)}")
