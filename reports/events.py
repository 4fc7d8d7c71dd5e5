"""Regressions over nights: which series, since when, by which commits, and how each ended. Pure functions.

An *event* is what one range of commits did: all gated series of a GPU model that first regressed in the same night
against the same base. It is open while one of its series still is.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from benchmarks.harness.records import Night, RegressionState, Verdict

State = Literal["expired", "new", "confirmed", "acknowledged", "fixed", "accepted", "cut"]
# What asks for somebody first; the last three are over.
STATES: dict[State, str] = {
    "expired": "an owner took it on, until a day that is past",
    "new": "seen in one night so far",
    "confirmed": "seen again by later data, or exact",
    "acknowledged": "an owner took it on until a given day; fails no night",
    "fixed": "no longer worse than its base",
    "accepted": "an owner accepted a night that has it; later nights are held against that one",
    "cut": "the environment changed, and the series began anew",
}
OVER: frozenset[State] = frozenset({"fixed", "accepted", "cut"})
Key = tuple[str, str, str, str, str]


@dataclass(frozen=True, slots=True)
class Spell:
    """One series, from the first night in which it regressed to the last."""

    first: Night
    last: Night
    verdict: Verdict  # of the last
    num_nights: int  # in which it was judged regressed
    state: State
    ended: Night | None = None  # that ended it

    @property
    def is_open(self) -> bool:
        return self.state not in OVER


@dataclass(frozen=True, slots=True)
class Event:
    gpu_model: str
    first: Night
    good: str | None  # commit of the base that it was held against; None where no readable record says
    bad: str | None  # commit of the first night
    spells: tuple[Spell, ...]  # largest change first
    is_step: bool = False  # told by many nights together, not by the verdicts of one

    @property
    def state(self) -> State:
        """The most urgent of its series'."""
        return min((spell.state for spell in self.spells), key=list(STATES).index)

    @property
    def is_open(self) -> bool:
        return self.state not in OVER

    @property
    def last(self) -> Night:
        return max((spell.last for spell in self.spells), key=lambda night: (night.created_utc, night.id))


def find_events(nights: Sequence[Night], commit_of: Callable[[Night], str | None]) -> list[Event]:
    """Of one GPU model, open ones first, then the newest first.

    Args:
        nights: all of one GPU model, oldest first.
        commit_of: what a night measured.
    """
    by_id = {night.id: night for night in nights}
    groups: dict[tuple[str, str], list[Spell]] = {}
    for spell in _spells(nights):
        groups.setdefault((spell.first.id, spell.first.base_night or ""), []).append(spell)
    events = []
    for (_, base), spells in groups.items():
        spells.sort(key=lambda spell: -abs(spell.verdict.change_pct or 0.0))
        first = spells[0].first
        good = commit_of(by_id[base]) if base in by_id else None
        events.append(Event(first.gpu_model, first, good, commit_of(first), tuple(spells)))
    events.sort(key=lambda event: (event.first.created_utc, event.first.id), reverse=True)
    return sorted(events, key=lambda event: not event.is_open)


def _spells(nights: Sequence[Night]) -> list[Spell]:
    going: dict[Key, Spell] = {}
    over: list[Spell] = []
    for night in nights:
        for verdict in night.verdicts:
            spell = going.get(verdict.key)
            if verdict.gated and verdict.verdict == "regressed":
                first, count = (spell.first, spell.num_nights) if spell else (night, 0)
                going[verdict.key] = Spell(first, night, verdict, count + 1, _open_state(verdict.known))
            elif spell and (how := _end(verdict, spell, night)):
                over.append(Spell(spell.first, spell.last, spell.verdict, spell.num_nights, how, night))
                del going[verdict.key]
    return [*over, *going.values()]


def _open_state(known: RegressionState) -> State:
    return known if known in ("expired", "confirmed", "acknowledged") else "new"


def _end(verdict: Verdict, spell: Spell, night: Night) -> State | None:
    """How this verdict ends a spell; None where it says nothing, as inconclusive, blind, invalid and missing."""
    if verdict.verdict == "new":
        return "cut"
    if verdict.verdict not in ("unchanged", "improved"):
        return None
    # Held against a night that has the regression, it did not get better: somebody accepted that night.
    base = night.base_night or ""
    return "accepted" if spell.last.id == base or (spell.first.id <= base <= spell.last.id) else "fixed"
