"""Judge a head against its base from paired blocks of processes: pure functions on floats.

A block is four fresh processes in the order ABBA or BAAB. A side's statistic in it is the mean of its two log process
medians; the block's difference is ``head - base``, a log ratio, so that what both sides share (a warm card, a slow
hour, a steady drift) cancels. The unit of all statistics here is the block, never the process or the sample.

``screen`` looks at few blocks of every series and lets go of what shows nothing; ``confirm`` tests fresh blocks of the
suspects together. The screen's data never enter the confirmation, so being picked costs no significance.

Percent are of the base. A limit of x % means a factor of 1 + x/100 for the worse, and the inverse factor for the
better, so that a slowdown and the speed-up that undoes it are judged alike.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

import numpy as np

from ..records import VerdictName
from .distributions import adjusted, t_above, t_quantile
from .gate_power import DESIGN, RATE, SUSPICION_LEVEL, Design, PairLimits, detectable_pct, power, rate_with
from .modes import mode_distance_pct

__all__ = [  # one import for whoever judges pairs
    "RATE",
    "Design",
    "Estimate",
    "Family",
    "PairJudgement",
    "PairLimits",
    "Screened",
    "block_difference",
    "confirm",
    "detectable_pct",
    "estimate",
    "judge_unsuspected",
    "power",
    "screen",
    "sign_flip_p",
]

MIN_BLOCKS = 4  # below it three degrees of freedom or fewer decide nothing
NUM_FLIPS = 4096  # all sign flips up to 12 blocks; as many random ones above
SEED = 20261129  # a judgement must come out the same twice


class Family(NamedTuple):
    """One suspect of a confirmation: its block differences and how to judge them.

    The process medians of each side (any unit, positive) are only asked whether they have two modes.
    """

    diffs: Sequence[float]
    limits: PairLimits
    median_us: float
    base_medians: Sequence[float] = ()
    head_medians: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Estimate:
    """Mean difference of n blocks, as log ratios, with its Student intervals and one-sided p against ``margin``."""

    n: int
    mean: float
    sd: float
    low: float  # 95 %, two-sided
    high: float
    inner_low: float  # 90 %, two-sided: the equivalence claim
    inner_high: float
    p_above: float  # of "the difference is at most +margin"
    p_below: float  # of "the difference is at least -margin"


@dataclass(frozen=True, slots=True)
class Screened:
    """What the screen says of one series; ``limits`` have the floor in them. No estimate without valid blocks.

    Attributes:
        p: the smaller one-sided p against no change at all.
        detectable_pct: effect that screen and confirmation together find with 80 % power.
        fault: why there is no estimate; None where there is one.
        modes_pct: distance of two modes of the processes; None where there is one.
    """

    suspect: bool
    limits: PairLimits
    n_blocks: int
    estimate: Estimate | None = None
    estimate_pct: float | None = None
    p: float | None = None
    detectable_pct: float | None = None
    fault: str | None = None
    modes_pct: float | None = None


@dataclass(frozen=True, slots=True)
class PairJudgement:
    """A verdict with its numbers; ``reason`` is complete on its own. Numbers are None where nothing was tested.

    Attributes:
        low_pct, high_pct: 95 % interval of the change.
        p, q: one-sided against the margin in the estimate's direction; q is p adjusted by Benjamini-Hochberg over the
            suspects. A series that the screen let go has p against no change, and no q.
        sign_flip_p: of the same hypothesis by flipping signs of blocks; assumes symmetry, no normal noise.
        detectable_pct: effect found with 80 % power by the whole gate at its family-wise rate.
    """

    verdict: VerdictName
    reason: str
    n_blocks: int
    estimate_pct: float | None = None
    low_pct: float | None = None
    high_pct: float | None = None
    p: float | None = None
    q: float | None = None
    sign_flip_p: float | None = None
    detectable_pct: float | None = None
    modes_pct: float | None = None


def block_difference(base: Sequence[float | None], head: Sequence[float | None]) -> float:
    """Log ratio head over base of one block's process medians; NaN where one is no positive finite number.

    A time of zero is below the timer's resolution: no ratio comes of it. NaN makes the whole series *invalid*.
    """
    values = [*base, *head]
    if not base or not head or any(v is None or not math.isfinite(v) or v <= 0 for v in values):
        return math.nan
    means = [math.fsum(math.log(v) for v in side if v is not None) / len(side) for side in (head, base)]
    return means[0] - means[1]


def estimate(diffs: Sequence[float], margin_pct: float = 0.0) -> Estimate:
    """Student's paired estimate of at least two finite differences. Without any spread p is 0 or 1."""
    n, mean, sd = len(diffs), float(np.mean(diffs)), float(np.std(diffs, ddof=1))
    error, margin = sd / math.sqrt(n), math.log1p(margin_pct / 100)
    outer, inner = (error * t_quantile(q, n - 1) for q in (0.975, 0.95))
    above, below = (_tail(side * mean - margin, error, n - 1) for side in (1, -1))
    return Estimate(n, mean, sd, mean - outer, mean + outer, mean - inner, mean + inner, above, below)


