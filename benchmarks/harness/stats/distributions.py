"""SciPy's Student's t, chi-squared and false discoveries, without `scipy.stats` until p-values stand side by side.

Importing that takes half a second; its own distributions come from `scipy.special`, to the bit.
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
    if not p_values:
        return []
    from scipy.stats import false_discovery_control

    return [float(q) for q in false_discovery_control(np.asarray(p_values, dtype=float), method="bh")]
