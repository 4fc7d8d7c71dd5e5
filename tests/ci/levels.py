"""Nights of one series, a day after each other, at given levels."""

import math
import random

from msgspec.structs import replace

from ci.trends.series import Measured
from tests.ci.stores import make_night

STEPS = (0.001, -0.001, 0.0, 0.002, -0.002)  # of the processes of a night


def day_of(number):
    """Nights from Monday 2 November 2026 on, one a day."""
    return (11, 2 + number) if number < 29 else (12, number - 28)


def night(number, level, *, spread=STEPS, **changes):
    """The records are about verify of recoverssm alone, ``level`` us; commit and sources differ from night to night."""
    month, day = day_of(number)
    changes = {"source_hash": f"source {number}", **changes}
    made = make_night(day, month=month, levels=[level * (1 + step) for step in spread], **changes)
    records = [replace(r, measurements=[m for m in r.measurements if _is_ours(m)]) for r in made.records]
    return Measured(made.night, records)


def _is_ours(m):
    return (m.op, m.provider) == ("verify", "recoverssm")


def nights(levels, **changes):
    return [night(number, level, **changes) for number, level in enumerate(levels)]


def noise(count, sd=0.002, seed=4):
    rng = random.Random(seed)
    return [100 * math.exp(rng.gauss(0, sd)) for _ in range(count)]


def with_step(before, after, factor):
    levels = noise(before + after)
    return levels[:before] + [level * factor for level in levels[before:]]
