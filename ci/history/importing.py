"""Brings records and nights from elsewhere into a store, each checked and written anew; what is there stays."""

import re
import resource
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.harness.errors import AlreadyStoredError
from benchmarks.harness.record_files import decode_night, decode_record, samples_path
from benchmarks.harness.records import Night, Record
from benchmarks.harness.samples import is_thinned, read_samples, schema_problem
from benchmarks.harness.store import Store

from .archives import MIB, Limits, UntrustedSourceError, unpack
from .checks import night_problems, record_problems
from .layout import Files, list_files

# Of one object; a record of 160 cases, twice the largest set, has about 2600 measurements and 2400 checks.
MAX_ITEMS = 50_000
MAX_SAMPLES = 5_000_000
MAX_SAMPLES_BYTES = 512 * MIB  # unpacked
MEMORY_BYTES = 6144 * MIB  # what reading may add to this process, so that a table which lies about its size fails
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,199}")  # of cases, ops, providers, metrics: they become file names
SHOWN = 20
Reader = Callable[[Path], tuple[Record | Night, str, pa.Table | None]]
UNREADABLE = (OSError, ValueError, MemoryError, msgspec.MsgspecError, pa.ArrowException)


@dataclass(slots=True)
class Imported:
    """What an import did, or with ``dry_run`` would do; ids."""

    records: list[str] = field(default_factory=list)
    nights: list[str] = field(default_factory=list)
    already_there: int = 0
    passed_over: int = 0  # files of the source that belong to no store
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _New:
    records: dict[Path, Record]
    nights: dict[Path, Night]


def import_from(source: Path, store: Store, *, dry_run: bool = False, limits: Limits | None = None) -> Imported:
    """Check everything in ``source``, then add what the store does not hold yet; all of it, or after a problem nothing.

    Doing it again changes nothing, and several sources may come in any order: a night may come before its records.

    Raises:
        MissingDataError: nothing to import.
        UntrustedSourceError: what is wrong, file by file; nothing was written.
        StoreError, OSError: the store cannot be written; what was added so far is whole, and a further try goes on.
    """
    limits = limits or Limits()
    result = Imported()
    with tempfile.TemporaryDirectory(prefix="recoverssm-import-") as folder, _bounded_memory(MEMORY_BYTES):
        place = Path(folder)
        result.passed_over = unpack(source, place, limits)
        files = list_files(place)
        store.fetch(path.stem for path in (*files.records, *files.nights))
        problems: list[str] = []
        new = _check(files, store, result, problems)
        if problems:
            more = f"\nand {len(problems) - SHOWN} more" if len(problems) > SHOWN else ""
            raise UntrustedSourceError(
                f"{source}: nothing was imported:\n" + "\n".join(problems[:SHOWN]) + more,
                "take the named files out, or get the source again",
            )
        result.records, result.nights = [r.id for r in new.records.values()], [n.id for n in new.nights.values()]
        if not dry_run:
            store.require_space(0)  # else the first record would be kept here for a place that nobody may write
            _add(new, store)
    return result


def _check(files: Files, store: Store, result: Imported, problems: list[str]) -> _New:
    records: dict[Path, Record] = {}
    nights: dict[Path, Night] = {}
    for path in files.records:
        record = _load(path, files, store, result, problems, _read_record)
        if isinstance(record, Record):
            records[path] = record
    for path in files.nights:
        night = _load(path, files, store, result, problems, _read_night)
        if isinstance(night, Night):
            nights[path] = night
    alone = [path for path in files.samples if path.with_suffix(".json") not in set(files.records)]
    problems += [f"{files.name(path)}: samples without a record" for path in alone]
    new = _New(records, nights)
    if not problems:  # else a night would be blamed for records that were refused
        _check_nights(new, files, store, result, problems)
    return new


def _load(
    path: Path, files: Files, store: Store, result: Imported, problems: list[str], read: Reader
) -> Record | Night | None:
    """The object when it is new to the store; None after a problem, or when the store has the same already."""
    try:
        obj, model, table = read(path)
        if obj.id != path.stem or model != path.parent.name:
            raise ValueError(f"holds id {obj.id} of {model}")
        _check_text(msgspec.to_builtins(obj), "$")
        present = sorted(store.folder.glob(f"{path.parent.parent.name}/*/{path.name}"))
        if not present:
            return obj
        old, old_model, old_table = read(present[0])
        same = _is_same(old, obj) and old_model == model and _are_same_samples(old_table, table)
        if not same:
            raise ValueError("the store holds another one of this id; nothing is ever overwritten")
        result.already_there += 1
    except UNREADABLE as error:
        problems.append(f"{files.name(path)}: {str(error) or type(error).__name__}")
    return None


def _are_same_samples(old: pa.Table | None, new: pa.Table | None) -> bool:
    """Whether both are; of a record that either store has pruned, its own samples stay."""
    if old is None or new is None or is_thinned(old.schema) or is_thinned(new.schema):
        return True
    return bool(new.equals(old))


def _is_same(old: Record | Night, new: Record | Night) -> bool:
    """Whether both say the same; what an owner of either store decided later is that store's own."""
    if isinstance(old, Night) and isinstance(new, Night):
        return old.as_judged == new.as_judged
    return old == new


