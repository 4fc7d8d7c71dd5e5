"""What stores hold of one GPU model, as published tables ask for it: several series of one night at a time."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.cases import BenchCase
from ci.exits import Exit, MissingDataError
from reports.derive import Processes, Series
from reports.sources import History

Asked = tuple[str, str, BenchCase]  # provider, op, case


@dataclass(frozen=True, slots=True)
class Found:
    """Medians over processes in µs, in the order asked for, all of one night."""

    us: tuple[float, ...]
    night: str


class Recorded:
    """The nights of one GPU model, the newest first; those judged invalid are left out: nobody should believe them."""

    def __init__(self, history: History, gpu_model: str) -> None:
        self.gpu_model = gpu_model
        nights = [night for night in reversed(history.of(gpu_model)) if night.exit_code != Exit.INVALID]
        self._nights = [(night.id, history.processes(night)) for night in nights]

    def of(self, *asked: Asked) -> Found | None:
        """From the newest night that has all of them; None where none has."""
        for night, processes in self._nights:
            values = [_median(processes, one) for one in asked]
            known = tuple(value for value in values if value is not None)
            if len(known) == len(asked):
                return Found(known, night)
        return None


def choose_gpu(history: History, pattern: str) -> str:
    """The only GPU model with a night that fits the glob. Raises MissingDataError that names those there are."""
    from benchmarks.patterns import matches

    models = [model for model in history.gpu_models() if matches(model, pattern)]
    if len(models) != 1:
        known = ", ".join(history.gpu_models()) or "none"
        raise MissingDataError(f"--gpu-model: expected one with a night, of {known}, got {pattern!r}")
    return models[0]


def _median(processes: Processes, asked: Asked) -> float | None:
    provider, op, case = asked
    values: Sequence[float] = processes.figure(Series("device_us", op, provider, "graph-cold"), case.name).values
    return statistics.median(values) if values else None
