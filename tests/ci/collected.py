"""Made-up collections: records of one code on several occasions, some slowed down."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa

from benchmarks.harness import records
from benchmarks.harness.records import Calibration, Record
from benchmarks.harness.samples import SampleSeries, samples_table
from tests.ci.nights import make_record, timed

BEGUN = datetime(2026, 11, 29, 12, tzinfo=UTC)
SAMPLES = 12


def collection(
    name: str,
    ops: dict[str, tuple[float, float]],
    *,
    plain: int,
    delays: Sequence[float] = (),
    each: int = 0,
    seed: int = 0,
    hours: float = 0.0,
) -> Iterator[tuple[Record, pa.Table]]:
    """Records with their samples. ``ops``: time in us and spread of process medians in percent, by op."""
    rng = np.random.default_rng(seed)
    kinds = [None] * plain + [pct for pct in delays for _ in range(each)]
    for index, delay_pct in enumerate(kinds):
        factor = 1 + (delay_pct or 0.0) / 100
        series = []
        measured = []
        for op, (time_us, sd_pct) in ops.items():
            level = time_us * factor * np.exp(sd_pct / 100 * rng.standard_normal())
            values = np.sort(level * np.exp(0.002 * rng.standard_normal(SAMPLES)))
            item = timed(float(np.median(values)), op=op, delay_pct=delay_pct)
            measured.append(item)
            ended_s = tuple(float(at) for at in range(SAMPLES))
            series.append(SampleSeries(*item.key, "us", tuple(values), ended_s, (1980.0,) * SAMPLES))
        began = BEGUN + timedelta(hours=hours, seconds=10 * index)
        record = make_record(
            measured,
            id=f"{began:%Y%m%dT%H%M%SZ}-01234567-{index:06x}",
            created_utc=f"{began:%Y-%m-%dT%H:%M:%SZ}",
            silicon=records.Silicon(gpu_uuid=f"GPU-{name}"),
            calibration=Calibration(collection=name, delay_pct=delay_pct),
            seed=index,
        )
        yield record, samples_table(series)
