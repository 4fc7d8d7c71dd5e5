"""Judge tonight's value of a series against a base night's: pure functions on floats.

The unit is the process: each argument is a list of one median per fresh process, never of samples, because processes
differ by as much as the samples of one process do. Times are compared on the log scale with Welch's t interval.

A series is *regressed* only when three things agree: the one-sided test against the practical margin passes
Benjamini-Hochberg over the night's gated series, the change of the medians reaches the limit, and there are at least
``min_processes`` on both sides. The margin is what two occasions of the same code may differ by; the limit is what we
act on. Exact values (bytes, registers) are compared exactly and need one process.

A verdict that the data carry wins over one about what the data could carry: regressed, improved and unchanged come
first; only what is left undecided is *blind* (even an effect of the limit would go unseen) or *inconclusive*.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from ..records import VerdictName
from .distributions import adjusted, t_above, t_quantile

Better = Literal["lower", "higher", "equal"]  # "equal": any change of an exact value counts as one for the worse
Logs = npt.NDArray[np.float64]

FALSE_DISCOVERY_RATE = 0.05
POWER = 0.80  # of the smallest detectable effect, at a one-sided 5 % test
ONE_SIDED_LEVEL = 0.05


@dataclass(frozen=True, slots=True)
class Limits:
    """How one series is judged; percent of the base value.

    ``band_pct``: how much worse an exact value may get. ``floor_us``: a change of a time by less is not acted on.
    """

    limit_pct: float
    margin_pct: float
    min_processes: int = 5
    better: Better = "lower"
    gated: bool = True
    band_pct: float = 0.0
    floor_us: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.margin_pct < self.limit_pct < 100:
            raise ValueError(
                f"expected 0 <= margin < limit < 100 (%), got margin {self.margin_pct}, limit {self.limit_pct}"
            )
        if self.min_processes < 2:
            raise ValueError(
                f"min_processes: expected at least 2 (a spread needs two values), got {self.min_processes}"
            )

    def limit_of(self, base: "Summary | None") -> float:
        """The limit of a time against this base, in percent: the relative one or the floor, whichever is more."""
        return self.limit_pct if base is None else max(self.limit_pct, 100 * self.floor_us / base.value)


@dataclass(frozen=True, slots=True)
class Summary:
    """Process medians of one night. ``value`` is their median; the interval is that of their geometric mean."""

    n: int
    value: float
    low: float | None = None  # 95 %; None below two processes
    high: float | None = None
    sd_pct: float | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """Welch's comparison of two nights; percent of base, of the geometric means over processes."""

    low_pct: float  # 95 %
    high_pct: float
    inner_low_pct: float  # 90 %, two-sided: the equivalence claim
    inner_high_pct: float
    detectable_pct: float
    p_worse: float  # one-sided, against the margin
    p_better: float


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict with its numbers; ``reason`` is complete on its own."""

    verdict: VerdictName
    reason: str
    tonight: Summary | None = None
    base: Summary | None = None
    evidence: Evidence | None = None  # None where nothing was tested: exact, new, too few processes
    detectable_pct: float | None = None

    @property
    def change_pct(self) -> float | None:
        """Of the medians, in percent of the base median; None without both, or with a base of 0."""
        if self.tonight is None or self.base is None or self.base.value == 0:
            return None
        return 100 * (self.tonight.value / self.base.value - 1)

    @property
    def strength(self) -> float:
        """The smaller p-value: small is strong. 1 where nothing was tested."""
        return 1.0 if self.evidence is None else min(self.evidence.p_worse, self.evidence.p_better)


@dataclass(frozen=True, slots=True)
class Series:
    """What is known of one series: process medians of both nights, and how to judge them."""

    tonight: Sequence[float | None]
    base: Sequence[float | None] | None  # None: the base night has no such series
    limits: Limits
    exact: bool = False


def judge_night(series: Sequence[Series], *, rate: float = FALSE_DISCOVERY_RATE) -> list[Judgement]:
    """Judge all series of a night together, in order.

    Benjamini-Hochberg runs over the gated series that were tested, and apart from them over those only shown; for worse
    and for better separately.
    """
    judged = [_exact(s) if s.exact else _measured(s) for s in series]
    for gated in (True, False):
        tested = [(i, e) for i, j in enumerate(judged) if (e := j.evidence) and series[i].limits.gated == gated]
        worse = discoveries([e.p_worse for _, e in tested], rate)
        better = discoveries([e.p_better for _, e in tested], rate)
        for (index, evidence), is_worse, is_better in zip(tested, worse, better, strict=True):
            limits = series[index].limits
            judged[index] = _decide(judged[index], evidence, limits, is_worse, is_better, len(tested))
    return judged


def discoveries(p_values: Sequence[float], rate: float) -> list[bool]:
    """Which hypotheses Benjamini-Hochberg rejects at ``rate``; in order, empty for an empty family."""
    return [q <= rate for q in adjusted(p_values)]


def defect(values: Sequence[float | None], *, positive: bool = True) -> str | None:
    """Why these values cannot be judged, or None. Times must be positive; exact values only finite."""
    bad = [v for v in values if v is None or not math.isfinite(v) or (positive and v <= 0)]
    if not bad:
        return None
    wanted = "a positive finite number" if positive else "a finite number"
    shown = ", ".join(map(str, bad[:3]))
    return f"{len(bad)} of {len(values)} processes gave no valid value: expected {wanted}, got {shown}"


def summarize(medians: Sequence[float]) -> Summary:
    """Summary of positive process medians; interval and spread are None below two processes."""
    n, value = len(medians), float(np.median(medians))
    if n < 2:
        return Summary(n=n, value=value)
    logs = np.log(np.asarray(medians, dtype=float))
    sd = float(np.std(logs, ddof=1))
    half = t_quantile(0.975, n - 1) * sd / math.sqrt(n)
    center = float(np.mean(logs))
    return Summary(n=n, value=value, low=math.exp(center - half), high=math.exp(center + half), sd_pct=100 * sd)


def compare(tonight: Sequence[float], base: Sequence[float], limits: Limits) -> Evidence:
    """Welch's comparison on the log scale. Both sides hold at least two positive process medians."""
    a, b = np.log(np.asarray(tonight, dtype=float)), np.log(np.asarray(base, dtype=float))
    shift = float(np.mean(a) - np.mean(b))
    error, freedom = _welch(a, b)
    towards_worse = shift if limits.better == "lower" else -shift
    outer, inner = (error * t_quantile(q, freedom) for q in (0.975, 0.95))
    return Evidence(
        low_pct=_pct(shift - outer),
        high_pct=_pct(shift + outer),
        inner_low_pct=_pct(shift - inner),
        inner_high_pct=_pct(shift + inner),
        detectable_pct=_detectable(error, freedom, limits.margin_pct),
        p_worse=_p_above(towards_worse, limits.margin_pct, error, freedom),
        p_better=_p_above(-towards_worse, limits.margin_pct, error, freedom),
    )