def screen(
    diffs: Sequence[float],
    limits: PairLimits,
    median_us: float,
    base_medians: Sequence[float] = (),
    head_medians: Sequence[float] = (),
) -> Screened:
    """Whether a series needs a confirmation: significant against no change, and estimated beyond ``suspect_pct``.

    Either direction makes a suspect: an improvement is confirmed as a regression is.
    """
    limits = limits.at(median_us)
    modes = _modes(base_medians, head_medians)
    fault = _fault(diffs)
    if fault or len(diffs) < MIN_BLOCKS:
        return Screened(False, limits, len(diffs), fault=fault, modes_pct=modes)
    e = estimate(diffs)
    p = min(e.p_above, e.p_below)
    return Screened(
        suspect=p < SUSPICION_LEVEL and abs(e.mean) >= math.log1p(limits.suspect_pct / 100),
        limits=limits,
        n_blocks=e.n,
        estimate=e,
        estimate_pct=_pct(e.mean),
        p=p,
        detectable_pct=detectable_pct(100 * e.sd, limits, replace(DESIGN, n_screen=e.n, rate=rate_with(modes))),
        modes_pct=modes,
    )


def judge_unsuspected(screened: Screened) -> PairJudgement:
    """Verdict on a series that the screen let go: unchanged, inconclusive, blind or invalid."""
    e = screened.estimate
    if screened.fault:
        return PairJudgement("invalid", screened.fault, screened.n_blocks, modes_pct=screened.modes_pct)
    if e is None:
        return _too_few(screened.n_blocks, screened.modes_pct)
    judged = _numbers(e, screened.detectable_pct, screened.modes_pct)
    verdict, reason = _undecided(e, judged, screened.limits)
    return replace(judged, verdict=verdict, reason=reason, p=screened.p)


def confirm(families: Sequence[Family], rate: float = RATE) -> list[PairJudgement]:
    """Judge fresh blocks of all suspects together, in order.

    Regressed or improved needs q <= ``rate`` over the suspects and an estimate of at least the limit. Gated suspects
    and those only shown are adjusted apart, and so are the two directions.
    """
    families = [Family(*f)._replace(limits=f[1].at(f[2])) for f in families]
    usable = [i for i, f in enumerate(families) if len(f.diffs) >= MIN_BLOCKS and not _fault(f.diffs)]
    estimates = {i: estimate(families[i].diffs, families[i].limits.margin_pct) for i in usable}
    above: dict[int, float] = {}
    below: dict[int, float] = {}
    for gated in (True, False):
        members = [i for i in usable if families[i].limits.gated == gated]
        above |= _adjusted({i: estimates[i].p_above for i in members})
        below |= _adjusted({i: estimates[i].p_below for i in members})
    judged = []
    for i, family in enumerate(families):
        modes = _modes(family.base_medians, family.head_medians)
        if i in estimates:
            size = sum(families[j].limits.gated == family.limits.gated for j in usable)
            judged.append(_confirmed(family, estimates[i], above[i], below[i], rate, size, modes))
        elif fault := _fault(family.diffs):
            judged.append(PairJudgement("invalid", fault, len(family.diffs), modes_pct=modes))
        else:
            judged.append(_too_few(len(family.diffs), modes))
    return judged


