"""Every sample of a record as one table, each row with the monitor's nearest reading."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from .gpu_monitor import Reading
from .measure import Samples
from .records import Measurement

READING_FIELDS = tuple(field.name for field in fields(Reading) if field.name != "at_s")

_LABEL = pa.dictionary(pa.int32(), pa.string())

SCHEMA = pa.schema(
    [
        pa.field("metric", _LABEL, nullable=False),
        pa.field("op", _LABEL, nullable=False),
        pa.field("provider", _LABEL, nullable=False),
        pa.field("case", _LABEL, nullable=False),
        pa.field("contract", _LABEL, nullable=False),
        pa.field("unit", _LABEL, nullable=False),
        pa.field("sample", pa.int32(), nullable=False),  # 0, 1, ... within its series
        pa.field("value", pa.float64(), nullable=False),
        pa.field("ended_s", pa.float64(), nullable=False),  # monotonic clock of the measuring host
        pa.field("sm_clock_mhz", pa.float64()),
        pa.field("memory_clock_mhz", pa.float64()),
        pa.field("power_w", pa.float64()),
        pa.field("temperature_c", pa.float64()),
        pa.field("throttle_us", pa.int64()),  # growth of all counters since the process began
        pa.field("reading_age_s", pa.float64()),  # ended_s minus the time of the reading; negative: read afterwards
        pa.field("block_sm_mhz", pa.float64()),  # SM clock over the block of samples, from the SMs' cycle counters
        pa.field("accepted", pa.bool_(), nullable=False),  # false: the card was held back, the sample does not count
    ]
)

SERIES = ("metric", "op", "provider", "case", "contract")
THINNED = b"recoverssm_thinned_to"  # metadata of a file that lost samples: how many each series kept at most

ADDED_LATER = {"accepted": True}
"""Columns that older files lack and that may not be empty: what they stand for there. Harness version 1 accepted every
sample."""


@dataclass(frozen=True, slots=True)
class SampleSeries:
    """Samples of one series key, in order of time.

    Attributes:
        sm_mhz, accepted: per sample; empty where nobody measured the clock, and where every sample counts.
    """

    metric: str
    op: str
    provider: str
    case: str
    contract: str
    unit: str
    values: tuple[float, ...]
    ended_s: tuple[float, ...]
    sm_mhz: tuple[float | None, ...] = ()
    accepted: tuple[bool, ...] = ()

    @classmethod
    def of(cls, measurement: Measurement, samples: Samples) -> Self:
        """The samples behind a measurement in microseconds, and those that were taken but do not count."""
        sm_mhz = samples.sm_mhz or (None,) * len(samples.values_us)
        taken = [(*row, True) for row in zip(samples.ended_s, samples.values_us, sm_mhz, strict=True)]
        taken += [(one.ended_s, one.value_us, one.sm_mhz, False) for one in samples.dropped]
        if not taken:
            return cls(*measurement.key, measurement.unit, (), ())
        ended_s, values_us, clocks, accepted = zip(*sorted(taken, key=lambda row: row[0]), strict=True)
        if not samples.sm_mhz and not samples.dropped:
            return cls(*measurement.key, measurement.unit, values_us, ended_s)
        return cls(*measurement.key, measurement.unit, values_us, ended_s, clocks, accepted)

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        """As of the measurement."""
        return (self.metric, self.op, self.provider, self.case, self.contract)


def samples_table(series: Sequence[SampleSeries], readings: Sequence[Reading] = ()) -> pa.Table:
    """One row per sample in the order of ``series``; ``readings`` are in order of time."""
    rows = [row for one in series for row in _rows(one, readings)]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def _rows(series: SampleSeries, readings: Sequence[Reading]) -> list[dict[str, Any]]:
    labels = {name: getattr(series, name) for name in ("metric", "op", "provider", "case", "contract", "unit")}
    rows = []
    clocks = series.sm_mhz or (None,) * len(series.values)
    accepted = series.accepted or (True,) * len(series.values)
    for index, (value, ended_s, sm_mhz, counts) in enumerate(
        zip(series.values, series.ended_s, clocks, accepted, strict=True)
    ):
        row = labels | {
            "sample": index,
            "value": value,
            "ended_s": ended_s,
            "block_sm_mhz": sm_mhz,
            "accepted": counts,
        }
        reading = nearest_reading(readings, ended_s)
        if reading is not None:
            row |= {name: getattr(reading, name) for name in READING_FIELDS}
            row["reading_age_s"] = ended_s - reading.at_s
        rows.append(row)
    return rows


def nearest_reading(readings: Sequence[Reading], at_s: float) -> Reading | None:
    """The reading closest in time, the earlier of two equally close; None without readings."""
    after = bisect_left(readings, at_s, key=lambda reading: reading.at_s)
    around = readings[max(after - 1, 0) : after + 1]
    return min(around, key=lambda reading: abs(reading.at_s - at_s), default=None)


def is_known(schema: pa.Schema) -> bool:
    """Whether a table has the columns of this version or of an earlier one."""
    return schema_problem(schema) is None


def schema_problem(schema: pa.Schema) -> str | None:
    """Why a table of this schema holds no samples of ours, or None.

    Columns that may be empty, and those of ``ADDED_LATER``, may be missing: they were added after the file was written.
    """
    unknown = [name for name in schema.names if name not in SCHEMA.names]
    if unknown:
        return f"unexpected columns {unknown}"
    for field in SCHEMA:
        if field.name not in schema.names:
            if not field.nullable and field.name not in ADDED_LATER:
                return f"column {field.name} is missing"
            continue
        if len(schema.get_all_field_indices(field.name)) > 1:
            return f"column {field.name} is there twice"
        if schema.field(field.name).type != field.type:
            return f"column {field.name}: expected {field.type}, got {schema.field(field.name).type}"
    return None


def read_samples(source: Path | IO[bytes]) -> pa.Table:
    """Every page verified, in the columns of ``SCHEMA``. Raises ValueError, OSError or pa.ArrowException."""
    table = pq.read_table(source, page_checksum_verification=True)
    problem = schema_problem(table.schema)
    if problem:
        raise ValueError(problem)
    for field in SCHEMA:
        if field.name not in table.schema.names:
            absent = pa.repeat(pa.scalar(ADDED_LATER.get(field.name), field.type), table.num_rows)
            table = table.append_column(field, absent)
    table = table.select(SCHEMA.names)
    empty = [field.name for field in SCHEMA if not field.nullable and table.column(field.name).null_count]
    if empty:
        raise ValueError(f"columns {empty} hold nothing in some rows")
    kept = {key: value for key, value in (table.schema.metadata or {}).items() if key == THINNED}
    return pa.Table.from_arrays(table.columns, schema=SCHEMA.with_metadata(kept or None))


def thin(table: pa.Table, most: int) -> pa.Table:
    """At most so many samples of each series, evenly in time; the metadata say so, as counts and medians are others."""
    ids = [table.column(name).combine_chunks().indices.to_numpy(zero_copy_only=False) for name in SERIES]
    _, series, counts = np.unique(np.array(ids), axis=1, return_inverse=True, return_counts=True)
    count, at = counts[series.ravel()], table.column("sample").to_numpy()
    kept = (count <= most) | ((at + 1) * most // count != at * most // count)
    return table.filter(pa.array(kept)).replace_schema_metadata({THINNED: str(most)})


def is_thinned(schema: pa.Schema) -> bool:
    """Whether samples were taken out of a table."""
    return THINNED in (schema.metadata or {})


def is_thinned_to(schema: pa.Schema, most: int) -> bool:
    """Whether each series of it has at most so many left."""
    return is_thinned(schema) and int(schema.metadata[THINNED]) <= most