def _welch(a: Logs, b: Logs) -> tuple[float, float]:
    # Standard error and Welch-Satterthwaite degrees of freedom; without any spread n - 2, which then multiplies zero.
    u, v = float(np.var(a, ddof=1)) / len(a), float(np.var(b, ddof=1)) / len(b)
    scale = u * u / (len(a) - 1) + v * v / (len(b) - 1)
    return math.sqrt(u + v), (u + v) ** 2 / scale if scale > 0 else float(len(a) + len(b) - 2)


def _p_above(shift: float, margin_pct: float, error: float, freedom: float) -> float:
    # One-sided p of "the shift is at most the margin"; without spread the answer is certain.
    excess = shift - math.log1p(margin_pct / 100)
    if error == 0:
        return 0.0 if excess > 0 else 1.0
    return float(t_above(excess / error, freedom))


def _detectable(error: float, freedom: float, margin_pct: float) -> float:
    # The true effect that the test against the margin finds with the stated power (normal-theory approximation).
    reach = (t_quantile(1 - ONE_SIDED_LEVEL, freedom) + t_quantile(POWER, freedom)) * error
    return _pct(math.log1p(margin_pct / 100) + reach)


def _pct(log_ratio: float) -> float:
    return 100 * math.expm1(log_ratio)


def _measured(series: Series) -> Judgement:
    # All but the decision, which needs the whole family: a tested series comes back with evidence and no reason.
    limits = series.limits
    if early := _unusable(series, positive=True):
        return early
    medians = [v for v in series.tonight if v is not None]
    tonight = summarize(medians)
    if series.base is None:
        detectable = _detectable_if_repeated(medians, limits)
        hint = "" if detectable is None else f"; {detectable:.1f} % could be detected (limit {limits.limit_pct:g} %)"
        return Judgement("new", f"{_show(tonight)}{hint}", tonight, detectable_pct=detectable)
    base_medians = [v for v in series.base if v is not None]
    base = summarize(base_medians)
    if min(tonight.n, base.n) < limits.min_processes:
        need = f"{limits.min_processes} on each side are needed"
        return Judgement("inconclusive", f"{tonight.n} processes against {base.n}; {need}", tonight, base)
    evidence = compare(medians, base_medians, limits)
    return Judgement("inconclusive", "", tonight, base, evidence, evidence.detectable_pct)


