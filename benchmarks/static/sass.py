"""Counts the instructions of a disassembled kernel by what they cost."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

_INSTRUCTION = re.compile(
    r"^\s*/\*(?P<address>[0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?(?P<opcode>[A-Z][A-Z0-9_.]*)(?P<rest>[^;]*);"
)
_CONSTANT_MOVE = re.compile(r"\s*\w+, -RZ, RZ,")  # HFMA2 R1, -RZ, RZ, 0, 1: how the compiler loads some constants
_BARRIER_ID = re.compile(r"\s*(0x[0-9a-f]+|[A-Z]+\d*)")

_CLASSES = (
    ("tensor_core", re.compile(r"(H|I|Q|B|D|O)G?MMA|UTC\w*MMA")),
    ("fma", re.compile(r"(F|D|H)FMA\w*")),
    ("other_float", re.compile(r"(F|D|H)(ADD|MUL|SETP?|MNMX|SEL)\w*")),
    ("mufu", re.compile(r"MUFU")),
    ("conversion", re.compile(r"(F2F|F2I|I2F|F2FP|I2FP|I2I|FRND)\w*")),
    ("shuffle", re.compile(r"SHFL|REDUX|CREDUX")),
    ("barrier", re.compile(r"BAR|BARRIER")),
    ("async_barrier", re.compile(r"SYNCS|UCGABAR\w*|ARRIVES")),
    ("global_load", re.compile(r"LDG|LDGSTS")),
    ("global_store", re.compile(r"STG")),
    ("global_atomic", re.compile(r"ATOMG?|REDG?|RED")),
    ("bulk_copy", re.compile(r"UBLKCP|UBLKRED|UTMA\w+")),
    ("local_load", re.compile(r"LDL")),
    ("local_store", re.compile(r"STL")),
    ("generic_memory", re.compile(r"LD|ST")),
    ("shared_memory", re.compile(r"LDS|STS|LDSM|STSM|ATOMS|LDTM|STTM|UTCCP")),
    ("pdl", re.compile(r"ACQBULK|PREEXIT")),
    ("branch", re.compile(r"BRA|BRX|JMP|CALL|RET|EXIT|BSSY|BSYNC|BREAK")),
)
CLASSES = tuple(name for name, _ in _CLASSES)

_WIDTHS = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16, "256": 32}
WIDE_BYTES = 16
_BY_WIDTH = ("global_load", "global_store", "local_load", "local_store")


class Instruction(NamedTuple):
    """One instruction; ``name`` is its class, None for integer arithmetic, moves and the like.

    ``width``: bytes per thread, of classes in ``_BY_WIDTH``. ``barrier``: which one, of the class of that name.
    """

    address: int
    name: str | None
    width: int | None
    barrier: str | None


LOCATED: dict[str, Callable[[Instruction], bool]] = {
    "spills": lambda one: one.name in ("local_load", "local_store"),
    "barriers": lambda one: one.name == "barrier",
    "wide_loads": lambda one: one.name == "global_load" and one.width == WIDE_BYTES,
    "tensor_core": lambda one: one.name == "tensor_core",
}
"""What is worth a source line when it changes."""


def instructions(listing: str) -> Iterator[Instruction]:
    """All of a kernel's code but padding."""
    for line in listing.splitlines():
        match = _INSTRUCTION.match(line)
        if match is None or match["opcode"] == "NOP":
            continue
        stem, *suffixes = match["opcode"].split(".")
        name = None if _CONSTANT_MOVE.match(match["rest"]) else class_of(stem)
        width = _width(suffixes) if name in _BY_WIDTH else None
        barrier = _BARRIER_ID.match(match["rest"]) if name == "barrier" else None
        yield Instruction(int(match["address"], 16), name, width, barrier[1] if barrier else None)


def count_instructions(listing: str) -> dict[str, Any]:
    """Numbers of instructions in a kernel's code, not of those that run.

    Returns:
        total (without padding), by_class (every class, 0 too), by_width of the classes in ``_BY_WIDTH`` (bytes per
        thread, as strings, widest first), and barrier_ids, how many hardware barriers are named.
    """
    found = list(instructions(listing))
    counts = Counter(one.name for one in found)
    by_class = {name: counts[name] for name in CLASSES}
    by_width = {name: Counter(one.width or 0 for one in found if one.name == name) for name in _BY_WIDTH}
    widths = {
        name: {str(width): numbers[width] for width in sorted(numbers, reverse=True)}
        for name, numbers in by_width.items()
    }
    barriers = {one.barrier for one in found if one.barrier is not None}
    return {"total": len(found), "by_class": by_class, "by_width": widths, "barrier_ids": len(barriers)}


def class_of(stem: str) -> str | None:
    """Of an opcode without its suffixes; None for integer arithmetic, moves and the like."""
    return next((name for name, pattern in _CLASSES if pattern.fullmatch(stem)), None)


def _width(suffixes: list[str]) -> int:
    """Bytes that a memory instruction moves per thread; the last suffix that is a width counts, 4 without one."""
    return next((_WIDTHS[suffix] for suffix in reversed(suffixes) if suffix in _WIDTHS), 4)
