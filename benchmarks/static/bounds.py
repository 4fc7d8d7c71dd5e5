"""An estimate of a kernel's time from what was compiled: bytes, issue slots and occupancy, and which of them binds.

It is no measurement. It knows no caches, no latency of arithmetic and no overlap, and counts every loop of the code as
one over tokens. What it is worth is how well it ranks variants of one op that were timed: ``ci static-estimate``.
"""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

CARDS = Path(__file__).with_name("cards.toml")
NUM_SCHEDULERS = 4  # of an SM; each issues an instruction of one warp a cycle
DEPENDENT_CYCLES = 4  # from an instruction to one that waits for its result: a warp alone issues no faster
MEMORY_LATENCY_US = 0.8  # from a load to its data, out of DRAM under load


@dataclass(frozen=True, slots=True)
class Card:
    """What an estimate takes for an architecture; ``name`` is the card that has it."""

    name: str
    num_sms: int
    sm_ghz: float
    dram_gb_per_s: float


@dataclass(frozen=True, slots=True)
class Launch:
    """What a kernel is launched with: programs, tokens of a request's window, compulsory bytes of the call."""

    num_programs: int
    num_tokens: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """Times that each limit alone would ask for; the longest is the estimate."""

    bytes_us: float
    issue_us: float
    occupancy_us: float

    @property
    def us(self) -> float:
        return max(self.bytes_us, self.issue_us, self.occupancy_us)

    @property
    def binds(self) -> str:
        """What asks for the longest time: "bytes", "issue" or "occupancy"."""
        limits = {"bytes": self.bytes_us, "issue": self.issue_us, "occupancy": self.occupancy_us}
        return max(limits, key=lambda name: limits[name])


@cache
def load_cards(path: Path = CARDS) -> dict[str, Card]:
    """By architecture, "sm_90"."""
    entries = tomllib.loads(path.read_text())
    return {arch: Card(**{name: entry[name] for name in Card.__dataclass_fields__}) for arch, entry in entries.items()}


def estimate(figures: Mapping[str, Any], launch: Launch, card: Card) -> Estimate:
    """Of one launch of a compiled kernel, all of whose figures are known."""
    code = figures["instructions"]
    executed = code["total"] + code["in_loops"] * (launch.num_tokens - 1)
    warps, on_busiest_sm = figures["num_warps"], math.ceil(launch.num_programs / card.num_sms)
    issue_us = on_busiest_sm * warps * executed / (NUM_SCHEDULERS * card.sm_ghz * 1e3)
    # Programs that fit an SM at once run as long as one alone, and the next ones after them.
    waves = math.ceil(on_busiest_sm / figures["ctas_per_sm"])
    alone_us = executed * DEPENDENT_CYCLES / (card.sm_ghz * 1e3) + MEMORY_LATENCY_US
    return Estimate(
        bytes_us=launch.num_bytes / (card.dram_gb_per_s * 1e3),
        issue_us=issue_us,
        occupancy_us=waves * alone_us,
    )
