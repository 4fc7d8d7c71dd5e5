"""One measuring process: measure the chosen cases on what this machine has, and leave one record.

With a journal it goes on where a predecessor with the same seed died: see journal.py.
"""

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from rich.console import Console

import recoverssm

from . import cpu_process, gpu_process, long_runs
from .cases import BenchCase
from .cold_launches import GRAPH_COLD, DeviceContracts
from .harness.compilations import CompilationCounter
from .harness.delay import Delay
from .harness.drift import drift_pct
from .harness.environment import collect_environment, collect_silicon, collect_subject, gpu_uuid
from .harness.gpu_monitor import GpuMonitor, merge_summaries
from .harness.ids import new_id, utc_now
from .harness.record_files import encode, samples_path
from .harness.records import Calibration, Control, Environment, MonitorSummary, PeerFacts, Record, Started, Subject
from .harness.samples import samples_table
from .journal import Journal, part_of_peer
from .own_library import require_own_library
from .peers.beside import PeerProvider
from .peers.discovery import NONE, FoundPeer, find_peers
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
    started: Started = "fresh"
    contracts: DeviceContracts = GRAPH_COLD
    calibration: Calibration | None = None
    providers: str = NONE
    provider_files: Sequence[str] = ()

    @property
    def delay_pct(self) -> float | None:
        """By how much every graph-cold window shall take longer."""
        return self.calibration.delay_pct if self.calibration else None


def measure(request: Request, console: Console, journal: Path | None = None) -> tuple[Record, pa.Table, list[str]]:
    """Measure on the current CUDA device, or say what can be said without one.

    Args:
        journal: file that keeps every finished case at once; what a predecessor left in it is not measured again.
    Returns:
        The record, its samples, and one line for each check or series of ours that failed.
    Raises:
        ContextLostError: a case lost the CUDA context; it is in the journal as failed, and a successor can go on.
        StrangeLibraryError: the library is not the one beside this program.
    """
    require_own_library()
    started_s, created_utc = time.monotonic(), utc_now()
    results, cases = Results(), list(request.cases)
    controls: list[Control] = []
    environment = collect_environment()
    subject = collect_subject(Path(recoverssm.__file__).parent, commit=request.commit)
    book = Journal(journal, results, _identity(request, environment, subject))
    with Progress(console) as progress, CompilationCounter() as compilations, book:
        if book.stale is not None:
            console.print(f"{book.stale}: of other code, cases or devices; measured anew", soft_wrap=True)
        found = find_peers(request.providers, request.provider_files, partial(_loaded, book))
        for one in found:
            if one.peer is None:
                said = f"{one.facts.name}: {one.facts.missing}"
                console.print(said, markup=False, highlight=False, soft_wrap=True)
        peers = [PeerProvider(one.peer) for one in found if one.peer is not None]
        num_restored = len(results.samples)
        if torch.cuda.is_available():
            device = torch.device("cuda", torch.cuda.current_device())
            with GpuMonitor(gpu_uuid(device)) as monitor:
                book.readings, book.monitor = (lambda: monitor.readings), monitor.summary
                followed = long_runs.CASES.get(request.case_set, frozenset())
                delay = Delay.on(device, request.delay_pct) if request.delay_pct is not None else None
                controls = gpu_process.measure_cases(
                    cases,
                    request.seed,
                    device,
                    results,
                    progress,
                    book,
                    request.contracts,
                    monitor,
                    followed,
                    delay,
                    peers,
                )
            readings, seen = list(monitor.readings), monitor.summary()
        else:
            cases += cpu_process.measure_cases(cases, request.seed, results, progress, book, peers)
            readings, seen = [], MonitorSummary(missing={"nvml": "no CUDA device"})
    pasts = book.history.pasts
    # Each process's samples with its own readings: clocks of processes before a restart of the machine do not compare.
    groups = [(past.samples, past.readings) for past in pasts] + [(results.samples[num_restored:], readings)]
    results.finish()
    kept = {series.key for series in results.samples}
    tables = [samples_table([one for one in series if one.key in kept], seen) for series, seen in groups]
    record = Record(
        id=new_id(subject.commit),
        created_utc=created_utc,
        duration_s=round(time.monotonic() - started_s, 3),
        case_set=request.case_set,
        seed=request.seed,
        command=list(request.command),
        environment=environment,
        silicon=collect_silicon(),
        subject=subject,
        monitor=merge_summaries([*(past.monitor for past in pasts), seen]),
        cases=[case.to_record() for case in cases],
        controls=controls,
        drift_pct=drift_pct(controls),
        checks=results.checks,
        measurements=results.measurements,
        started=request.started,
        attempts=book.attempts(controls),
        compilations=compilations.summary(),
        calibration=request.calibration,
        peers=[one.facts for one in found],
    )
    others = record.peer_names
    return record, pa.concat_tables(tables).unify_dictionaries(), results.failures(others)


def _identity(request: Request, environment: Environment, subject: Subject) -> dict[str, str]:
    """What a successor must share with the process that it goes on after."""
    return {
        "case_set": request.case_set,
        "cases": ",".join(case.name for case in request.cases),
        "seed": str(request.seed),
        "contracts": ",".join([*request.contracts.always, *sorted(request.contracts.cold_cases)])
        + (" lean" if request.contracts.lean else ""),
        "calibration": repr(request.calibration),
        "peers": request.providers,
        "provider_files": ",".join(_fingerprint(where) for where in request.provider_files),
        "source": f"{subject.commit} {subject.source_hash}",
        "environment": repr(environment.cut_key(host=True)),
        "gpu": str(gpu_uuid() if torch.cuda.is_available() else None),
    }


def _fingerprint(where: str) -> str:
    """Of ``path:Class``, whatever folder the file lies in."""
    path, _, name = where.rpartition(":")
    return f"{hashlib.sha256(Path(path).read_bytes()).hexdigest()}:{name}"


def _loaded(book: Journal, place: str, load: Callable[[], FoundPeer]) -> FoundPeer:
    """A peer, unless loading it ended a process before."""
    part = part_of_peer("loading", place)
    if reason := book.blame(part):
        return FoundPeer(PeerFacts(name=place, missing=reason))
    with book.loading(part):
        return load()


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
