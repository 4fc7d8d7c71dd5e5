"""When to stop sampling: a pure decision on the samples so far and the time spent."""

from collections.abc import Sequence
from dataclasses import dataclass

from .stats.summary import summarise

FEWEST_SAMPLES = 6
"""Below six values a median has no 95 % interval, so not even the time limit stops sampling earlier."""

MOST_SAMPLES = 999
"""The interval of a median is exact up to here (``stats.summary``), and one process has no use for more."""

SAMPLES_PER_LOOK = 10
"""Samples taken between two decisions once the least number is there."""

QUEUED_SAMPLES = 32
"""Most samples enqueued at once: two events and a replay each stay far below the driver's queue of 1024."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How much to measure.

    Attributes:
        min_sample_us: shortest timed window; shorter work is repeated inside it. Samples of one short graph are
            bimodal between processes (docs/measuring.md), samples of 0.5 ms are not.
        warmup_s: least warm-up before the first sample; it goes on, up to ten times that, until times settle.
        max_s: wall time after which sampling stops, whatever was reached.
        relative_half_width: sampling stops once half the median's 95 % interval is this narrow: the whole interval is
            then within 0.5 % of the median. More samples of one process say nothing about the next process, so there
            is no point in going further.
    """

    min_samples: int = 30
    max_samples: int = 60
    min_sample_us: float = 500.0
    warmup_s: float = 0.05
    max_s: float = 1.0
    relative_half_width: float = 0.0025

    def __post_init__(self) -> None:
        if self.min_samples < FEWEST_SAMPLES:
            raise ValueError(f"min_samples: expected at least {FEWEST_SAMPLES}, got {self.min_samples}")
        if self.max_samples < self.min_samples:
            raise ValueError(f"max_samples: expected at least min_samples={self.min_samples}, got {self.max_samples}")
        if self.max_samples > MOST_SAMPLES:
            raise ValueError(f"max_samples: expected at most {MOST_SAMPLES}, got {self.max_samples}")
        for name in ("min_sample_us", "max_s", "relative_half_width"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}: expected more than 0, got {getattr(self, name)}")
        if self.warmup_s < 0:
            raise ValueError(f"warmup_s: expected at least 0, got {self.warmup_s}")


DEFAULT_SAMPLING = Sampling()


def stop_reason(values: Sequence[float], spent_s: float, sampling: Sampling) -> str | None:
    """Why sampling ends with these values, in words for a reader; None to go on."""
    if len(values) < FEWEST_SAMPLES:
        return None
    half_width = summarise(values).relative_half_width
    shown = "unknown" if half_width is None else f"{100 * half_width:.2f} %"
    if spent_s >= sampling.max_s:
        return f"time limit of {sampling.max_s:g} s: {len(values)} samples, interval half width {shown}"
    if len(values) < sampling.min_samples:
        return None
    if half_width is not None and half_width <= sampling.relative_half_width:
        return f"precise: {len(values)} samples, interval half width {shown}"
    if len(values) >= sampling.max_samples:
        return f"most samples: {len(values)} samples, interval half width {shown}"
    return None


def num_next(num_taken: int, spent_s: float, sample_s: float, sampling: Sampling) -> int:
    """Samples to take before deciding again: at least one, no more than the time left and the queue allow."""
    wanted = sampling.min_samples - num_taken
    if wanted <= 0:
        wanted = min(SAMPLES_PER_LOOK, sampling.max_samples - num_taken)
    affordable = int((sampling.max_s - spent_s) / sample_s)
    wanted = min(wanted, max(affordable, FEWEST_SAMPLES - num_taken))
    return max(1, min(wanted, QUEUED_SAMPLES))
