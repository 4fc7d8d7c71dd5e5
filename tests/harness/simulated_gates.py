"""Whole gates on simulated processes: how often clean ones alarm, and what they find.

    python -m tests.harness.simulated_gates 2000

300 series: 70 % whose processes spread by 0.3 %, 20 % by 0.8 %, 10 % of two modes (0.3 %, and 12 % slower in three
processes of ten). Of the variance between processes 59 % is common to all series of a process, as recorded on an H200.
The noise is assumed, so these figures say what the rules do, not what a card does; `ci calibrate` says that.
"""

import sys
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.harness.stats import calibration
from benchmarks.harness.stats.calibration import exact_upper_pct
from benchmarks.harness.stats.paired import PairLimits

Floats = npt.NDArray[np.float64]

NUM_SERIES = 300
SPREADS = np.repeat([0.003, 0.008, 0.003], [210, 60, 30])
TWO_MODES = np.arange(NUM_SERIES) >= 270
COMMON = 0.59
EFFECTS_PCT = (1.0, 2.0, 3.0, 5.0, 10.0)
LIMITS = calibration.Limits.of([PairLimits()] * NUM_SERIES)


def processes(rng: np.random.Generator, count: int, factor: float = 1.0) -> Floats:
    """Log process medians, [count, series]; spreads times ``factor``."""
    shared, own = rng.normal(size=(count, 1)), rng.normal(size=(count, NUM_SERIES))
    slow = TWO_MODES & (rng.random((count, NUM_SERIES)) < 0.3)
    return factor * SPREADS * (np.sqrt(COMMON) * shared + np.sqrt(1 - COMMON) * own) + slow * np.log(1.12)


def stages(rng: np.random.Generator, factor: float = 1.0) -> tuple[calibration.Stage, calibration.Stage]:
    """Screen and confirmation of one code against itself."""
    sizes = (calibration.SCREEN, calibration.CONFIRM)
    screen, confirm = (calibration.Stage(processes(rng, n, factor), processes(rng, n, factor)) for n in sizes)
    return screen, confirm


@dataclass(frozen=True, slots=True)
class Clean:
    """Of gates of one code against itself; suspects are a mean a gate."""

    num_gates: int
    num_with_alarm: int
    suspects: float
    alarms_of_one_mode: int
    alarms_of_two_modes: int


def clean_gates(num_gates: int, seed: int, factor: float = 1.0) -> Clean:
    rng = np.random.default_rng(seed)
    alarms, found, suspects = 0, np.zeros(NUM_SERIES), 0
    for _ in range(num_gates):
        screen, confirm = stages(rng, factor)
        tested = calibration.tested(screen, confirm, LIMITS)
        called = calibration.regressed(tested, confirm, LIMITS)
        alarms += bool(called.any())
        found += called
        suspects += int(tested.suspect.sum())
    return Clean(num_gates, alarms, suspects / num_gates, int(found[~TWO_MODES].sum()), int(found[TWO_MODES].sum()))


def power(effect_pct: float, num_gates: int, seed: int, factor: float = 1.0) -> Floats:
    """Share of gates that find a slowdown of one series at a time, [series]."""
    rng, logs = np.random.default_rng(seed), np.full(NUM_SERIES, np.log1p(effect_pct / 100))
    found = np.zeros(NUM_SERIES)
    for _ in range(num_gates):
        screen, confirm = stages(rng, factor)
        slower = confirm.slowed(logs)
        clean = calibration.tested(screen, confirm, LIMITS)
        found += calibration.regressed_alone(
            clean, calibration.tested(screen.slowed(logs), slower, LIMITS), slower, LIMITS
        )
    return found / num_gates


def report(num_gates: int, factor: float) -> str:
    clean = clean_gates(num_gates, 1, factor)
    rate, bound = 100 * clean.num_with_alarm / num_gates, exact_upper_pct(clean.num_with_alarm, num_gates)
    lines = [f"spreads x {factor:g}: {clean}; {rate:.2f} % with an alarm, at most {bound:.2f} %"]
    kinds = {"0.3 %": ~TWO_MODES & (SPREADS == 0.003), "0.8 %": SPREADS == 0.008, "two modes": TWO_MODES}
    for effect in EFFECTS_PCT:
        found = power(effect, max(num_gates // 10, 1), 2, factor)
        shares = "".join(f", {name} {found[which].mean():.1%}" for name, which in kinds.items())
        lines.append(f"  {effect:g} %: all {found.mean():.1%}{shares}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    for factor in (1.0, 2.0):
        sys.stdout.write(report(int(sys.argv[1]), factor))
