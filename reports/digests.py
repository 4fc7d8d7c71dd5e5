"""What records were read into, kept from one build to the next: a record never changes, so it is read but once.

A file counts as the one that was read where its name, size and last change are the same; of one that looks otherwise
the bytes decide, by SHA-256. A digest belongs to those bytes and to the code that makes digests. So one that is stale
is never found, and a file of digests that is damaged, or of other code, counts as empty and is written anew.
"""

import hashlib
import os
import sys
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import msgspec

from benchmarks.harness import migrations, record_files, records
from benchmarks.harness.record_files import decode_night, decode_record, samples_path
from benchmarks.harness.records import Head, Night
from benchmarks.harness.store import check_samples
from reports import process
from reports.process import Columns, Line, Problem, Process, Shape

HASH_BYTES = 32
MONTH_CHARS = 6  # of an id: year and month

Frame = tuple[str, int, int]  # how a file looks: its name, size, and last change in ns
Shapes = dict[tuple[Line, ...], Shape]


class _Entry(msgspec.Struct, array_like=True, frozen=True):
    source: bytes  # SHA-256 of the record's file
    head: Head
    shape: int  # its place among all
    columns: tuple[bytes, bytes, bytes]
    problems: dict[int, Problem]
    num_dropped: int


class _Content(msgspec.Struct, array_like=True, frozen=True):
    code: bytes
    shapes: list[list[Line]]
    entries: list[_Entry]
    sources: list[tuple[Frame, bytes]]
    whole: list[Frame]


@dataclass(slots=True)
class _Known:
    """Of the records of one GPU model and month.

    Attributes:
        processes: by SHA-256 of the record's file.
        sources: that SHA-256, by how the file looks.
        whole: samples whose frame was looked at and is whole.
    """

    processes: dict[bytes, Process] = field(default_factory=dict)
    sources: dict[Frame, bytes] = field(default_factory=dict)
    whole: set[Frame] = field(default_factory=set)

    def is_as(self, other: "_Known") -> bool:
        mine, others = ((one.processes.keys(), one.sources, one.whole) for one in (self, other))
        return mine == others


class Digests:
    """In memory alone without a folder; with one, as the last ``save`` left them there.

    There is a file for each GPU model and month, so that a new night leaves those of other months as they are.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._found: dict[str, _Known] = {}
        self._now: dict[str, _Known] = {}
        self._shapes: Shapes = {}
        self.nights: dict[str, bytes] = {}  # SHA-256 by id

    def process(self, path: Path) -> Process:
        """Of a record's file. Raises OSError, and as ``decode_record``."""
        frame = _frame(path)
        found, now = self._known(path)
        source = found.sources.get(frame, b"")
        known = found.processes.get(source)
        if known is None:
            data = path.read_bytes()
            source = hashlib.sha256(data).digest()
            known = now.processes.get(source) or found.processes.get(source) or self._read(data, source)
        now.sources[frame] = source
        return now.processes.setdefault(source, known)

    def night(self, path: Path) -> Night:
        """Of its file, whose SHA-256 is kept. Raises OSError, and as ``decode_night``."""
        data = path.read_bytes()
        night = decode_night(data)
        self.nights[night.id] = hashlib.sha256(data).digest()
        return night

    def check(self, record_path: Path) -> None:
        """The frame of a record's samples. Raises as ``check_samples``."""
        frame = _frame(samples_path(record_path))
        found, now = self._known(record_path)
        if frame not in found.whole:
            check_samples(record_path, thorough=False)
        now.whole.add(frame)

    def save(self) -> None:
        """Those that were asked for, where they are not what is there already. Raises OSError."""
        if self._folder is None:
            return
        for month, now in self._now.items():
            if not now.is_as(self._found[month]):
                replace_file(self._folder / month, _encoded(now))
        for path in self._folder.glob("*"):
            if path.name not in self._now:
                path.unlink()

    def _known(self, record_path: Path) -> tuple[_Known, _Known]:
        """What was found and what was asked for of a record's GPU model and month."""
        month = f"{record_path.parent.name}-{record_path.name[:MONTH_CHARS]}"
        if month not in self._now:
            self._found[month] = _load(self._folder / month, self._shapes) if self._folder else _Known()
            self._now[month] = _Known()
        return self._found[month], self._now[month]

    def _read(self, data: bytes, source: bytes) -> Process:
        """Records of one shape share it: its series are most of what there is to keep."""
        record = decode_record(data)
        columns = Columns.of(record.measurements, self._shapes)
        self._shapes[columns.shape.lines] = columns.shape
        return Process.made_of(record, columns, source)


def _frame(path: Path) -> Frame:
    facts = path.stat()
    return path.name, facts.st_size, facts.st_mtime_ns


def replace_file(path: Path, data: bytes) -> None:
    """Not forced onto the disk: who reads it knows by its sums what is whole. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(data)
    temporary.replace(path)


def _encoded(known: _Known) -> bytes:
    found = known.processes
    shapes = list({id(one.columns.shape): one.columns.shape for one in found.values()}.values())
    places = {id(shape): place for place, shape in enumerate(shapes)}
    entries = [
        _Entry(
            source,
            Head(**{name: getattr(one, name) for name in Head.__struct_fields__}),
            places[id(one.columns.shape)],
            (one.columns.values.tobytes(), one.columns.roofline_pct.tobytes(), one.columns.control_pct.tobytes()),
            one.columns.problems,
            one.columns.num_dropped,
        )
        for source, one in found.items()
    ]
    lines = [list(shape.lines) for shape in shapes]
    body = msgspec.msgpack.encode(_Content(_code(), lines, entries, sorted(known.sources.items()), sorted(known.whole)))
    return hashlib.sha256(body).digest() + body


def _load(path: Path, known: Shapes) -> _Known:
    """Empty where nothing is there that this code wrote whole. Shapes that are not ``known`` come in."""
    try:
        data = memoryview(path.read_bytes())
    except OSError:
        return _Known()
    if hashlib.sha256(data[HASH_BYTES:]).digest() != data[:HASH_BYTES]:
        return _Known()
    try:
        content = msgspec.msgpack.decode(data[HASH_BYTES:], type=_Content)
    except msgspec.MsgspecError:  # of other code
        return _Known()
    if content.code != _code():
        return _Known()
    shapes = list(_shared(content.shapes, known))
    processes = {entry.source: _process(entry, shapes[entry.shape]) for entry in content.entries}
    return _Known(processes, dict(content.sources), set(content.whole))


def _shared(shapes: Iterable[list[Line]], known: Shapes) -> Iterator[Shape]:
    for lines in map(tuple, shapes):
        if lines not in known:
            known[lines] = Shape.of(lines)
        yield known[lines]


def _process(entry: _Entry, shape: Shape) -> Process:
    values, roofline_pct, control_pct = (array("d", column) for column in entry.columns)
    columns = Columns(shape, values, roofline_pct, control_pct, entry.problems, entry.num_dropped)
    return Process.made_of(entry.head, columns, entry.source)


@cache
def _code() -> bytes:
    """Of everything that a digest depends on beside its record."""
    modules = (records, record_files, migrations, process)
    sources = [Path(str(module.__file__)).read_bytes() for module in modules]
    return hashlib.sha256(b"".join([*sources, Path(__file__).read_bytes(), sys.byteorder.encode()])).digest()
