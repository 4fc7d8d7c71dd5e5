"""Variance components of one series: within a process, between processes, between occasions. Pure functions on floats.

Samples lie in processes and processes in occasions (a night is one), of any size each. The components come from
Henderson's first method: the sums of squares of the nested analysis of variance, set equal to their expectations under

    value = mean + occasion + process + residual,

which needs no shape of the noise. Balanced data give what REML gives wherever no component is negative. An estimate
below zero is set to 0 and named in ``clipped``: it means that the component drowns in the one below it.
Source: Searle, Casella, McCulloch, Variance Components (1992), sections 3.6 and 5.2.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Process:
    """What the samples of one process say together."""

    n: int
    mean: float
    variance: float  # sample variance; 0 for one sample, which has none

    def __post_init__(self) -> None:
        if self.n < 1 or not math.isfinite(self.mean) or not (math.isfinite(self.variance) and self.variance >= 0):
            raise ValueError(f"expected at least one sample and finite numbers, got {self}")

    @classmethod
    def of(cls, samples: Sequence[float]) -> Self:
        """Of at least one sample; raises ValueError on none."""
        if not samples:
            raise ValueError("samples: expected at least one, got none")
        mean = math.fsum(samples) / len(samples)
        squares = math.fsum((value - mean) ** 2 for value in samples)
        return cls(len(samples), mean, squares / (len(samples) - 1) if len(samples) > 1 else 0.0)


@dataclass(frozen=True, slots=True)
class Components:
    """Variances in the square of the unit; None where the data cannot tell, as with one occasion.

    Attributes:
        mean: of all samples.
        clipped: names of components whose estimate was negative and is given as 0.
    """

    num_occasions: int
    num_processes: int
    num_samples: int
    mean: float
    within: float | None
    between_processes: float | None
    between_occasions: float | None
    clipped: tuple[str, ...] = ()

    def sd_pct(self, variance: float | None) -> float | None:
        """A component's standard deviation in percent of the mean; None without the component or with a mean of 0."""
        return None if variance is None or self.mean == 0 else 100 * math.sqrt(variance) / abs(self.mean)


def components(occasions: Sequence[Sequence[Process]]) -> Components:
    """Components of the processes of each occasion. Occasions without a process are left out.

    Needs two samples in some process for ``within``, besides that two processes in some occasion for
    ``between_processes``, and besides that two occasions for ``between_occasions``.

    Raises:
        ValueError: no process at all.
    """
    nested = [list(occasion) for occasion in occasions if occasion]
    flat = [process for occasion in nested for process in occasion]
    if not flat:
        raise ValueError("occasions: expected at least one process, got none")
    total = sum(process.n for process in flat)
    grand = _mean(flat)
    clipped: list[str] = []

    within: float | None = None
    if total > len(flat):
        within = math.fsum((process.n - 1) * process.variance for process in flat) / (total - len(flat))

    # Sum over processes of n_ij^2 / n_i: how much of an occasion's mean one process makes up.
    share = math.fsum(process.n**2 / _size(occasion) for occasion in nested for process in occasion)
    processes: float | None = None
    if within is not None and len(flat) > len(nested):
        degrees = len(flat) - len(nested)
        square = math.fsum(p.n * (p.mean - _mean(occasion)) ** 2 for occasion in nested for p in occasion) / degrees
        processes = _clip((square - within) / ((total - share) / degrees), "between_processes", clipped)

    between: float | None = None
    if within is not None and processes is not None and len(nested) > 1:
        degrees = len(nested) - 1
        square = math.fsum(_size(occasion) * (_mean(occasion) - grand) ** 2 for occasion in nested) / degrees
        of_processes = (share - math.fsum(process.n**2 for process in flat) / total) / degrees
        of_occasions = (total - math.fsum(_size(occasion) ** 2 for occasion in nested) / total) / degrees
        estimate = (square - within - of_processes * processes) / of_occasions
        between = _clip(estimate, "between_occasions", clipped)

    return Components(len(nested), len(flat), total, grand, within, processes, between, tuple(clipped))


def pooled_sd_pct(occasions: Sequence[Sequence[float]]) -> float | None:
    """Standard deviation between the values of an occasion, pooled over occasions, in percent of their mean.

    The values are one median per process. None below two values in every occasion, or with a mean of 0.
    """
    used = [list(values) for values in occasions if len(values) > 1]
    mean = math.fsum(v for values in used for v in values) / max(sum(map(len, used)), 1)
    if not used or mean == 0:
        return None
    squares = math.fsum((v - math.fsum(values) / len(values)) ** 2 for values in used for v in values)
    return 100 * math.sqrt(squares / sum(len(values) - 1 for values in used)) / abs(mean)


def _size(processes: Sequence[Process]) -> int:
    return sum(process.n for process in processes)


def _mean(processes: Sequence[Process]) -> float:
    return math.fsum(process.n * process.mean for process in processes) / _size(processes)


def _clip(estimate: float, name: str, clipped: list[str]) -> float:
    if estimate < 0:
        clipped.append(name)
    return max(estimate, 0.0)
