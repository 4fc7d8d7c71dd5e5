"""``ci calibrate benchmark``: our gate and other tools' rules on the same pairs, clean ones and slowed ones."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.harness.stats import calibration
from benchmarks.harness.stats.calibration import CONFIRM, SCREEN, Flags, Floats, Indices, Limits, clean_gate

from .dataset import Dataset, Process, Value, read
from .rules import Rule, Side, known_rules
from .score import all_limits, of_model, usable

OURS, FLOORLESS = "this gate", "this gate without absolute floors"


@dataclass(slots=True)
class Row:
    """What one rule did. Counts over pairs, and over pairs x series."""

    name: str
    processes: str
    clean_pairs: int = 0
    pairs_with_alarm: int = 0
    clean_cells: int = 0
    alarms: int = 0
    found: dict[float, tuple[int, int]] = field(default_factory=dict)  # by delay: series called slower, and all

    @property
    def any_alarm_pct(self) -> float:
        """Of clean pairs."""
        return 100 * self.pairs_with_alarm / self.clean_pairs if self.clean_pairs else math.nan

    @property
    def alarm_pct(self) -> float:
        """Of series of clean pairs."""
        return 100 * self.alarms / self.clean_cells if self.clean_cells else math.nan

    def found_pct(self, delay_pct: float) -> float:
        """Of slowed series."""
        found, tried = self.found.get(delay_pct, (0, 0))
        return 100 * found / tried if tried else math.nan

    def add_clean(self, called: Flags) -> None:
        """One clean pair, [series of the occasion]."""
        self.clean_pairs += 1
        self.pairs_with_alarm += bool(called.any())
        self.clean_cells += len(called)
        self.alarms += int(called.sum())

    def add_slowed(self, delay_pct: float, called: Flags) -> None:
        """One pair whose head has the delay in every series, each judged by itself, [series of the occasion]."""
        found, tried = self.found.get(delay_pct, (0, 0))
        self.found[delay_pct] = (found + int(called.sum()), tried + len(called))


def benchmark(
    folder: Path, gpu_model: str | None = None, *, pairs: int = 100, seed: int = 1, rules: Sequence[Rule] | None = None
) -> list[Row]:
    """Rows in the order of the rules, ours first; ``pairs`` of each occasion, of every kind.

    A pair is drawn as a gate draws its processes. A rule of one process a side gets one of each at random, never the
    same twice, which would show no rule to be wrong.

    Raises:
        MissingDataError: as ``score``.
    """
    data = of_model(read(folder), gpu_model)
    occasions = {one.id: one for one in usable(data)}
    with_floor, without, _ = all_limits(data, list(occasions.values()))
    gates = [
        (Row(name, f"{SCREEN}, then {CONFIRM}"), Limits.of(limits))
        for name, limits in ((OURS, with_floor), (FLOORLESS, without))
    ]
    rules = known_rules(SCREEN) if rules is None else rules
    rows = [Row(rule.name, f"{rule.processes}") for rule in rules]
    rng = np.random.default_rng(seed)
    for name, occasion in occasions.items():
        has = occasion.measured
        plain = _Recorded.of(data, data.chosen(occasion=name, delay_pct=None))
        slowed = [(pct, _Recorded.of(data, data.chosen(occasion=name, delay_pct=pct))) for pct in data.delays]
        for _ in range(pairs):
            screen, confirm = clean_gate(len(plain.logs), rng)
            first, second = screen.of(plain.logs), confirm.of(plain.logs)
            for row, limits in gates:
                row.add_clean(calibration.regressed(calibration.tested(first, second, limits), second, limits)[has])
            one = screen.base[0]
            other = next((index for index in screen.head if index != one), one)
            base, head = plain.sides(screen.base, one), plain.sides(screen.head, other)
            for row, rule in zip(rows, rules, strict=True):
                row.add_clean(_called(rule, base, head)[has])
            for pct, slow in slowed:
                if not len(slow.logs):
                    continue
                heads = [stage.with_head(len(slow.logs), rng) for stage in (screen, confirm)]
                slow_first, slow_second = (stage.of(plain.logs, slow.logs) for stage in heads)
                for row, limits in gates:
                    clean = calibration.tested(first, second, limits)
                    changed = calibration.tested(slow_first, slow_second, limits)
                    row.add_slowed(pct, calibration.regressed_alone(clean, changed, slow_second, limits)[has])
                slower = slow.sides(heads[0].head, heads[0].head[0])
                for row, rule in zip(rows, rules, strict=True):
                    row.add_slowed(pct, _called(rule, base, slower)[has])
    return [row for row, _ in gates] + rows


@dataclass(frozen=True, slots=True)
class _Recorded:
    """Processes of one kind on one occasion, in order of time: log medians [processes, series], and all samples."""

    logs: Floats
    values: list[list[Value | None]]  # by series, then process

    @classmethod
    def of(cls, data: Dataset, processes: Sequence[Process]) -> "_Recorded":
        values = [[data.values.get((one.process, series.key)) for one in processes] for series in data.series]
        return cls(np.log(data.medians(processes)), values)

    def sides(self, chosen: Indices, one: int) -> list[Side | None]:
        """[series], with the samples of process ``one``; None where one of these processes has no value."""
        return [_side([row[index] for index in sorted(chosen)], row[one]) for row in self.values]


def _side(values: Sequence[Value | None], one: Value | None) -> Side | None:
    known = [value for value in values if value is not None]
    if one is None or len(known) < len(values):
        return None
    return Side([value.median for value in known], one.samples, one.sm_mhz)


def _called(rule: Rule, base: Sequence[Side | None], head: Sequence[Side | None]) -> Flags:
    """[series]: called slower; a series without values is not, for nobody looked."""
    pairs = zip(base, head, strict=True)
    return np.array([a is not None and b is not None and rule.slower(a, b) for a, b in pairs], dtype=bool)