def _unusable(series: Series, *, positive: bool) -> Judgement | None:
    if not series.tonight:
        return Judgement(
            "missing", "the base night has this series, tonight has not" if series.base else "no process measured it"
        )
    fault = defect(series.tonight, positive=positive)
    if fault:
        return Judgement("invalid", fault)
    fault = defect(series.base, positive=positive) if series.base is not None else None
    if fault or (series.base is not None and not series.base):
        return Judgement("invalid", f"base night: {fault or 'no values'}")
    return None


def _detectable_if_repeated(medians: Sequence[float], limits: Limits) -> float | None:
    # As if the base had the same spread and as many processes.
    if len(medians) < 2:
        return None
    logs = np.log(np.asarray(medians, dtype=float))
    return _detectable(*_welch(logs, logs), limits.margin_pct)


def _show(summary: Summary) -> str:
    spread = "" if summary.sd_pct is None else f", sd {summary.sd_pct:.2f} %"
    return f"median {summary.value:.6g} of {summary.n} processes{spread}"


def _decide(
    judgement: Judgement, e: Evidence, limits: Limits, is_worse: bool, is_better: bool, family: int
) -> Judgement:
    limit, change = limits.limit_of(judgement.base), judgement.change_pct
    assert change is not None  # both sides are positive
    towards_worse = change if limits.better == "lower" else -change
    numbers = f"{change:+.2f} % (95 % {e.low_pct:+.2f}..{e.high_pct:+.2f}), limit {limit:.3g} %"
    significance = f"significant beyond {limits.margin_pct:g} % among {family} series"
    verdict: VerdictName
    if is_worse and towards_worse >= limit:
        verdict, text = "regressed", f"{numbers}; {significance}"
    elif is_better and -towards_worse >= limit:
        verdict, text = "improved", f"{numbers}; {significance}"
    elif -limit < min(e.inner_low_pct, change) and max(e.inner_high_pct, change) < limit:
        inner = f"90 % interval {e.inner_low_pct:+.2f}..{e.inner_high_pct:+.2f} %"
        verdict, text = "unchanged", f"{change:+.2f} %; {inner} lies inside the limit {limit:.3g} %"
    elif e.detectable_pct > limit:
        verdict, text = "blind", f"{numbers}; with this spread only {e.detectable_pct:.1f} % or more can be detected"
    else:
        verdict, text = "inconclusive", f"{numbers}; neither a change nor its absence is shown: measure more processes"
    return replace(judgement, verdict=verdict, reason=text)


def _exact(series: Series) -> Judgement:
    early = _unusable(series, positive=False)
    if early:
        return early
    values = sorted({v for v in series.tonight if v is not None})
    if len(values) > 1:
        return Judgement("invalid", f"an exact value differs between processes: {values[0]:.17g} .. {values[-1]:.17g}")
    value = values[0]
    tonight = Summary(n=len(series.tonight), value=value, low=value, high=value, sd_pct=0.0)
    if series.base is None:
        return Judgement("new", f"exactly {value:.17g}", tonight, detectable_pct=0.0)
    base_value = next(v for v in series.base if v is not None)
    base = Summary(n=len(series.base), value=base_value, low=base_value, high=base_value, sd_pct=0.0)
    if value == base_value:
        return Judgement("unchanged", f"exactly {value:.17g} as before", tonight, base, detectable_pct=0.0)
    better = series.limits.better
    is_worse = better == "equal" or (value > base_value if better == "lower" else value < base_value)
    band_pct = series.limits.band_pct
    is_allowed = abs(value - base_value) <= abs(base_value) * band_pct / 100
    rule = "it must not change" if better == "equal" else f"{better} is better"
    rule += f", and {band_pct:g} % worse is allowed" if band_pct else ""
    text = f"exact value went from {base_value:.17g} to {value:.17g}; {rule}"
    verdict: VerdictName = "improved" if not is_worse else "unchanged" if is_allowed else "regressed"
    return Judgement(verdict, text, tonight, base, detectable_pct=band_pct)
