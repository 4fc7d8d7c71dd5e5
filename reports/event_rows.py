"""Events as pages show them: words, links and the lines to copy."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote, urlencode

from benchmarks.harness.records import Verdict
from ci.policy import KnownRegressions
from reports import text
from reports.addresses import series_address
from reports.details import Link
from reports.events import STATES, Event, Spell
from reports.sources import History
from reports.views import raw_links

MARKS = {
    "expired": "‼",
    "new": "▲",
    "confirmed": "▲▲",
    "acknowledged": "◷",
    "fixed": "✓",
    "accepted": "✓",
    "cut": "✂",
}


@dataclass(frozen=True, slots=True)
class SeriesLine:
    name: str  # op, provider and metric
    case: str
    series_href: str  # of its place on the page of series, with the samples of the last night that has it
    href: str  # of the case's place on the page of cases
    change: str  # estimate with interval
    limit: str
    state: str
    mark: str
    nights: str
    reason: str
    owner: str


@dataclass(frozen=True, slots=True)
class EventRow:
    anchor: str
    gpu_model: str
    gpu: str
    state: str
    mark: str
    meaning: str
    is_step: bool
    is_open: bool
    since: str
    since_utc: str
    age: str
    ended: str  # when its last series ended, or empty
    owner: str
    commits: str
    size: str  # of its largest change
    size_pct: float | None
    series: tuple[SeriesLine, ...]
    reproduce: str
    bisect: str  # empty where no range of commits is known
    evidence: tuple[Link, ...]


def event_row(event: Event, history: History, known: KnownRegressions, now: datetime, *, raw: bool) -> EventRow:
    """``now`` has a zone; ``raw``: link the nights' files."""
    series = tuple(_line(event.gpu_model, spell, known) for spell in event.spells)
    worst = event.spells[0].verdict
    ends = [spell.ended for spell in event.spells if spell.ended is not None]
    nights = dict.fromkeys([event.first.id, event.last.id])
    return EventRow(
        anchor=f"{event.first.id}-{text.file_slug(event.gpu_model)}{'-step' if event.is_step else ''}",
        gpu_model=event.gpu_model,
        gpu=text.gpu_name(event.gpu_model),
        state=event.state,
        mark=MARKS[event.state],
        meaning=STATES[event.state],
        is_step=event.is_step,
        is_open=event.is_open,
        since=text.utc(event.first.created_utc),
        since_utc=event.first.created_utc,
        age=text.age(event.first.created_utc, now),
        ended="" if event.is_open else text.utc(max(night.created_utc for night in ends)),
        owner=", ".join(dict.fromkeys(line.owner for line in series if line.owner)) or "nobody yet",
        commits=_commits(event),
        size=series[0].change,
        size_pct=worst.change_pct,
        series=series,
        reproduce=_command("ci reproduce", event.last.id, worst),
        bisect=_command("ci bisect", f"{event.good} {event.bad}", worst) if event.good and event.bad else "",
        evidence=tuple(
            Link(f"night {id_}", link.href) for id_ in nights for link in raw_links(history, id_, raw=raw)[:1]
        ),
    )


def case_address(gpu_model: str, case: str) -> str:
    return f"cases.html#{urlencode({'model': text.file_slug(gpu_model), 'case': case}, quote_via=quote)}"


def change_text(verdict: Verdict) -> str:
    """``+6.0 % (95 %: +5.1 % to +6.9 %)``; the interval where there is one."""
    shown = text.percent(verdict.change_pct, signed=True)
    if verdict.change_low_pct is None or verdict.change_high_pct is None:
        return shown
    low, high = (text.percent(value, signed=True) for value in (verdict.change_low_pct, verdict.change_high_pct))
    return f"{shown} (95 %: {low} to {high})"


def series_name(verdict: Verdict) -> str:
    return f"{verdict.op} {verdict.provider} {verdict.metric}"


def _line(gpu_model: str, spell: Spell, known: KnownRegressions) -> SeriesLine:
    verdict = spell.verdict
    entry = known.entry_for(verdict.key, gpu_model)
    ended = "" if spell.ended is None else f", {spell.state} {text.utc(spell.ended.created_utc)}"
    return SeriesLine(
        name=series_name(verdict),
        case=verdict.case,
        series_href=series_address(
            gpu_model, verdict.case, (verdict.metric, verdict.op, verdict.provider, verdict.contract), spell.last.id
        ),
        href=case_address(gpu_model, verdict.case),
        change=change_text(verdict),
        limit=text.percent(verdict.limit_pct),
        state=spell.state,
        mark=MARKS[spell.state],
        nights=f"{spell.num_nights} night{'' if spell.num_nights == 1 else 's'}{ended}",
        reason="; ".join(part for part in (verdict.reason, verdict.known_reason) if part),
        owner=f"{entry.owner}, until {entry.expires}" if entry else "",
    )


def _commits(event: Event) -> str:
    good = event.good[:10] if event.good else "unknown base"
    return f"after {good}, up to {event.bad[:10] if event.bad else 'an unknown commit'}"


def _command(command: str, what: str, verdict: Verdict) -> str:
    narrowed: Sequence[str] = ("--case", verdict.case, "--op", verdict.op, "--metric", verdict.metric)
    return f"python -m {command} {what} {shlex.join(narrowed)}"
