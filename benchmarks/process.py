"""One measuring process: measure the chosen cases on what this machine has, and leave one record."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from rich.console import Console

import recoverssm

from . import cpu_process, gpu_process
from .cases import BenchCase
from .harness.environment import collect_environment, collect_silicon, collect_subject, gpu_uuid
from .harness.gpu_monitor import GpuMonitor, Reading
from .harness.records import Control, MonitorSummary, Record, encode, new_id, samples_path, utc_now
from .harness.samples import samples_table
from .progress import Progress
from .results import Results


@dataclass(frozen=True, slots=True)
class Request:
    """What one process was asked to do; ``command`` is its command line."""

    case_set: str
    cases: Sequence[BenchCase]
    seed: int
    commit: str | None
    command: Sequence[str]


def measure(request: Request, console: Console) -> tuple[Record, pa.Table, list[str]]:
    """Measure on the current CUDA device, or say what can be said without one.

    Returns:
        The record, its samples, and one line for each check or series that failed.
    """
    started_s, created_utc = time.monotonic(), utc_now()
    results, cases = Results(), list(request.cases)
    controls: list[Control] = []
    readings: Sequence[Reading] = ()
    with Progress(console) as progress:
        if torch.cuda.is_available():
            device = torch.device("cuda", torch.cuda.current_device())
            with GpuMonitor(gpu_uuid(device)) as monitor:
                controls = gpu_process.measure_cases(cases, request.seed, device, results, progress)
            readings, seen = monitor.readings, monitor.summary()
        else:
            cases += cpu_process.measure_cases(cases, request.seed, results, progress)
            seen = MonitorSummary(missing={"nvml": "no CUDA device"})
    results.finish()
    subject = collect_subject(Path(recoverssm.__file__).parent, commit=request.commit)
    record = Record(
        id=new_id(subject.commit),
        created_utc=created_utc,
        duration_s=round(time.monotonic() - started_s, 3),
        case_set=request.case_set,
        seed=request.seed,
        command=list(request.command),
        environment=collect_environment(),
        silicon=collect_silicon(),
        subject=subject,
        monitor=seen,
        cases=[case.to_record() for case in cases],
        controls=controls,
        checks=results.checks,
        measurements=results.measurements,
    )
    return record, samples_table(results.samples, readings), results.failures


def write_record(path: Path, record: Record, samples: pa.Table) -> None:
    """Write the record to ``path`` and its samples beside it, each whole or not at all; the JSON comes last.

    Raises:
        OSError: the folder cannot be written or is full; nothing is left under the final names.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    table_path = samples_path(path)
    temporary = {final: final.with_name(f".{final.name}.{os.getpid()}.tmp") for final in (table_path, path)}
    try:
        pq.write_table(samples, temporary[table_path], compression="zstd", write_page_checksum=True)
        temporary[path].write_bytes(encode(record))
        for part in temporary.values():
            with part.open("rb+") as file:
                os.fsync(file.fileno())
        for final, part in temporary.items():
            part.replace(final)
    except BaseException:
        for leftover in (*temporary.values(), table_path):
            leftover.unlink(missing_ok=True)
        raise