def _read_record(path: Path) -> tuple[Record, str, pa.Table]:
    record = decode_record(path.read_bytes())
    table = read_strange_samples(samples_path(path))
    if problems := record_problems(record, table):
        raise ValueError("; ".join(problems))
    return record, record.environment.gpu_model, table


def _read_night(path: Path) -> tuple[Night, str, None]:
    night = decode_night(path.read_bytes())
    return night, night.gpu_model, None


def read_strange_samples(path: Path) -> pa.Table:
    """A table of samples that somebody else wrote: its frame is looked at before any page is unpacked.

    Raises:
        ValueError, OSError, pa.ArrowException: other columns or types than ours, extension types, or too large.
    """
    with pq.ParquetFile(path, thrift_string_size_limit=16 * MIB, thrift_container_size_limit=1_000_000) as file:
        frame, schema = file.metadata, file.schema_arrow
        strange = [field.name for field in schema if _is_extension(field)]
        if strange:
            raise ValueError(f"columns {strange} are of extension types")
        if problem := schema_problem(schema):
            raise ValueError(problem)
        if frame.num_rows > MAX_SAMPLES:
            raise ValueError(f"{frame.num_rows} samples, {MAX_SAMPLES} at most")
        unpacked = sum(frame.row_group(index).total_byte_size for index in range(frame.num_row_groups))
        if unpacked > MAX_SAMPLES_BYTES:
            raise ValueError(f"{unpacked} bytes unpacked, {MAX_SAMPLES_BYTES} at most")
    return read_samples(path)


def _is_extension(field: pa.Field) -> bool:
    return isinstance(field.type, pa.BaseExtensionType) or b"ARROW:extension:name" in (field.metadata or {})


def _check_text(value: Any, where: str) -> None:
    """Lists of bearable length, names that are plain, no control characters that would reach a terminal or a page."""
    if isinstance(value, str) and not value.isprintable() and not value.replace("\n", "").isprintable():
        raise ValueError(f"{where}: holds control characters")
    if isinstance(value, list | dict) and len(value) > MAX_ITEMS:
        raise ValueError(f"{where}: {len(value)} items, {MAX_ITEMS} at most")
    if isinstance(value, list):
        for index, item in enumerate(value):
            _check_text(item, f"{where}[{index}]")
    if isinstance(value, Mapping):
        for key, item in value.items():
            _check_text(key, where)
            named = key in ("metric", "op", "provider", "case", "gpu_model") or (key == "name" and "cases" in where)
            if named and isinstance(item, str) and not NAME.fullmatch(item):
                raise ValueError(f"{where}.{key}: expected a plain name, got {item[:60]!r}")
            _check_text(item, f"{where}.{key}")


def _check_nights(new: _New, files: Files, store: Store, result: Imported, problems: list[str]) -> None:
    """A night holds what its records do; one whose records are yet to come is noted, and `verify` looks at it then."""
    known = {record.id: record for record in new.records.values()}
    store.fetch(name for night in new.nights.values() for name in night.all_records)
    stored = {path.stem: path for path in store.folder.glob("records/*/*.json")}
    for path, night in new.nights.items():
        own = {name: known[name] for name in night.all_records if name in known}
        try:
            own |= {name: decode_record(stored[name].read_bytes()) for name in night.all_records if name in stored}
        except UNREADABLE as error:
            problems.append(f"{files.name(path)}: a record of it in the store cannot be read: {error}")
            continue
        absent = [name for name in night.all_records if name not in own]
        if absent:
            result.notes.append(
                f"night {night.id}: {len(absent)} of its {len(night.all_records)} records are yet to come"
            )
        elif wrong := night_problems(night, own):
            problems.append(f"{files.name(path)}: {'; '.join(wrong)}")


def _add(new: _New, store: Store) -> None:
    for path, record in new.records.items():
        try:
            store.add_record(record, read_samples(samples_path(path)))
        except AlreadyStoredError:
            _require_same(store, "records", record)
    for night in new.nights.values():
        try:
            store.add_night(night)
        except AlreadyStoredError:
            _require_same(store, "nights", night)
    if not new.nights:
        store.publish()


def _require_same(store: Store, kind: str, obj: Record | Night) -> None:
    """Another import was quicker: fine when it brought the same."""
    decode = decode_record if kind == "records" else decode_night
    path = next(iter(store.folder.glob(f"{kind}/*/{obj.id}.json")), None)
    if path is None or not _is_same(decode(path.read_bytes()), obj):
        raise UntrustedSourceError(f"{kind}: another {obj.id} came into the store meanwhile; this one is left out")


@contextmanager
def _bounded_memory(extra_bytes: int) -> Iterator[None]:
    """Let this process grow by so much and no further."""
    sizes = Path("/proc/self/statm")
    if not sizes.exists():
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(sizes.read_text().split()[0]) * resource.getpagesize()
    wanted = used + extra_bytes
    if soft == resource.RLIM_INFINITY or wanted < soft:
        resource.setrlimit(resource.RLIMIT_AS, (wanted, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
