"""What records were read into, kept from one build to the next: a record never changes, so it is read but once.

A digest belongs to the bytes of its file, by SHA-256, and to the code that makes digests. So one that is stale is never
found, and a file of digests that is damaged, or of other code, counts as empty and is written anew. The frame of a
record's samples is looked at again where the table's size or its last change is another.
"""

import hashlib
import os
import sys
from array import array
from collections.abc import Set
from functools import cache
from pathlib import Path

import msgspec

from benchmarks.harness import migrations, records
from benchmarks.harness.record_files import decode_night, decode_record, samples_path
from benchmarks.harness.records import Head, Night
from benchmarks.harness.store import check_samples
from reports import process
from reports.process import Columns, Line, Problem, Process, Shape

HASH_BYTES = 32

Frame = tuple[str, int, int]  # of a table that was found whole: its name, size, and last change in ns


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
    frames: list[Frame]


class Digests:
    """In memory alone without a path; with one, as the last ``save`` left them there."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._found, self._whole = _load(path) if path else ({}, frozenset())
        self._used: dict[bytes, Process] = {}
        self.nights: dict[str, bytes] = {}  # SHA-256 by id
        self._seen: set[Frame] = set()
        self._shapes = {one.columns.shape.lines: one.columns.shape for one in self._found.values()}

    def process(self, data: bytes) -> Process:
        """Of the bytes of a record's file. Raises as ``decode_record``."""
        source = hashlib.sha256(data).digest()
        if source not in self._used:
            self._used[source] = self._found.get(source) or self._read(data, source)
        return self._used[source]

    def night(self, data: bytes) -> Night:
        """Of the bytes of its file, whose SHA-256 is kept. Raises as ``decode_night``."""
        night = decode_night(data)
        self.nights[night.id] = hashlib.sha256(data).digest()
        return night

    def check(self, record_path: Path) -> None:
        """The frame of a record's samples. Raises as ``check_samples``."""
        samples = samples_path(record_path)
        facts = samples.stat()
        frame = (samples.name, facts.st_size, facts.st_mtime_ns)
        if frame not in self._whole:
            check_samples(record_path, thorough=False)
        self._seen.add(frame)

    def save(self) -> None:
        """Those that were asked for, where they are not what is there already. Raises OSError."""
        is_new = self._used.keys() != self._found.keys() or self._seen != self._whole
        if self._path is not None and is_new:
            replace_file(self._path, _encoded(self._used, self._seen))

    def _read(self, data: bytes, source: bytes) -> Process:
        """Records of one shape share it: its series are most of what there is to keep."""
        record = decode_record(data)
        columns = Columns.of(record.measurements, self._shapes)
        self._shapes[columns.shape.lines] = columns.shape
        return Process.made_of(record, columns, source)


def replace_file(path: Path, data: bytes) -> None:
    """Not forced onto the disk: who reads it knows by its sums what is whole. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(data)
    temporary.replace(path)


def _encoded(found: dict[bytes, Process], frames: Set[Frame]) -> bytes:
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
    body = msgspec.msgpack.encode(_Content(_code(), [list(shape.lines) for shape in shapes], entries, sorted(frames)))
    return hashlib.sha256(body).digest() + body


def _load(path: Path) -> tuple[dict[bytes, Process], Set[Frame]]:
    """Empty where nothing is there that this code wrote whole."""
    try:
        data = memoryview(path.read_bytes())
    except OSError:
        return {}, frozenset()
    if hashlib.sha256(data[HASH_BYTES:]).digest() != data[:HASH_BYTES]:
        return {}, frozenset()
    try:
        content = msgspec.msgpack.decode(data[HASH_BYTES:], type=_Content)
    except msgspec.MsgspecError:  # of other code
        return {}, frozenset()
    if content.code != _code():
        return {}, frozenset()
    shapes = [Shape.of(lines) for lines in content.shapes]
    found = {entry.source: _process(entry, shapes[entry.shape]) for entry in content.entries}
    return found, frozenset(content.frames)


def _process(entry: _Entry, shape: Shape) -> Process:
    values, roofline_pct, control_pct = (array("d", column) for column in entry.columns)
    columns = Columns(shape, values, roofline_pct, control_pct, entry.problems, entry.num_dropped)
    return Process.made_of(entry.head, columns, entry.source)


@cache
def _code() -> bytes:
    """Of everything that a digest depends on beside its record."""
    sources = [Path(str(module.__file__)).read_bytes() for module in (records, migrations, process)]
    return hashlib.sha256(b"".join([*sources, Path(__file__).read_bytes(), sys.byteorder.encode()])).digest()
