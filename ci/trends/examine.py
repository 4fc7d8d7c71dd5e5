"""What the nights of one GPU model say together: lasting steps, a first night out of line, slow creep.

A single night is never an alarm here. A step is, once several nights carry it; a first night out of line starts a
confirmation, a gate between the commits of two nights; and once a week the newest nights are held against those of a
pinned one, which steps too small for anything else add up against.
"""

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.harness.records import Night
from benchmarks.harness.stats.change_point import Step, Surprise, steps, surprise, to_confirm
from benchmarks.harness.stats.verdict import Judgement, Limits, Series, judge_night
from ci.config import Key
from ci.exits import Exit
from ci.policy import Policy

from .series import Measured, NightlySeries, Point, environment, nightly_series

RECENT_NIGHTS = 10  # a step further back is history: it was told when it was new
WEEK_NIGHTS = 7  # of either side of the weekly comparison
NEAR_NIGHTS = 2  # by so many a step may move when another night is known


@dataclass(frozen=True, slots=True)
class Change:
    """A lasting step of one series.

    Attributes:
        before, after: the last night of the old level and the first of the new one.
        is_new: tonight is the night that carries it.
        known: what ci/known-regressions.toml says of it; empty without an entry.
    """

    key: Key
    step: Step
    is_worse: bool
    before: Point
    after: Point
    gated: bool
    is_new: bool
    known: str = ""

    @property
    def is_alarm(self) -> bool:
        """Whether it fails the night: once, when it is new."""
        return self.is_worse and self.gated and self.is_new and not self.known

    def __str__(self) -> str:
        how = "worse" if self.is_worse else "better"
        since = f"since night {self.after.night} ({_commits(self.before, self.after)})"
        known = f"; known: {self.known}" if self.known else ""
        by = f"{self.step.change_pct:+.1f} % {since}, {self.step.nights_after} nights"
        return f"{'/'.join(self.key)}: {how}, {by}{known}"


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Tonight's value of one series out of line with the nights before, for the worse."""

    key: Key
    surprise: Surprise
    before: Point
    tonight: Point

    @property
    def can_be_confirmed(self) -> bool:
        """Whether there are two different codes to hold against each other."""
        known = self.before.commit is not None and self.tonight.commit is not None
        return known and self.before.source_hash != self.tonight.source_hash

    def __str__(self) -> str:
        s = self.surprise
        return f"{'/'.join(self.key)}: {s.shift_pct:+.1f} % against {s.nights} nights before (z {s.z:.1f})"


@dataclass(frozen=True, slots=True)
class Creep:
    """The newest nights of one series, worse than those of the pinned night."""

    key: Key
    judgement: Judgement
    gated: bool
    known: str = ""

    @property
    def is_alarm(self) -> bool:
        return self.gated and not self.known

    def __str__(self) -> str:
        known = f"; known: {self.known}" if self.known else ""
        return f"{'/'.join(self.key)}: {self.judgement.reason}{known}"


@dataclass(slots=True)
class Trends:
    """What came of it; ``family``: how many series tonight was looked at in."""

    gpu_model: str
    night: str
    num_nights: int = 0
    series: list[NightlySeries] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    suspicions: list[Suspicion] = field(default_factory=list)
    family: int = 0
    pinned: str | None = None  # the night that tonight's week was held against; None where that was not done
    creep: list[Creep] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def alarms(self) -> list[str]:
        """What fails the night, each a sentence."""
        crept = [f"{one}, against the pinned night {self.pinned}" for one in self.creep if one.is_alarm]
        return [str(change) for change in self.changes if change.is_alarm] + crept

    @property
    def code(self) -> Exit:
        return Exit.REGRESSED if self.alarms else Exit.PASS


def examine(nights: Sequence[Measured], policy: Policy, pinned: str | None = None) -> Trends:
    """Look at the newest of these nights, which are of one GPU model and in order of time.

    Args:
        pinned: id of the night that releases are held against; with those before it, it is among ``nights``.
    """
    newest = nights[-1].night
    found = Trends(newest.gpu_model, newest.id, len(nights))
    if newest.exit_code == Exit.INVALID:  # it says nothing of the nights before
        return found
    if not nights[-1].records:
        found.notes.append(f"trends: no record of night {newest.id} can be read, so nothing is said of it")
        return found
    found.series = nightly_series(nights, policy)
    look = _Look(found, policy, dt.date.fromisoformat(newest.created_utc[:10]))
    look.for_steps()
    look.for_a_first_night()
    if pinned is not None and is_first_of_week(nights):
        look.for_creep(pinned)
    found.notes += _tell(found)
    return found


