"""Student's t, chi-squared and false discoveries without `scipy.stats`, whose import takes most of a second.

Whoever judges needs no more of it. The figures are its own to the bit: it computes them from `scipy.special` as well.
"""

from collections.abc import Sequence
from typing import cast

import numpy as np
import numpy.typing as npt
from scipy import special

Floats = npt.NDArray[np.float64]


def t_quantile(share: float, freedom: float) -> float:
    """The value that this share of Student's t with ``freedom`` degrees lies below."""
    return float(special.stdtrit(freedom, share))


def t_above(values: Floats | float, freedom: float) -> Floats:
    """The share of Student's t with ``freedom`` degrees that lies above each value; NaN above NaN."""
    return cast("Floats", special.stdtr(freedom, np.negative(values)))


def chi2_quantile(shares: Floats, freedom: float) -> Floats:
    """The values that these shares of the chi-squared distribution with ``freedom`` degrees lie below."""
    return cast("Floats", 2 * special.gammaincinv(freedom / 2, shares))


def adjusted(p_values: Sequence[float]) -> list[float]:
    """P-values after Benjamini and Hochberg over all of them, in order: at most q where the rate is to be q."""
    p = np.asarray(p_values, dtype=float)
    assert ((p >= 0) & (p <= 1)).all()  # one that is no number would make all the others none
    order = np.argsort(p)
    steps = p[order] * (len(p) / np.arange(1, len(p) + 1))
    found = np.empty_like(p)
    found[order] = np.minimum(np.minimum.accumulate(steps[::-1])[::-1], 1.0)
    return [float(q) for q in found]
