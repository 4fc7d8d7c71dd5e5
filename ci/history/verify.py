"""Checks every file of a store and every reference between them. Reads only; nothing is moved or repaired."""

from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pyarrow as pa

from benchmarks.harness.migrations import NewerSchemaError
from benchmarks.harness.record_files import decode_night, decode_record, samples_path, schema_version
from benchmarks.harness.records import SCHEMA_VERSION, Night, Record
from benchmarks.harness.samples import read_samples

from .checks import night_problems, record_problems
from .layout import Files, list_files

UNREADABLE = (OSError, ValueError, msgspec.MsgspecError, pa.ArrowException)


@dataclass(slots=True)
class Findings:
    """What a store holds and what is wrong with it, each problem as ``file: what``."""

    records: int = 0
    nights: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def verify(folder: Path) -> Findings:
    """Look at everything below ``folder``."""
    files = list_files(folder)
    found = Findings(len(files.records), len(files.nights))
    _check_names(files, found)
    records = _check_records(files, found)
    _check_nights(files, records, found)
    return found


def _check_names(files: Files, found: Findings) -> None:
    found.problems += [f"{files.name(path)}: a link or special file; a store holds plain files" for path in files.links]
    found.problems += [f"{files.name(path)}: not a file of a store" for path in files.strangers]
    alone = [path for path in files.samples if path.with_suffix(".json") not in set(files.records)]
    found.problems += [
        f"{files.name(path)}: left by a writer that was killed; opening the store for writing sets it aside"
        for path in (*files.interrupted, *alone)
    ]
    if files.quarantined:
        found.notes.append(f"{len(files.quarantined)} files set aside earlier lie below quarantine/, with the reasons")


def _check_records(files: Files, found: Findings) -> dict[str, Record]:
    readable: dict[str, Record] = {}
    older = 0
    for path in files.records:
        try:
            data = path.read_bytes()
            record = decode_record(data)
            problems = [*_place_problems(path, record.id, record.environment.gpu_model)]
            if record.id in readable:
                problems.append("its id is there twice")
            problems += record_problems(record, read_samples(samples_path(path)))
        except UNREADABLE as error:
            found.problems.append(f"{files.name(path)}: {_reason(error)}")
            continue
        older += schema_version(data) != SCHEMA_VERSION
        found.problems += [f"{files.name(path)}: {problem}" for problem in problems]
        readable[record.id] = record
    if older:
        found.notes.append(f"{older} records of an older schema version; rewrite them: python -m ci history migrate")
    return readable


def _check_nights(files: Files, records: dict[str, Record], found: Findings) -> None:
    readable: dict[Path, Night] = {}
    for path in files.nights:
        try:
            readable[path] = decode_night(path.read_bytes())
        except UNREADABLE as error:
            found.problems.append(f"{files.name(path)}: {_reason(error)}")
    ids = {night.id for night in readable.values()}
    for path, night in readable.items():
        problems = [*_place_problems(path, night.id, night.gpu_model), *night_problems(night, records)]
        found.problems += [f"{files.name(path)}: {problem}" for problem in problems]
        if night.base_night is not None and night.base_night not in ids:
            found.notes.append(
                f"{files.name(path)}: its base night {night.base_night} is not here: perhaps in another store"
            )


def _place_problems(path: Path, own_id: str, gpu_model: str) -> list[str]:
    problems = [] if own_id == path.stem else [f"holds id {own_id}"]
    return problems + ([] if gpu_model == path.parent.name else [f"is of GPU model {gpu_model}"])


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "its samples (.parquet) are missing"
    if isinstance(error, NewerSchemaError):
        return str(error)
    return f"cannot be read: {type(error).__name__}: {error}"