@dataclass(slots=True)
class _Look:
    """One examination on its way."""

    found: Trends
    policy: Policy
    today: dt.date
    levels: dict[Key, int] = field(default_factory=dict)  # where the current level of a series begins

    def limits(self, one: NightlySeries) -> Limits:
        thresholds = self.policy.thresholds
        return thresholds.limits_for(one.key, num_requests=one.num_requests, gpu_model=self.found.gpu_model)

    def known(self, key: Key, change_pct: float | None) -> str:
        """Why it is no alarm, where an owner took it on."""
        said = self.policy.known.say(key, self.found.gpu_model, "regressed", change_pct, today=self.today)
        return said.reason if said.state == "acknowledged" else ""

    def for_steps(self) -> None:
        try:
            for one in self.found.series:
                self.steps_of(one)
        except ModuleNotFoundError as error:
            self.found.notes.append(f"trends: no steps looked for ({error}); elsewhere: python -m ci trends --store S")

    def steps_of(self, one: NightlySeries) -> None:
        thresholds, limits = self.policy.thresholds, self.limits(one)
        row = thresholds.row_for(one.key, num_requests=one.num_requests, gpu_model=self.found.gpu_model)
        limit_pct, _ = thresholds.paired_pct_for(row)
        lasting = steps(one.values, limit_pct)
        before_tonight = steps(one.values[:-1], limit_pct) if lasting else []
        for step in lasting:
            is_worse = (step.change_pct > 0) == (limits.better == "lower")
            is_old = any(abs(step.index - earlier.index) <= NEAR_NIGHTS for earlier in before_tonight)
            change = Change(
                key=one.key,
                step=step,
                is_worse=is_worse,
                before=one.points[step.index - 1],
                after=one.points[step.index],
                gated=limits.gated,
                is_new=not is_old and len(one.points) - step.index <= RECENT_NIGHTS,
                known=self.known(one.key, step.change_pct) if is_worse else "",
            )
            self.found.changes.append(change)
            self.levels[one.key] = step.index

    def for_a_first_night(self) -> None:
        watched = [one for one in self.found.series if self.limits(one).gated]
        surprises = [surprise(one.values, self.levels.get(one.key, 0)) for one in watched]
        self.found.family = sum(found is not None for found in surprises)
        for one, found, asks in zip(watched, surprises, to_confirm(surprises), strict=True):
            if found is not None and asks and (found.shift_pct > 0) == (self.limits(one).better == "lower"):
                self.found.suspicions.append(Suspicion(one.key, found, one.points[-2], one.points[-1]))
        self.found.suspicions.sort(key=lambda one: one.surprise.p)

    def for_creep(self, pinned: str) -> None:
        """Nights against nights: those up to tonight and those up to the pinned one, none of them on both sides."""
        family: list[tuple[NightlySeries, Series]] = []
        for one in self.found.series:
            place = next((at for at, point in enumerate(one.points) if point.night == pinned), None)
            if place is not None:
                baseline = one.values[max(0, place + 1 - WEEK_NIGHTS) : place + 1]
                week = one.values[max(place + 1, len(one.values) - WEEK_NIGHTS) :]
                family.append((one, Series(week, baseline, self.limits(one))))
        if not family:
            self.found.notes.append(
                f"trends: the pinned night {pinned} is in no series of this environment: import it, or pin another"
            )
            return
        self.found.pinned = pinned
        rate = self.policy.thresholds.statistics.false_discovery_rate
        for (one, series), judged in zip(family, judge_night([s for _, s in family], rate=rate), strict=True):
            if judged.verdict == "regressed":
                known = self.known(one.key, judged.change_pct)
                self.found.creep.append(Creep(one.key, judged, series.limits.gated, known))


def is_first_of_week(nights: Sequence[Measured]) -> bool:
    """Whether no night before the newest, of its set and environment, is of the same week (Monday to Sunday, UTC).

    Invalid nights do not count, nor do those of some cases of their set.
    """
    *before, newest = nights
    if newest.night.is_part:
        return False
    same = [
        one.night
        for one in before
        if one.records and one.night.case_set == newest.night.case_set
        if one.night.exit_code != Exit.INVALID and not one.night.is_part
        if environment(one) == environment(newest)
    ]
    return _week(newest.night) not in map(_week, same)


def _week(night: Night) -> tuple[int, int]:
    return dt.date.fromisoformat(night.created_utc[:10]).isocalendar()[:2]


def _tell(found: Trends) -> list[str]:
    """What is no alarm; what is suspected is told as what it is."""
    lines = [f"trends: step: {change}" for change in found.changes if change.is_new and not change.is_alarm]
    for suspicion in found.suspicions:
        how = "to be confirmed" if suspicion.can_be_confirmed else "of the same sources, or of unknown commits"
        lines.append(f"trends: suspected, {how}: {suspicion}")
    if found.pinned is not None:
        lines.append(f"trends: this week against the pinned night {found.pinned}: {len(found.creep)} series worse")
    return lines


def _commits(before: Point, after: Point) -> str:
    if before.commit is None or after.commit is None:
        return "commits unknown"
    if before.commit == after.commit:
        return f"the same commit {after.commit[:12]}"
    return f"commits {before.commit[:12]}..{after.commit[:12]}"
