"""The sweep of ``ci tune``: every candidate of a point is checked, then all right ones are timed, round by round."""

from collections.abc import Callable, Sequence
from typing import Protocol

from .checks import first_line
from .harness.errors import ContextLostError, MeasurementError
from .harness.stats.summary import Summary
from .tuning_journal import Candidate, Checked, Closed, Opened, Point, Timed, Trying, TuningJournal, outcomes_of


class WrongError(Exception):
    """The candidate's results differ from the float64 reference, or it wrote what it must not."""


class Workbench(Protocol):
    """One point on a device."""

    incumbent: Candidate
    candidates: Sequence[Candidate]
    forms: Sequence[str]

    def check(self, candidate: Candidate) -> str:
        """A digest of the bits that it computes; raises WrongError, or whatever compiling and running raise."""

    def measure(self, candidate: Candidate) -> Summary:
        """Device time of one call in us; raises MeasurementError."""

    def why_lost(self) -> str | None:
        """Why the device can no longer be used by this process; None while it can."""


def sweep(
    points: Sequence[Point],
    open_bench: Callable[[Point], Workbench],
    journal: TuningJournal,
    num_rounds: int,
    say: Callable[[str], None],
) -> None:
    """Find everything about every point that the journal does not know yet.

    Candidates are timed ``num_rounds`` times, forwards and backwards in turn, so that a card that drifts favours none.

    Raises:
        ContextLostError: a candidate broke the CUDA context; it is noted, and another process can go on.
    """
    for number, point in enumerate(points, start=1):
        if point.name in journal.found.closed:
            say(f"[{number}/{len(points)}] {point.name}: finished by an earlier process")
            continue
        bench = open_bench(point)
        _sweep_point(point, bench, journal, num_rounds)
        del bench  # its memory, before the next one's
        outcomes = outcomes_of(journal.found, point.name)
        timed = [(outcome.us, str(outcome.candidate)) for outcome in outcomes if outcome.us is not None]
        best = f"best {min(timed)[0]:.2f} us, {min(timed)[1]}" if timed else "none is right"
        say(f"[{number}/{len(points)}] {point.name}: {len(timed)} of {len(outcomes)} candidates timed; {best}")


def _sweep_point(point: Point, bench: Workbench, journal: TuningJournal, num_rounds: int) -> None:
    found, name = journal.found, point.name
    journal.add(Opened(point, bench.incumbent, list(bench.candidates), list(bench.forms)))
    for candidate in bench.candidates:
        if (name, candidate.key) not in found.checked:
            journal.add(Trying(name, candidate.key))
            journal.add(_checked(name, bench, candidate))
            _require_context(name, bench, journal, candidate)
    for number in range(num_rounds):
        for candidate in list(bench.candidates)[:: -1 if number % 2 else 1]:
            key = candidate.key
            if found.checked[name, key].status == "right" and (name, key, number) not in found.timed:
                journal.add(Trying(name, key))
                journal.add(_timed(name, bench, candidate, number))
                _require_context(name, bench, journal, candidate)
    journal.add(Closed(name))


def _checked(name: str, bench: Workbench, candidate: Candidate) -> Checked:
    try:
        return Checked(name, candidate.key, "right", bits=bench.check(candidate))
    except WrongError as error:
        return Checked(name, candidate.key, "wrong", first_line(error))
    except Exception as error:
        # Whatever a kernel or its compiler raises costs this candidate, not the sweep.
        return Checked(name, candidate.key, "failed", f"{type(error).__name__}: {first_line(error)}")


def _timed(name: str, bench: Workbench, candidate: Candidate, number: int) -> Timed:
    try:
        summary = bench.measure(candidate)
    except MeasurementError as error:
        return Timed(name, candidate.key, number, None, reason=first_line(error))
    except Exception as error:
        return Timed(name, candidate.key, number, None, reason=f"{type(error).__name__}: {first_line(error)}")
    return Timed(name, candidate.key, number, summary.median, summary.low, summary.high)


def _require_context(name: str, bench: Workbench, journal: TuningJournal, candidate: Candidate) -> None:
    if lost := bench.why_lost():
        journal.add(Checked(name, candidate.key, "failed", f"lost the CUDA context: {lost}"))
        raise ContextLostError(f"{name}: {candidate}: {lost}")
