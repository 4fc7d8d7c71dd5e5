"""Any two measurements beside each other: nights, commits, environments or GPUs, series by series.

A side is a list of processes: a night's, or those that one backfill took of one commit. Which two, and what differs
between them, is worked out by the page's script; each side has a data file with its values.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.harness.records import Night
from benchmarks.harness.stats.distributions import t_quantile
from ci.config import load_thresholds
from reports import derive, details, text
from reports.pages.page import Content, Data, Page, Part, Site
from reports.pages.timeline import model_name
from reports.process import Key, Line, Process
from reports.views import raw_links

MAX_FREEDOM = 100  # beyond it Student's quantile is taken as it is there: a little wider than it need be
DIGITS = 7  # significant ones of a value, more than any instrument here has


@dataclass(frozen=True, slots=True)
class Side:
    """``key`` names it in the address: ``night:ID`` or ``backfill:ID:COMMIT``."""

    key: str
    model: str
    what: str  # for people: when, and what was measured
    case_set: str
    records: Sequence[Process]
    environment: int  # of its model, in order of first appearance
    night: Night | None = None

    @property
    def slug(self) -> str:
        return text.file_slug(self.model)

    @property
    def file(self) -> str:
        return f"{self.slug}/values/{text.file_slug(self.key.partition(':')[2])}"

    @property
    def commit(self) -> str:
        subject = self.records[0].subject
        return text.short_commit(subject.commit, subject.dirty)


@dataclass(frozen=True, slots=True)
class CompareView:
    """``groups``: headings of a choice, each with addresses and labels, newest first."""

    groups: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    first: tuple[str, str]  # A and B where the address names none


@dataclass(slots=True)
class Choices:
    """What can be chosen; ``stands_for``: the key of the side that an address means."""

    groups: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    stands_for: dict[str, str] = field(default_factory=dict)

    def add(self, heading: str, address: str, label: str, side: Side) -> None:
        if address not in self.stands_for:
            self.stands_for[address] = side.key
            self.groups.setdefault(heading, []).append((address, label))


def load(site: Site) -> Content:
    sides = sides_of(site)
    if len(sides) < 2:
        return Content(missing=f"Two measurements are needed; {len(sides) or 'none'} with a readable record is here.")
    choices = _choices(sides)
    groups = tuple((heading, tuple(options)) for heading, options in choices.groups.items())
    return Content(CompareView(groups, first_sides(sides)), data=_data(site, sides, choices))


PAGE = Page(
    "compare",
    "Compare",
    "What is different between any two nights, commits, environments or GPUs, and how sure is that?",
    load,
    ("numbers.js", "tables.js", "compare.js"),
)


def sides_of(site: Site) -> list[Side]:
    """Every night with a readable record and every commit of a backfill; model by model, oldest first."""
    found: list[Side] = []
    for view in site.models:
        line = site.timeline(view.model)
        found += [
            Side(
                key=f"night:{moment.night.id}",
                model=view.model,
                what=f"night of {text.utc(moment.night.created_utc)}",
                case_set=moment.night.case_set,
                records=moment.processes.records,
                environment=moment.environment,
                night=moment.night,
            )
            for moment in line.moments
        ]
        keys = [environment.cut_key(host=False) for environment in line.environments]
        found += _backfilled(view.model, site.history.records.values(), keys)
    return found


def _backfilled(model: str, records: Iterable[Process], environments: list[tuple[Any, ...]]) -> list[Side]:
    groups: dict[tuple[str, str], list[Process]] = {}
    for record in sorted(records, key=lambda record: record.created_utc):
        if record.backfill is not None and record.subject.commit and record.environment.gpu_model == model:
            groups.setdefault((record.backfill, record.subject.commit), []).append(record)
    sides = []
    for (backfill, commit), own in groups.items():
        cut = own[0].environment.cut_key(host=False)
        if cut not in environments:
            environments.append(cut)
        key, what = f"backfill:{backfill}:{commit}", f"backfill of {text.utc(own[0].created_utc)}"
        sides.append(Side(key, model, what, own[0].case_set, own, environments.index(cut)))
    return sides


def _choices(sides: Sequence[Side]) -> Choices:
    choices = Choices()
    newest = sides[::-1]
    for side in newest:
        label = f"{_name(side)}, {side.what.partition(' of ')[2]}, {side.case_set}, {side.commit}"
        choices.add("Nights" if side.night else "Backfills, commits in turn on one card", side.key, label, side)
    for side in newest:
        if commit := side.records[0].subject.commit:
            label = f"{_name(side)}, commit {side.commit}"
            choices.add("Commits, newest measurement", f"commit:{commit}:{side.slug}", label, side)
    for side in newest:
        address = f"environment:{side.slug}:{side.environment}"
        facts = side.records[0].environment
        label = f"{_name(side)}, driver {facts.driver or 'unknown'}, torch {facts.torch}, harness {facts.harness}"
        choices.add("Environments, newest measurement", address, f"{label} (no. {side.environment + 1})", side)
    return choices


def first_sides(sides: Sequence[Side]) -> tuple[str, str]:
    """The night that other pages show of the first model, and the one before it: of the same set and all its cases,
    else of the same set, if there is one.
    """
    own = [side for side in sides if side.model == sides[0].model]
    shown = derive.shown_night([side.night for side in own if side.night is not None])
    place = next((place for place, side in enumerate(own) if side.night is shown), len(own) - 1)
    b, before = own[place], own[:place] or [side for side in sides if side is not own[place]]
    alike = [side for side in before if side.case_set == b.case_set]
    whole = [side for side in alike if side.night is None or not side.night.is_part]
    return (whole or alike or before)[-1].key, b.key


def _name(side: Side) -> str:
    return model_name(side.model, is_static=side.night is not None and side.night.is_static)


def _data(site: Site, sides: Sequence[Side], choices: Choices) -> Iterator[Data | Part]:
    thresholds = load_thresholds()
    yield (
        "compare",
        {
            "t975": [round(t_quantile(0.975, freedom), 4) for freedom in range(1, MAX_FREEDOM + 1)],
            "stands_for": choices.stands_for,
            "sides": {side.key: _facts(site, side) for side in sides},
        },
    )
    for slug in dict.fromkeys(side.slug for side in sides):
        own = [side for side in sides if side.slug == slug]
        lines = lines_of(own)
        places = {key: place for place, key in enumerate(lines)}
        better = {key: thresholds.limits_for(key, gpu_model=own[0].model).better for key in lines}
        yield f"{slug}/keys", [[*key, line.unit, better[key]] for key, line in lines.items()]
        told = hashlib.sha256(repr(list(lines)).encode()).digest()
        for side in own:
            inputs = b"".join([told, *(record.source for record in side.records)])
            yield Part(f"compare/{side.file}", inputs, _values_file(side, places))


def lines_of(sides: Sequence[Side]) -> dict[Key, Line]:
    """Every series of any of these, in order of their keys."""
    shapes = {id(record.columns.shape): record.columns.shape for side in sides for record in side.records}
    found = {line.key: line for shape in shapes.values() for line in shape.lines}
    return dict(sorted(found.items()))


def _values_file(side: Side, places: dict[Key, int]) -> Iterator[Data]:
    yield side.file, values_of(side.records, places)


def values_of(records: Sequence[Process], places: dict[Key, int]) -> list[list[Any]]:
    """Of each series its place among all, and the value of each process that has a valid one."""
    found: dict[int, list[Any]] = {}
    for record in records:
        for line, exact in record.columns.ok():
            place = places[line.key]
            value = exact if exact == int(exact) else float(f"{exact:.{DIGITS}g}")
            found.setdefault(place, [place]).append(value)
    return [found[place] for place in sorted(found)]


def _facts(site: Site, side: Side) -> dict[str, Any]:
    identity = side.night.id if side.night else ""
    cards = dict.fromkeys(text.short_hash(record.silicon.gpu_uuid) for record in side.records)
    return {
        "file": side.file,
        "slug": side.slug,
        "night": identity,
        "name": _name(side),
        "what": side.what,
        "case_set": side.case_set,
        "commit": side.commit,
        "hash": side.records[0].subject.commit,
        "processes": len(side.records),
        "cards": ", ".join(cards),
        "environment": dict(details.environment_items(side.records[0].environment)),
        "raw": [link.href for link in raw_links(site.history, identity, raw=site.raw)]
        if identity
        else [link.href for record in side.records for link in raw_links(site.history, record.id, raw=site.raw)],
    }
