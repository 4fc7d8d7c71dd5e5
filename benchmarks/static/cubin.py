"""Reads what the compiler made: resources, instructions, size and hash of one kernel's binary."""

import hashlib
import re
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .lines import Lines, most
from .occupancy import Limits, occupancy
from .sass import LOCATED, count_instructions, instructions

TOOL_S = 60.0

_HASHED = (".text.", ".nv.constant", ".nv.global")
"""Code and constants by the beginning of their sections' names; the others are debug information and tables."""

_USAGE = re.compile(r"REG:(?P<registers>\d+) STACK:(?P<stack>\d+) SHARED:(?P<shared>\d+) LOCAL:(?P<local>\d+)")


class UnreadableError(Exception):
    """A tool did not understand the binary, or said nothing that we understand."""


@dataclass(frozen=True, slots=True)
class Tools:
    """Where NVIDIA's programs are; None where they are not."""

    cuobjdump: Path | None
    nvdisasm: Path | None

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(name for name in ("cuobjdump", "nvdisasm") if getattr(self, name) is None)


def sections(cubin: bytes) -> Iterator[tuple[str, bytes]]:
    """Names and contents of the sections of an ELF file, those without content in the file left out."""
    (table,) = struct.unpack_from("<Q", cubin, 40)
    count, names_index = struct.unpack_from("<HH", cubin, 60)
    headers = [struct.unpack_from("<IIQQQQ", cubin, table + 64 * i) for i in range(count)]
    names = headers[names_index][4]
    for name_at, kind, _, _, offset, size in headers:
        start = names + name_at
        if kind != 8:  # SHT_NOBITS, uninitialised memory
            yield cubin[start : cubin.index(b"\0", start)].decode(), cubin[offset : offset + size]


def binary_hash(cubin: bytes) -> str:
    """SHA-256 over code and constants: neither folders nor comments nor line numbers change it."""
    digest = hashlib.sha256()
    for name, content in sorted(sections(cubin)):
        if name.startswith(_HASHED):
            digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Examined:
    """``figures`` are the same for equal binaries. ``lines``: of what in ``sass.LOCATED``, where it came from."""

    figures: dict[str, Any]
    lines: dict[str, list[dict[str, Any]]]


def examine(cubin: bytes, *, num_warps: int, dynamic_shared_bytes: int, limits: Limits, tools: Tools) -> Examined:
    """Every figure of one kernel; those that a missing tool would give are None.

    Raises:
        UnreadableError: a tool that is there did not understand the binary.
    """
    lines: dict[str, list[dict[str, Any]]] = {}
    code = [content for name, content in sections(cubin) if name.startswith(".text.")]
    figures: dict[str, Any] = {
        "num_warps": num_warps,
        "dynamic_shared_bytes": dynamic_shared_bytes,
        "registers": None,
        "stack_bytes": None,
        "static_shared_bytes": None,
        "ctas_per_sm": None,
        "warps_per_sm": None,
        "occupancy_pct": None,
        "limited_by": None,
        "code_bytes": sum(map(len, code)),
        "binary_hash": binary_hash(cubin),
        "instructions": None,
        "decoded_as": None,
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernel")
        if tools.cuobjdump is not None:
            file.write_bytes(cubin)
            figures |= _resources(tools.cuobjdump, file, num_warps, dynamic_shared_bytes, limits)
        if tools.nvdisasm is not None:
            file.write_bytes(b"".join(code))
            figures["decoded_as"], listing = _disassemble(tools.nvdisasm, file, limits.decode_as)
            figures["instructions"] = count_instructions(listing)
            lines = _locate(listing, cubin)
    return Examined(figures, lines)


def _locate(listing: str, cubin: bytes) -> dict[str, list[dict[str, Any]]]:
    table = Lines(dict(sections(cubin)).get(".debug_line", b""))
    found = list(instructions(listing))
    return {name: most(table.place(one.address) for one in found if fits(one)) for name, fits in LOCATED.items()}


def _resources(tool: Path, file: Path, num_warps: int, dynamic_shared_bytes: int, limits: Limits) -> dict[str, Any]:
    ended = _run(tool, "-res-usage", file)
    match = _USAGE.search(ended.stdout)
    if match is None:
        raise UnreadableError(f"cuobjdump: {_last_line(ended)}")
    registers, stack, shared, local = map(int, match.groups())
    static = max(0, shared - limits.reserved_shared_bytes) if limits.usage_has_reserved else shared
    fit = occupancy(limits, num_warps=num_warps, registers=registers, shared_bytes=static + dynamic_shared_bytes)
    return {
        "registers": registers,
        "stack_bytes": stack + local,
        "static_shared_bytes": static,
        "ctas_per_sm": fit.ctas_per_sm,
        "warps_per_sm": fit.warps_per_sm,
        "occupancy_pct": fit.occupancy_pct,
        "limited_by": list(fit.limited_by),
    }


def _disassemble(tool: Path, file: Path, names: Sequence[str]) -> tuple[str, str]:
    """The listing, and which of the names for its instruction set the tool took."""
    said = ""
    for name in names:
        ended = _run(tool, "--binary", name, file)
        if ended.returncode == 0 and "error" not in ended.stderr:
            return name, ended.stdout
        said = said or _last_line(ended)
    raise UnreadableError(f"nvdisasm: {said}")


def _run(tool: Path, *arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([tool, *arguments], capture_output=True, text=True, check=False, timeout=TOOL_S)


def _last_line(ended: "subprocess.CompletedProcess[str]") -> str:
    lines = (ended.stderr or ended.stdout).split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), f"exit code {ended.returncode}")
