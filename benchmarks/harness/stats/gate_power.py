"""What a gate of two stages can find: its limits, its sizes, and the power that follows. Pure functions on floats.

A gate screens every series with few blocks and confirms suspects with fresh ones (``paired`` does both). Power is that
of both stages together with normal block differences, which are independent between stages.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy import special

from .distributions import chi2_quantile, t_quantile
from .verdict import POWER, Better

RATE = 0.05  # share of false discoveries among a gate's suspects
# What the rate is divided by for a series of two modes: which mode a process falls into is no normal noise, and the
# blocks' mean moves by chance as far as the modes are apart.
CAUTION_OF_MODES = 10.0
SUSPICION_LEVEL = 0.05  # one-sided, against no change; either direction makes a suspect

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PairLimits:
    """How one series is judged.

    Attributes:
        margin_pct: what the test is against: differences this small are nobody's business even when significant.
        limit_pct: the least estimated change that counts.
        floor_us: absolute floor: a change of fewer microseconds never counts, however many percent it is.
        better: the direction that is an improvement.
        gated: False: judged and shown, never failing; its suspects form a family of their own.
    """

    margin_pct: float = 0.5
    limit_pct: float = 1.5
    floor_us: float = 0.0
    better: Better = "lower"
    gated: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.margin_pct < self.limit_pct < 100:
            raise ValueError(
                f"expected 0 <= margin < limit < 100 (%), got margin {self.margin_pct}, limit {self.limit_pct}"
            )
        if not (math.isfinite(self.floor_us) and self.floor_us >= 0):
            raise ValueError(f"floor_us: expected a finite number >= 0, got {self.floor_us}")
        if self.better == "equal":
            raise ValueError("better: expected lower or higher, got equal; what must not change is compared exactly")

    @property
    def suspect_pct(self) -> float:
        """The least estimate that makes a suspect: halfway, so that a change at the limit is seldom let go."""
        return (self.margin_pct + self.limit_pct) / 2

    @property
    def promise_pct(self) -> float:
        """What must be found with 80 % power, or the series is blind: a third above the limit.

        An effect of exactly the limit is estimated below it half the time, whatever the noise.
        """
        return self.limit_pct * 4 / 3

    def at(self, median_us: float) -> "PairLimits":
        """With the floor made part of the limit of a series that takes ``median_us``."""
        floor_pct = 100 * self.floor_us / median_us if median_us > 0 else 0.0
        return replace(self, limit_pct=min(max(self.limit_pct, floor_pct), 99.0), floor_us=0.0)


@dataclass(frozen=True, slots=True)
class Design:
    """Sizes of a gate. ``num_suspects``: over how many Benjamini-Hochberg is taken to run, at the strictest step."""

    n_screen: int = 6
    n_confirm: int = 12
    rate: float = RATE
    num_suspects: int = 3


DESIGN = Design()


def rate_with(modes_pct: float | None, rate: float = RATE) -> float:
    """The rate for a series whose processes fall into modes so many percent apart; None: they do not."""
    return rate if modes_pct is None else rate / CAUTION_OF_MODES


def power(effect_pct: float, sd_pct: float, limits: PairLimits, design: Design = DESIGN) -> float:
    """Probability that screen and confirmation call an effect for the worse, with normal block differences.

    ``sd_pct``: standard deviation of block differences. ``limits`` count as they are: apply ``at`` for the floor.
    """
    effect, sd = math.log1p(effect_pct / 100), sd_pct / 100
    seen = _stage(effect, sd, design.n_screen, SUSPICION_LEVEL, 0.0, limits.suspect_pct)
    level = design.rate / design.num_suspects
    return seen * _stage(effect, sd, design.n_confirm, level, limits.margin_pct, limits.limit_pct)


def detectable_pct(sd_pct: float, limits: PairLimits, design: Design = DESIGN) -> float:
    """The effect for the worse that the gate finds with 80 % power, in percent; at least the limit."""
    from scipy import optimize

    if sd_pct == 0:
        return limits.limit_pct
    high = limits.limit_pct + 10 * sd_pct
    while power(high, sd_pct, limits, design) < POWER:
        high *= 2
    return float(optimize.brentq(lambda x: power(x, sd_pct, limits, design) - POWER, 0.0, high, xtol=1e-4))


def _stage(effect: float, sd: float, n: int, level: float, margin_pct: float, least_pct: float) -> float:
    # The mean must pass both what the test asks, which depends on the spread seen, and the least estimate.
    margin, least = math.log1p(margin_pct / 100), math.log1p(least_pct / 100)
    if sd == 0:
        return float(effect >= least)
    asked = np.maximum(least, margin + sd * _quantile(level, n) * _spreads(n) / math.sqrt(n))
    return float(np.mean(special.ndtr((effect - asked) * math.sqrt(n) / sd)))


@lru_cache
def _spreads(n: int) -> Floats:
    # Equally likely standard deviations of n normal values, over the true one.
    shares = (np.arange(200) + 0.5) / 200
    spreads: Floats = np.sqrt(chi2_quantile(shares, n - 1) / (n - 1))
    return spreads


@lru_cache
def _quantile(level: float, n: int) -> float:
    return t_quantile(1 - level, n - 1)
