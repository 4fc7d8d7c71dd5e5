"""Which source line each instruction of a binary came from, by the line table (DWARF) that ptxas writes for Triton."""

import struct
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from linecache import getline
from typing import Any, NamedTuple

_PACKAGE = "/recoverssm/"
_VERSIONS = (2, 3)  # of the table; later ones have another header
_COPY, _ADVANCE_PC, _ADVANCE_LINE, _SET_FILE, _CONST_ADD_PC, _FIXED_ADVANCE_PC = 1, 2, 3, 4, 8, 9


class Row(NamedTuple):
    """Instructions from ``address`` on, up to the next row's, came from this line."""

    address: int
    file: str  # with its folder
    line: int


class Lines:
    """Looks up addresses. What came from files outside the library, such as Triton's own, counts for the line before.

    Args:
        debug_line: content of the section of that name; empty where a binary has none.
    """

    def __init__(self, debug_line: bytes) -> None:
        self._rows = sorted(row for row in rows(debug_line) if _PACKAGE in row.file)

    def place(self, address: int) -> tuple[str, str] | None:
        """Such as ("recoverssm/kernels/conv.py:31", "tl.debug_barrier()"); None where it is unknown."""
        number = bisect_right(self._rows, address, key=lambda row: row.address)
        if not number:
            return None
        _, file, line = self._rows[number - 1]
        return f"{inside_package(file)}:{line}", getline(file, line).split("  # ")[0].strip()


def inside_package(file: str) -> str:
    """The name of a file of the library that is the same in every checkout: recoverssm/kernels/conv.py."""
    return _PACKAGE[1:] + file.rpartition(_PACKAGE)[2]


def rows(debug_line: bytes) -> Iterator[Row]:
    """Rows of the first table, that of the kernel; none where its version is another."""
    if len(debug_line) < 16:
        return
    length, version, header_bytes = struct.unpack_from("<IHI", debug_line)
    if version not in _VERSIONS:
        return
    opcodes = _Opcodes(*struct.unpack_from("<BxbBB", debug_line, 10), debug_line[15 : 14 + debug_line[14]])
    reader = _Reader(debug_line, 14 + opcodes.base)
    folders = ["", *reader.strings()]
    files = [""]
    while name := reader.string():
        folder, _, _ = reader.uleb(), reader.uleb(), reader.uleb()
        files.append(f"{folders[folder]}/{name}")
    reader.at = 10 + header_bytes
    end = min(4 + length, len(debug_line))
    for address, file, line in _run(reader, end, opcodes):
        yield Row(address, files[file], line)


class _Opcodes(NamedTuple):
    """What a table says of its opcodes: those from ``base`` on advance address and line at once."""

    step: int
    line_base: int
    line_range: int
    base: int
    num_operands: bytes


def _run(reader: "_Reader", end: int, opcodes: _Opcodes) -> Iterator[tuple[int, int, int]]:
    """Address, number of the file, and line of each row."""
    address, file, line = 0, 1, 1
    while reader.at < end:
        opcode = reader.byte()
        if opcode >= opcodes.base:
            advance, line_advance = divmod(opcode - opcodes.base, opcodes.line_range)
            address, line = address + advance * opcodes.step, line + opcodes.line_base + line_advance
        elif opcode == 0:  # extended: the kernel's address, which is 0 in its section, and the table's end
            num_bytes = reader.uleb()
            reader.at += num_bytes
        elif opcode == _ADVANCE_PC:
            address += reader.uleb() * opcodes.step
        elif opcode == _ADVANCE_LINE:
            line += reader.sleb()
        elif opcode == _SET_FILE:
            file = reader.uleb()
        elif opcode == _CONST_ADD_PC:
            address += (255 - opcodes.base) // opcodes.line_range * opcodes.step
        elif opcode == _FIXED_ADVANCE_PC:
            address += reader.byte() | reader.byte() << 8
        elif opcode != _COPY:
            for _ in range(opcodes.num_operands[opcode - 1]):
                reader.uleb()
        if opcode == _COPY or opcode >= opcodes.base:
            yield address, file, line


def most(places: Iterable[tuple[str, str] | None]) -> list[dict[str, Any]]:
    """How many instructions came from each place, most first."""
    counts = Counter(place for place in places if place is not None)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [{"at": at, "text": text, "count": count} for (at, text), count in ordered]


@dataclass(slots=True)
class _Reader:
    data: bytes
    at: int

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def uleb(self) -> int:
        value = shift = 0
        while (byte := self.byte()) & 0x80:
            value |= (byte & 0x7F) << shift
            shift += 7
        return value | byte << shift

    def sleb(self) -> int:
        begun = self.at
        value, bits = self.uleb(), 7 * (self.at - begun)
        return value - (1 << bits) if value >> (bits - 1) else value

    def string(self) -> str:
        end = self.data.index(b"\0", self.at)
        found, self.at = self.data[self.at : end].decode(errors="replace"), end + 1
        return found

    def strings(self) -> Iterator[str]:
        """Up to the empty one."""
        while found := self.string():
            yield found
