"""Small records, nights and tables of samples for tests of the store."""

from pathlib import Path

import pyarrow as pa

from benchmarks.harness.gpu_monitor import Reading
from benchmarks.harness.records import (
    Environment,
    Measurement,
    MonitorSummary,
    Night,
    Record,
    Silicon,
    Subject,
)
from benchmarks.harness.samples import SampleSeries, samples_table
from benchmarks.harness.store import Store

H200 = Environment(gpu_model="nvidia-h200", python="3.11.7", torch="2.11.0", harness="1", os_kernel="6.1")
MEASUREMENT = Measurement(
    metric="device_us",
    op="verify",
    provider="recoverssm",
    case="kimi_k3_tp8_b32_t8_a3.84_fp32",
    contract="graph-cold",
    unit="us",
    value=61.5,
    n_samples=3,
)
SERIES = SampleSeries(*MEASUREMENT.key, "us", (61.0, 61.5, 62.0), (10.0, 11.0, 12.0))
READINGS = (Reading(at_s=9.9, sm_clock_mhz=1980.0, throttle_us=0), Reading(at_s=11.6, sm_clock_mhz=1200.0))


def make_record(record_id: str = "20261129T140000Z-abc-000001", environment: Environment = H200) -> Record:
    return Record(
        id=record_id,
        created_utc="2026-11-29T14:00:00Z",
        duration_s=12.0,
        case_set="smoke",
        seed=1,
        command=["python", "-m", "benchmarks.run"],
        environment=environment,
        silicon=Silicon(),
        subject=Subject(source_hash="00", version="0.1.0"),
        monitor=MonitorSummary(),
        cases=[],
        controls=[],
        checks=[],
        measurements=[MEASUREMENT],
    )


def make_night(night_id: str, records: list[str], *, accepted: bool = True, gpu_model: str = "nvidia-h200") -> Night:
    return Night(
        id=night_id,
        created_utc="2026-11-29T14:00:00Z",
        case_set="smoke",
        gpu_model=gpu_model,
        records=records,
        verdicts=[],
        accepted=accepted,
        exit_code=0,
    )


def make_table() -> pa.Table:
    return samples_table([SERIES], READINGS)


def files_of(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


def contents_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def add_three(store: Store) -> list[Path]:
    ids = [f"20261129T14000{i}Z-abc-00000{i}" for i in range(3)]
    return [store.add_record(make_record(record_id), make_table()) for record_id in ids]
