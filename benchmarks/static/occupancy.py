"""How many programs of a kernel fit an SM at once, by what they ask for alone."""

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

LIMITS = Path(__file__).with_name("limits.toml")

REGISTER_UNIT = 256  # registers are given to a warp in such units, on every architecture listed
SHARED_UNIT = 128  # bytes
NUM_SCHEDULERS = 4  # each has a quarter of the registers


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one SM; limits.toml says what each means. The driver takes ``reserved_shared_bytes`` for each CTA."""

    registers: int
    warps: int
    ctas: int
    shared_bytes: int
    reserved_shared_bytes: int
    usage_has_reserved: bool
    decode_as: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Occupancy:
    """``limited_by``: everything that allows no further CTA, of "registers", "shared", "warps" and "ctas"."""

    ctas_per_sm: int
    warps_per_sm: int
    occupancy_pct: float
    limited_by: tuple[str, ...]


@cache
def load_limits(path: Path = LIMITS) -> dict[str, Limits]:
    """By architecture, "sm_90"."""
    entries = tomllib.loads(path.read_text())
    return {arch: Limits(**entry | {"decode_as": tuple(entry["decode_as"])}) for arch, entry in entries.items()}


def occupancy(limits: Limits, *, num_warps: int, registers: int, shared_bytes: int) -> Occupancy:
    """What fits one SM.

    Args:
        registers: per thread. shared_bytes: static and dynamic, per CTA.
    """
    per_warp = _round_up(registers * 32, REGISTER_UNIT)
    num_warps_with_registers = limits.registers // NUM_SCHEDULERS // per_warp * NUM_SCHEDULERS
    per_cta = _round_up(shared_bytes + limits.reserved_shared_bytes, SHARED_UNIT)
    allowed = {
        "registers": num_warps_with_registers // num_warps,
        "shared": limits.shared_bytes // per_cta,
        "warps": limits.warps // num_warps,
        "ctas": limits.ctas,
    }
    ctas = min(allowed.values())
    warps = ctas * num_warps
    limited_by = tuple(name for name, number in allowed.items() if number == ctas)
    return Occupancy(ctas, warps, round(100 * warps / limits.warps, 2), limited_by)


def _round_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit
