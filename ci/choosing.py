"""Which candidate each batch gets: the quickest, but today's where that is as quick, and equal bits at all batches."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from benchmarks.tuning_journal import Candidate, Outcome, Point

MARGIN_PCT = 1.0
"""Candidates this close are equally quick, as are those whose intervals meet: medians of one kernel in two processes
differ by up to half a percent (docs/measuring.md), and a row that changes for less would change back."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A point and what is known of its candidates, simplest form first."""

    point: Point
    incumbent: Candidate
    outcomes: Sequence[Outcome]

    @property
    def timed(self) -> dict[str, Outcome]:
        """By key, the candidates that may be chosen."""
        return {outcome.candidate.key: outcome for outcome in self.outcomes if outcome.us is not None}

    def only(self, forms: Collection[str]) -> "Tried":
        """The same with candidates of some forms alone."""
        outcomes = [outcome for outcome in self.outcomes if outcome.candidate.form in forms]
        return Tried(self.point, self.incumbent, outcomes)


@dataclass(frozen=True, slots=True)
class Choice:
    """What a point gets.

    Attributes:
        best: the quickest of all, whatever its bits.
        why: why the chosen one is not the best; empty where it is.
    """

    chosen: Outcome
    best: Outcome
    why: str


def choose_form(tried: Sequence[Tried], allowed: Sequence[str]) -> str | None:
    """The form for all points of one op and state dtype; None where none is right at all of them.

    That which loses least against the best of each point; of nearly equal ones today's, then the simplest.
    """
    usable = [narrowed for one in tried if (narrowed := one.only(allowed)).timed]
    forms = dict.fromkeys(outcome.candidate.form for one in usable for outcome in one.outcomes)
    losses = {
        form: _loss([_quickest_us(one.only([form])) / _quickest_us(one) for one in usable])
        for form in forms
        if all(one.only([form]).timed for one in usable)
    }
    near = [form for form, loss in losses.items() if loss <= min(losses.values()) * (1 + MARGIN_PCT / 100)]
    today = [form for form in near if all(one.incumbent.form == form for one in usable)]
    return next(iter(today or near), None)


def _quickest_us(tried: Tried) -> float:
    return min(map(_us, tried.timed.values()))


def _loss(ratios: Sequence[float]) -> float:
    """Geometric mean of times over the best ones."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def choose(tried: Sequence[Tried], *, any_bits: bool = False) -> tuple[dict[str, Choice], str]:
    """A choice for each point (by name) of one op, state dtype and window; and a warning, or "".

    The bits of a request must not depend on the batch it is in, so the chosen ones of all points gave the same bits at
    every point where they were compared. Of all such sets the one that loses least against the best of each point is
    taken. A point without a right candidate gets none.

    Args:
        any_bits: let each point have its best, whatever the bits.
    """
    usable = [one for one in tried if one.timed]
    if not usable:
        return {}, ""
    if not any_bits:
        families = _families(usable)
        if families:
            family = _best_family(usable, families)
            return {one.point.name: _choose_one(one, family) for one in usable}, ""
    choices = {one.point.name: _choose_one(one, one.timed.keys()) for one in usable}
    warning = "" if any_bits else "no candidate is right for all batches: bits may depend on the batch"
    return choices, warning


def _families(tried: Sequence[Tried]) -> list[list[str]]:
    """Sets of candidates with equal bits wherever they were compared, each named by one that is right at all points."""
    bits = [{key: outcome.bits for key, outcome in one.timed.items()} for one in tried]
    seeds = [key for key in bits[0] if all(key in found for found in bits)]
    families = []
    for seed in seeds:
        keys = dict.fromkeys(key for found in bits for key in found)
        families.append([key for key in keys if all(found.get(key, found[seed]) == found[seed] for found in bits)])
    return [family for number, family in enumerate(families) if family not in families[:number]]


def _best_family(tried: Sequence[Tried], families: Sequence[Sequence[str]]) -> Sequence[str]:
    """That with the least geometric mean of times over the best ones; of nearly equal ones today's, then the first."""

    def loss(family: Sequence[str]) -> float:
        return _loss(
            [min(_us(one.timed[key]) for key in family if key in one.timed) / _quickest_us(one) for one in tried]
        )

    losses = [loss(family) for family in families]
    near = [
        family for family, value in zip(families, losses, strict=True) if value <= min(losses) * (1 + MARGIN_PCT / 100)
    ]
    today = [family for family in near if all(one.incumbent.key in family for one in tried)]
    return (today or near)[0]


def _choose_one(tried: Tried, allowed: Collection[str]) -> Choice:
    """Of the allowed candidates: today's where it is as quick as the quickest, else the first form that is."""
    outcomes = list(tried.timed.values())
    best = min(outcomes, key=_us)
    among = [outcome for outcome in outcomes if outcome.candidate.key in allowed]
    quickest = min(among, key=_us)
    near = [outcome for outcome in among if _is_as_quick(outcome, quickest)]
    today = [outcome for outcome in near if outcome.candidate.key == tried.incumbent.key]
    if today:
        return Choice(today[0], best, "" if today[0] is best else "as quick, and in the table")
    form = near[0].candidate.form
    chosen = min((outcome for outcome in near if outcome.candidate.form == form), key=_us)
    if chosen is best:
        return Choice(chosen, best, "")
    return Choice(chosen, best, "as quick, and simpler" if quickest is best else "the same bits at every batch")


def _is_as_quick(outcome: Outcome, quickest: Outcome) -> bool:
    meets = outcome.low_us is not None and quickest.high_us is not None and outcome.low_us <= quickest.high_us
    return meets or _us(outcome) <= _us(quickest) * (1 + MARGIN_PCT / 100)


def _us(outcome: Outcome) -> float:
    assert outcome.us is not None
    return outcome.us
