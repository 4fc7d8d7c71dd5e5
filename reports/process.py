"""One measuring process as pages see it: its record with the measurements in columns, and its checks left on the disk.

A history has millions of measurements. As columns they take a tenth of the memory, are told apart by one look into a
table that records share, and go into a cache and out of it as they are.
"""

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isnan, nan
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace

from benchmarks.harness.records import Contract, Head, Measurement, Record, Status

Key = tuple[str, str, str, str, str]  # metric, op, provider, case, contract
ColumnName = Literal["values", "roofline_pct", "control_pct"]


class Line(NamedTuple):
    """What all values of a series have in common, and the compulsory bytes of one call."""

    metric: str
    op: str
    provider: str
    case: str
    contract: Contract
    unit: str
    read_bytes: int | None = None
    write_bytes: int | None = None

    @property
    def key(self) -> Key:
        return self[:5]

    @property
    def moved_bytes(self) -> int:
        return (self.read_bytes or 0) + (self.write_bytes or 0)


@dataclass(frozen=True, slots=True)
class Shape:
    """Which series a process measured, in order of their keys: the same for all processes of one set of cases."""

    lines: tuple[Line, ...]
    places: dict[Key, int]

    @classmethod
    def of(cls, lines: Sequence[Line]) -> "Shape":
        return cls(tuple(lines), {line.key: place for place, line in enumerate(lines)})


class Problem(NamedTuple):
    """Why there is no value."""

    status: Status
    reason: str


@dataclass(frozen=True, slots=True)
class Columns:
    """The measurements of one process, line by line of its shape; NaN stands where there is no valid value."""

    shape: Shape
    values: "array[float]"
    roofline_pct: "array[float]"
    control_pct: "array[float]"
    problems: dict[int, Problem]  # of the lines that are not ok
    num_dropped: int  # samples that do not count

    @classmethod
    def of(cls, items: Sequence[Measurement], known: dict[tuple[Line, ...], Shape] | None = None) -> "Columns":
        """Of one record; where it has a key twice, the last counts. A shape that is ``known`` is not made anew."""
        own = {item.key: item for item in items}
        keys = sorted(own)
        measured = [own[key] for key in keys]
        lines = tuple(
            Line(*key, item.unit, item.read_bytes, item.write_bytes)  # type: ignore[arg-type]  # contracts are texts
            for key, item in zip(keys, measured, strict=True)
        )
        shape = (known or {}).get(lines) or Shape.of(lines)
        problems = {at: Problem(item.status, item.reason) for at, item in enumerate(measured) if item.status != "ok"}
        values = array("d", (nan if item.value is None else item.value for item in measured))
        roofline_pct = array("d", (nan if item.roofline_pct is None else item.roofline_pct for item in measured))
        control_pct = array("d", (nan if item.control_pct is None else item.control_pct for item in measured))
        for at in problems:
            values[at] = roofline_pct[at] = control_pct[at] = nan
        return cls(shape, values, roofline_pct, control_pct, problems, sum(item.n_dropped for item in items))

    def renamed(self, names: dict[str, str]) -> "Columns":
        """As ``Process.renamed``."""
        lines = [
            (line._replace(case=names[line.case]), at) for at, line in enumerate(self.shape.lines) if line.case in names
        ]
        lines.sort(key=lambda item: item[0].key)
        order = [at for _, at in lines]
        values, roofline_pct, control_pct = (
            array("d", (column[at] for at in order)) for column in (self.values, self.roofline_pct, self.control_pct)
        )
        problems = {place: self.problems[at] for place, at in enumerate(order) if at in self.problems}
        shape = Shape.of([line for line, _ in lines])
        return Columns(shape, values, roofline_pct, control_pct, problems, self.num_dropped)

    def not_ok(self) -> Iterator[tuple[Line, Problem]]:
        """Lines that should have a value."""
        for place, problem in self.problems.items():
            yield self.shape.lines[place], problem

    def ok(self) -> Iterator[tuple[Line, float]]:
        """Lines with a valid value."""
        for line, value in zip(self.shape.lines, self.values, strict=True):
            if not isnan(value):
                yield line, value


class Process(Head, frozen=True, kw_only=True):
    """A record without its checks, which ``sources.History`` reads from its file when they are asked for."""

    columns: Columns
    source: bytes = b""  # SHA-256 of its file

    @classmethod
    def of(cls, record: Record) -> "Process":
        return cls.made_of(record, Columns.of(record.measurements))

    @classmethod
    def made_of(cls, head: Head, columns: Columns, source: bytes = b"") -> "Process":
        facts: dict[str, Any] = {name: getattr(head, name) for name in Head.__struct_fields__}
        return cls(**facts, columns=columns, source=source)

    def renamed(self, names: dict[str, str]) -> "Process":
        """With other names of its cases; what ``names`` does not hold is left out."""
        cases = [replace(case, name=names[case.name]) for case in self.cases if case.name in names]
        return replace(self, cases=cases, columns=self.columns.renamed(names))
