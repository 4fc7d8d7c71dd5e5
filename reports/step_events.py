"""Lasting steps as regressions: what no single night is worse enough for, or began before there was a base to tell it.

One step in several series from the same night on is one event, as with verdicts. Where a verdict already tells of a
series from about that night on, the step says nothing new and is left out.
"""

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.harness.records import Night, Verdict
from ci.config import Thresholds
from ci.policy import KnownRegressions
from reports.derive import Series
from reports.events import Event, Spell, State
from reports.pages.timeline import Moment, Timeline
from reports.steps import EXACT, Change, Level, Rule, Segments, step_name

NEAR_NIGHTS = 2  # by so many a step may lie beside the night whose verdict tells of it


@dataclass(frozen=True, slots=True)
class _Step:
    """A lasting change for the worse of one series."""

    line: Timeline
    key: Series
    case: str
    unit: str
    rule: Rule
    change: Change
    levels: Sequence[Level]  # of its environment, oldest first

    @property
    def first(self) -> Moment:
        return self.line.moments[self.change.night]

    @property
    def before(self) -> Level:
        """That it left."""
        return [level for level in self.levels if level.last < self.change.night][-1]

    @property
    def nights(self) -> list[Night]:
        """Of its environment, from its first one on."""
        own = self.first.environment
        return [moment.night for moment in self.line.moments[self.change.night :] if moment.environment == own]

    def _end(self, nights: Sequence[Night]) -> tuple[State, Night] | None:
        """How and when it was over, of its nights; None while it is open."""
        for level in self.levels:
            above = 100 * (level.value / self.before.value - 1)
            if level.first > self.change.night and not (
                self.rule.is_worse(above) and abs(above) >= self.rule.limit_pct
            ):
                return "fixed", self.line.moments[level.first].night
        for night in nights:
            if night.acceptance is not None:
                return "accepted", night
        last = nights[-1].created_utc
        cut = next((moment.night for moment in self.line.moments if moment.night.created_utc > last), None)
        return ("cut", cut) if cut is not None else None

    def spell(self, known: KnownRegressions, gpu_model: str, today: dt.date) -> Spell:
        verdict, nights = self._verdict(), self.nights
        end = self._end(nights)
        if end is not None:
            nights = [night for night in nights if night.created_utc < end[1].created_utc]
            return Spell(self.first.night, nights[-1] if nights else self.first.night, verdict, len(nights), *end)
        said = known.say(verdict.key, gpu_model, "regressed", verdict.change_pct, today=today, seen_before=True)
        state: State = said.state if said.state in ("acknowledged", "expired") else "confirmed"
        return Spell(self.first.night, nights[-1], verdict, len(nights), state)

    def _verdict(self) -> Verdict:
        change = self.change
        return Verdict(
            metric=self.key.metric,
            op=self.key.op,
            provider=self.key.provider,
            case=self.case,
            contract=self.key.contract,
            unit=self.unit,
            verdict="regressed",
            reason=f"a lasting step: {change.nights_before} nights before it, {change.nights_after} after it",
            gated=True,
            change_pct=change.change_pct,
            limit_pct=self.rule.limit_pct,
        )


def step_events(
    line: Timeline,
    found: Mapping[str, Segments],
    thresholds: Thresholds,
    known: KnownRegressions,
    today: dt.date,
    judged: Sequence[Event],
) -> list[Event]:
    """Of one GPU model, the newest first.

    Args:
        found: levels and steps of its series, by ``step_name``.
        judged: events that verdicts tell of.
    """
    groups: dict[int, list[_Step]] = {}
    for step in _steps(line, found, thresholds):
        if not _is_told(step, judged):
            groups.setdefault(step.change.night, []).append(step)
    events = []
    for place, steps in sorted(groups.items(), reverse=True):
        steps.sort(key=lambda step: -abs(step.change.change_pct))
        spells = tuple(step.spell(known, line.model, today) for step in steps)
        good, bad = (_commit(line.moments[at]) for at in (steps[0].before.last, place))
        events.append(Event(line.model, line.moments[place].night, good, bad, spells, is_step=True))
    return events


def _steps(line: Timeline, found: Mapping[str, Segments], thresholds: Thresholds) -> Iterator[_Step]:
    for case, keys in line.keys().items():
        for key in keys:
            segments = found.get(step_name(key, case))
            if segments is None or key.contract in EXACT or not segments.changes:
                continue
            newest = line.newest(case)
            rule = Rule.of(line, case, key, newest.num_requests if newest else 0, thresholds)
            for change in segments.changes if rule.gated else ():
                if rule.is_worse(change.change_pct):
                    environment = line.moments[change.night].environment
                    own = [one for one in segments.levels if line.moments[one.first].environment == environment]
                    measured = line.moments[change.night].processes.line(key, case)
                    yield _Step(line, key, case, measured.unit if measured else "", rule, change, own)


def _is_told(step: _Step, judged: Sequence[Event]) -> bool:
    near = step.line.moments[max(0, step.change.night - NEAR_NIGHTS) : step.change.night + NEAR_NIGHTS + 1]
    ids = {moment.night.id for moment in near}
    key = (step.key.metric, step.key.op, step.key.provider, step.case, step.key.contract)
    return any(spell.first.id in ids and spell.verdict.key == key for event in judged for spell in event.spells)


def _commit(moment: Moment) -> str | None:
    return moment.processes.records[0].subject.commit
