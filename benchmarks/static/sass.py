"""Counts the instructions of a disassembled kernel by what they cost."""

import re
from collections import Counter
from typing import Any

_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?(?P<opcode>[A-Z][A-Z0-9_.]*)(?P<rest>[^;]*);")
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
_BY_WIDTH = ("global_load", "global_store", "local_load", "local_store")


def count_instructions(listing: str) -> dict[str, Any]:
    """Numbers of instructions in a kernel's code, not of those that run.

    Returns:
        total (without padding), by_class (every class, 0 too), by_width of the classes in ``_BY_WIDTH`` (bytes per
        thread, as strings, widest first), and barrier_ids, how many hardware barriers are named.
    """
    by_class = Counter(dict.fromkeys(CLASSES, 0))
    by_width: dict[str, Counter[int]] = {name: Counter() for name in _BY_WIDTH}
    barriers: set[str] = set()
    total = 0
    for line in listing.splitlines():
        match = _INSTRUCTION.match(line)
        if match is None or match["opcode"] == "NOP":
            continue
        total += 1
        stem, *suffixes = match["opcode"].split(".")
        name = None if _CONSTANT_MOVE.match(match["rest"]) else class_of(stem)
        if name is not None:
            by_class[name] += 1
        if name in by_width:
            by_width[name][_width(suffixes)] += 1
        if name == "barrier" and (barrier := _BARRIER_ID.match(match["rest"])):
            barriers.add(barrier[1])
    widths = {
        name: {str(width): counts[width] for width in sorted(counts, reverse=True)} for name, counts in by_width.items()
    }
    return {"total": total, "by_class": dict(by_class), "by_width": widths, "barrier_ids": len(barriers)}


def class_of(stem: str) -> str | None:
    """Of an opcode without its suffixes; None for integer arithmetic, moves and the like."""
    return next((name for name, pattern in _CLASSES if pattern.fullmatch(stem)), None)


def _width(suffixes: list[str]) -> int:
    """Bytes that a memory instruction moves per thread; the last suffix that is a width counts, 4 without one."""
    return next((_WIDTHS[suffix] for suffix in reversed(suffixes) if suffix in _WIDTHS), 4)