def sign_flip_p(diffs: Sequence[float], margin_pct: float = 0.0) -> float:
    """One-sided p of "the mean is at most the margin" by flipping signs about it; at least 1/4096.

    All flips up to 12 blocks; above it as many random ones, the observed signs counted among them (the +1 without
    which p could be 0, which no finite number of flips can show).
    """
    values = np.asarray(diffs, dtype=float) - math.log1p(margin_pct / 100)
    if 2 ** len(values) <= NUM_FLIPS:
        signs = np.array(list(product((1.0, -1.0), repeat=len(values))))  # the first is what was observed
    else:
        signs = np.random.default_rng(SEED).choice((1.0, -1.0), size=(NUM_FLIPS, len(values)))
        signs[0] = 1.0
    means = signs @ values
    return float(np.mean(means >= means[0] - 1e-12 * np.abs(values).sum()))


def _confirmed(
    family: Family, e: Estimate, above: float, below: float, rate: float, size: int, modes: float | None
) -> PairJudgement:
    limits, is_up = family.limits, e.mean > 0
    q = above if is_up else below
    rate = rate_with(modes, rate)
    signs = family.diffs if is_up else [-d for d in family.diffs]
    design = replace(DESIGN, n_confirm=e.n, rate=rate, num_suspects=size)
    judged = replace(
        _numbers(e, detectable_pct(100 * e.sd, limits, design), modes),
        p=e.p_above if is_up else e.p_below,
        q=q,
        sign_flip_p=sign_flip_p(signs, limits.margin_pct),
    )
    if q > rate or abs(e.mean) < math.log1p(limits.limit_pct / 100):
        verdict, reason = _undecided(e, judged, limits)
        return replace(judged, verdict=verdict, reason=reason)
    verdict = "regressed" if is_up == (limits.better == "lower") else "improved"
    found = f"beyond {limits.margin_pct:g} % in {e.n} fresh blocks, q {q:.2g} among {size} suspects"
    return replace(judged, verdict=verdict, reason=f"{_interval(judged)}, limit {limits.limit_pct:.3g} %; {found}")


def _undecided(e: Estimate, judged: PairJudgement, limits: PairLimits) -> tuple[VerdictName, str]:
    # What the data carry comes first; only what is left undecided is blind or inconclusive.
    limit, numbers = math.log1p(limits.limit_pct / 100), f"{_interval(judged)}, limit {limits.limit_pct:.3g} %"
    if -limit < e.inner_low and e.inner_high < limit:
        inner = f"90 % interval {_pct(e.inner_low):+.2f}..{_pct(e.inner_high):+.2f} %"
        return "unchanged", f"{judged.estimate_pct:+.2f} %; {inner} lies inside the limit {limits.limit_pct:.3g} %"
    assert judged.detectable_pct is not None  # there is an estimate
    if judged.detectable_pct > limits.promise_pct:
        modes = (
            "" if judged.modes_pct is None else f"; its processes fall into two modes {judged.modes_pct:.0f} % apart"
        )
        return "blind", f"{numbers}; with this spread only {judged.detectable_pct:.1f} % or more is found{modes}"
    return "inconclusive", f"{numbers}; neither a change nor its absence is shown: measure more blocks"


def _numbers(e: Estimate, detectable: float | None, modes: float | None) -> PairJudgement:
    return PairJudgement(
        "inconclusive",
        "",
        e.n,
        estimate_pct=_pct(e.mean),
        low_pct=_pct(e.low),
        high_pct=_pct(e.high),
        detectable_pct=detectable,
        modes_pct=modes,
    )


def _adjusted(p_values: dict[int, float]) -> dict[int, float]:
    return dict(zip(p_values, adjusted([*p_values.values()]), strict=True))


def _tail(excess: float, error: float, freedom: int) -> float:
    if error == 0:
        return 0.0 if excess > 0 else 1.0
    return float(t_above(excess / error, freedom))


def _fault(diffs: Sequence[float]) -> str | None:
    bad = sum(not math.isfinite(d) for d in diffs)
    if not bad:
        return None
    return f"{bad} of {len(diffs)} blocks hold a process without a valid time: expected positive finite numbers"


def _too_few(n: int, modes: float | None) -> PairJudgement:
    return PairJudgement("inconclusive", f"{n} blocks; at least {MIN_BLOCKS} are needed", n, modes_pct=modes)


def _modes(base: Sequence[float], head: Sequence[float]) -> float | None:
    return max((d for side in (base, head) if (d := mode_distance_pct(side)) is not None), default=None)


def _interval(j: PairJudgement) -> str:
    return f"{j.estimate_pct:+.2f} % (95 % {j.low_pct:+.2f}..{j.high_pct:+.2f})"


def _pct(log_ratio: float) -> float:
    return 100 * math.expm1(log_ratio)
