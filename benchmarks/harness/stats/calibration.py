"""A gate replayed on recorded processes, all series at once: the same two stages and the same rules, as arrays.

``paired`` judges one series with every number that people want to see. Thousands of gates over all series need its
decisions alone; a test holds the two together.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .distributions import t_above
from .gate_power import DESIGN, SUSPICION_LEVEL, rate_with
from .modes import MIN_DISTANCE_PCT, mode_distance_pct
from .paired import PairLimits

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.int64]
Rng = np.random.Generator

BOUND = 0.95  # of exact bounds
PER_BLOCK = 2  # processes of a side in a block
SCREEN, CONFIRM = PER_BLOCK * DESIGN.n_screen, PER_BLOCK * DESIGN.n_confirm  # processes of a side
GATE = 2 * SCREEN  # processes of a screen
WHOLE = GATE + 2 * CONFIRM  # and with a confirmation


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of all series as log ratios, the floor in them; [series]. Times: lower is better."""

    margin: Floats
    suspect: Floats
    limit: Floats
    gated: Flags

    @classmethod
    def of(cls, each: Sequence[PairLimits]) -> "Limits":
        """Of limits that have their floor in them (``PairLimits.at``)."""
        columns = [[one.margin_pct, one.suspect_pct, one.limit_pct] for one in each]
        margin, suspect, limit = np.log1p(np.array(columns, dtype=float).reshape(-1, 3).T / 100)
        return cls(margin, suspect, limit, np.array([one.gated for one in each], dtype=bool))


@dataclass(frozen=True, slots=True)
class Stage:
    """Log process medians of both sides, [processes of a side, series]; rows 2i and 2i + 1 make block i."""

    base: Floats
    head: Floats

    @property
    def diffs(self) -> Floats:
        """[blocks, series]: log ratio head over base of each block."""
        ratios = self.head - self.base
        return (ratios[::PER_BLOCK] + ratios[1::PER_BLOCK]) / PER_BLOCK

    def slowed(self, logs: Floats) -> "Stage":
        """With the head longer by these log ratios, [series]."""
        return Stage(self.base, self.head + logs)


@dataclass(frozen=True, slots=True)
class Tested:
    """What both stages say of each series; [series]."""

    suspect: Flags
    mean: Floats  # of the confirmation's blocks
    p_above: Floats  # of the confirmation, one-sided against the margin

    def slow(self, limits: Limits) -> Flags:
        """Suspects that the confirmation may call slower, before the family is looked at."""
        return self.suspect & (self.mean >= limits.limit)


def suspects(diffs: Floats, limits: Limits) -> Flags:
    """[series]: significant against no change in either direction, and estimated beyond the suspicion.

    Of a series that is not gated the screen's word is enough: it gets no fresh blocks.
    """
    mean = diffs.mean(axis=0)
    is_significant = _tail(np.abs(mean), diffs) < SUSPICION_LEVEL
    found: Flags = is_significant & (np.abs(mean) >= limits.suspect) & limits.gated
    return found


def tested(screen: Stage, confirm: Stage, limits: Limits) -> Tested:
    """Both stages of every series; a confirmation counts only where the screen made a suspect."""
    diffs = confirm.diffs
    mean = diffs.mean(axis=0)
    return Tested(suspects(screen.diffs, limits), mean, _tail(mean - limits.margin, diffs))


def regressed(found: Tested, confirm: Stage, limits: Limits) -> Flags:
    """[series]: called slower by the whole gate."""
    return regressed_alone(found, found, confirm, limits)


def regressed_alone(clean: Tested, changed: Tested, confirm: Stage, limits: Limits) -> Flags:
    """[series]: called slower when it alone changed and all others are as in ``clean``; ``confirm`` has the change."""
    slow = changed.slow(limits)
    verdicts = np.zeros_like(slow)
    for index in np.flatnonzero(slow):
        others = clean.suspect.copy()
        others[index] = False
        verdicts[index] = adjusted(changed.p_above[index], clean.p_above[others]) <= _rate(confirm, int(index))
    return verdicts


def adjusted(p: float, others: Floats) -> float:
    """``p`` after Benjamini-Hochberg over itself and the others."""
    ordered = np.sort(np.append(others, p))
    ranks = np.arange(1, len(ordered) + 1)
    steps = ordered * len(ordered) / ranks
    return float(min(1.0, steps[np.searchsorted(ordered, p, side="left") :].min()))


def _rate(confirm: Stage, index: int) -> float:
    sides = (confirm.base[:, index], confirm.head[:, index])
    near = np.log1p(MIN_DISTANCE_PCT / 100)
    modes = (mode_distance_pct([*np.exp(side)]) for side in sides if np.ptp(side) >= near)
    return rate_with(next((pct for pct in modes if pct is not None), None))


def _tail(excess: Floats, diffs: Floats) -> Floats:
    """One-sided p of "the mean is no larger", [series]; 0 or 1 where there is no spread."""
    n = len(diffs)
    error = diffs.std(axis=0, ddof=1) / np.sqrt(n)
    with np.errstate(divide="ignore", invalid="ignore"):
        p: Floats = t_above(excess / error, n - 1)
    return np.where(error > 0, p, np.where(excess > 0, 0.0, 1.0))


class Places(NamedTuple):
    """Which processes a stage takes, [processes of a side]; rows 2i and 2i + 1 make block i."""

    base: Indices
    head: Indices

    def of(self, base_logs: Floats, head_logs: Floats | None = None) -> Stage:
        """With the times of these processes; the head's are of the same code where no others are given."""
        return Stage(base_logs[self.base], (base_logs if head_logs is None else head_logs)[self.head])

    def with_head(self, count: int, rng: Rng) -> "Places":
        """The same base, and a head drawn from ``count`` other processes."""
        return Places(self.base, _drawn(count, len(self.head), rng))


def clean_gate(count: int, rng: Rng) -> tuple[Places, Places]:
    """Screen and confirmation of ``count`` processes against themselves; in a stage none twice where they suffice."""
    return in_blocks(_drawn(count, GATE, rng), rng), in_blocks(_drawn(count, WHOLE - GATE, rng), rng)


def in_blocks(order: Indices, rng: Rng) -> Places:
    """Successive processes as blocks in the order ABBA or BAAB, chosen at random."""
    base, head = list[int](), list[int]()
    for first in range(0, len(order), 2 * PER_BLOCK):
        outer, inner = (base, head) if rng.integers(2) else (head, base)
        outer += [first, first + 3]
        inner += [first + 1, first + 2]
    return Places(order[base], order[head])


def exact_upper_pct(num_found: int, num_tried: int) -> float | None:
    """Exact (Clopper-Pearson) one-sided 95 % upper bound of a rate, in percent; None without a trial."""
    from scipy import stats

    if num_tried == 0:
        return None
    return 100.0 if num_found == num_tried else 100 * float(stats.beta.ppf(BOUND, num_found + 1, num_tried - num_found))


def _drawn(count: int, wanted: int, rng: Rng) -> Indices:
    return rng.permutation(count)[:wanted] if count >= wanted else rng.integers(count, size=wanted)
