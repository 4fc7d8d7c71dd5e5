"""The commit kernel over commits: what one commit of all layers takes, of what it is made, and what it is held against.

Points are nights and, apart from them, commits that a backfill measured in turn on one card.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any

from benchmarks.harness.records import Case
from reports import derive, text
from reports.addresses import series_address
from reports.changes import Changelog
from reports.derive import Figure, Processes, Series, full_key
from reports.details import Link
from reports.grid import Grid
from reports.league import League, league_of, rivals
from reports.pages.compare import Side, sides_of
from reports.pages.page import PLOTS, Content, Data, Page, Part, Site
from reports.peers import Peers, read_peers
from reports.views import HEADLINE_CASE, raw_links

PARTS = (
    ("commit", derive.COMMIT),
    ("plan", derive.COMMIT_PLAN),
    ("state", derive.COMMIT_STATE),
    ("conv", derive.CONV),
    ("align", Series("device_us", "align", "recoverssm_align", "graph-cold")),
    ("commit in align mode", Series("device_us", "commit", "recoverssm_align", "graph-cold")),
    ("everybody crossing", Series("device_us", "commit_crossing", "recoverssm_align", "graph-cold")),
    ("deferred commit", Series("device_us", "commit", "recoverssm_deferred", "graph-cold")),
    ("flush", Series("device_us", "flush", "recoverssm_deferred", "graph-cold")),
)
STEPS = (
    ("RecoverSSM", derive.STEP),
    ("deferred commits", Series("device_us", "step", "recoverssm_deferred", "graph-cold")),
    ("full state", derive.FULL_STEP),
)
WORDS = ("commit_state", "commit_plan", "compact_conv", "align_plan", "commit_step", "Align mode")  # of changes


@dataclass(frozen=True, slots=True)
class Point:
    """One side that measured a commit kernel."""

    side: Side
    processes: Processes
    cases: frozenset[str]  # of which a commit has a time

    @property
    def commit(self) -> str | None:
        return self.side.records[0].subject.commit

    @property
    def created_utc(self) -> str:
        return self.side.records[0].created_utc


@dataclass(frozen=True, slots=True)
class Others:
    """Other projects' commits on one GPU model: of its league, or in cases that it lacks those measured by hand."""

    peers: Peers
    league: League | None
    model: str

    def of(self, case: Case) -> Sequence[tuple[str, float, str]]:
        """Title, time in µs and what it covers; by hand at the accepted count of this case, rounded."""
        return list(rivals(self.league, case.name)) or list(self._by_hand(case))

    def _by_hand(self, case: Case) -> Iterator[tuple[str, float, str]]:
        if self.model != self.peers.method.gpu_model:
            return
        for peer in self.peers.peer:
            times = self.peers.of(peer.name, case.name)
            us = times.commit_us.get(round(case.mean_accepted)) if times is not None else None
            if us is not None:
                covers = f"{peer.commit_covers or 'as named'}{', warm' if times and times.warm else ''}"
                yield peer.title, us, f"{covers}, by hand"


@dataclass(frozen=True, slots=True)
class CaseRow:
    """The newest measurement of one case, as the table shows it."""

    case: str
    facts: tuple[str, ...]  # requests, window, accepted, dtype, heads
    commit: str
    href: str
    span: str
    parts: tuple[str, ...]  # as PARTS[1:]
    floor: str
    control: str
    peer: str  # the fastest that is recorded
    step: str  # ours against full state
    when: str
    raw: tuple[Link, ...]  # files of what it was measured in


@dataclass(frozen=True, slots=True)
class CommitModel:
    slug: str
    name: str
    rows: tuple[CaseRow, ...]


@dataclass(frozen=True, slots=True)
class CommitView:
    models: tuple[CommitModel, ...]
    parts: tuple[str, ...]
    first_case: str
    method: str  # of the other projects' figures


def load(site: Site) -> Content:
    peers = read_peers()
    found = {view.model: points_of(site, view.model) for view in site.gpus}
    found = {model: points for model, points in found.items() if points}
    if not found:
        return Content(missing="No night of a GPU has a time of a commit.")
    others = {model: Others(peers, league_of(site.history, model), model) for model in found}
    models = tuple(
        CommitModel(text.file_slug(model), text.gpu_name(model), tuple(_rows(site, points, others[model])))
        for model, points in found.items()
    )
    first = models[0].rows[0].case
    if any(row.case == HEADLINE_CASE for row in models[0].rows):
        first = HEADLINE_CASE
    method = peers.method
    said = f"{text.gpu_name(method.gpu_model)}, {method.date}, {method.environment}; {method.timing}"
    view = CommitView(models, tuple(name for name, _ in PARTS[1:]), first, said)
    return Content(view, data=_data(site, found, others))


PAGE = Page(
    "commit",
    "Commit kernel",
    "What does one commit of all layers take, what is it made of, what changed it, and how far is it from its floor?",
    load,
    ("numbers.js", *PLOTS, "commit.js"),
)


def points_of(site: Site, model: str) -> list[Point]:
    """Nights and commits of backfills in which a commit was timed, oldest commit first, then in order of time.

    A commit whose own time no record says is as old as its first measurement.
    """
    sides = [(side, Processes(side.records)) for side in sides_of(site) if side.model == model]
    points = [Point(side, processes, _timed_cases(processes)) for side, processes in sides]
    timed = [point for point in points if point.cases]
    ages: dict[str, str] = {}
    for point in timed:
        for record in point.side.records:
            name, known = record.subject.commit or record.id, record.subject.commit_utc or record.created_utc
            ages[name] = min(known, ages.get(name, known))
    return sorted(timed, key=lambda point: (ages[point.commit or point.side.records[0].id], point.created_utc))


def _timed_cases(processes: Processes) -> frozenset[str]:
    lines = (line for shape in processes.shapes for line in shape.lines)
    commits = [line for line in lines if line.op == "commit" and line.metric == "device_us"]
    return frozenset(
        line.case
        for line in commits
        if processes.figure(Series(line.metric, line.op, line.provider, line.contract), line.case).n
    )


def at_share(point: Point, case: str, *, control: bool) -> Figure:
    """Byte floor of a commit in µs, or the time of the control of matching bytes: a share of each process's time."""
    times = point.processes.values(derive.COMMIT, case)
    shares = point.processes.values(derive.COMMIT, case, "control_pct" if control else "roofline_pct")
    bounds = [time * share / 100 for time, share in zip(times, shares, strict=True)]
    values = tuple(bound for bound in bounds if not isnan(bound))
    return Figure(values, "" if values else "not recorded")


def _cases(points: Sequence[Point]) -> dict[str, Case]:
    found = {case.name: case for point in points for record in point.side.records for case in record.cases}
    timed = frozenset[str]().union(*(point.cases for point in points))
    return {name: found[name] for name in sorted(timed & set(found), key=text.natural_key)}


def _newest(points: Sequence[Point], case: str) -> Point | None:
    """The last measured point that has a time of this case's commit."""
    late = sorted(points, key=lambda point: point.created_utc, reverse=True)
    return next((point for point in late if point.processes.figure(derive.COMMIT, case).n), None)


def _rows(site: Site, points: Sequence[Point], others: Others) -> Iterator[CaseRow]:
    for name, case in _cases(points).items():
        point = _newest(points, name)
        if point is None:
            continue
        figure = point.processes.figure(derive.COMMIT, name)
        night = point.side.night
        beside = sorted((us, label) for label, us, _ in others.of(case))
        yield CaseRow(
            case=name,
            facts=(
                str(case.num_requests),
                str(case.spec_query_len),
                f"{case.mean_accepted:g}",
                case.state_dtype,
                str(case.num_heads),
            ),
            commit=text.value_with_unit(figure.median, "us"),
            href=series_address(point.side.model, name, derive.COMMIT, night.id) if night else "",
            span=text.span(figure, "us") or "1 process",
            parts=tuple(text.micros(point.processes.figure(series, name).median) for _, series in PARTS[1:]),
            floor=_share(at_share(point, name, control=False), figure),
            control=_share(at_share(point, name, control=True), figure),
            peer=f"{text.micros(beside[0][0])}{text.NBSP}µs, {beside[0][1]}" if beside else text.MISSING,
            step=text.percent(
                point.processes.ratio_pct(derive.STEP, derive.FULL_STEP, name).median, signed=True, digits=1
            ),
            when=f"{point.side.what}, {point.side.commit}",
            raw=_raw(site, point),
        )


def _raw(site: Site, point: Point) -> tuple[Link, ...]:
    """A night's file, or those of the processes of a backfill."""
    night = point.side.night
    ids = [night.id] if night else [record.id for record in point.side.records]
    return tuple(link for id_ in ids for link in raw_links(site.history, id_, raw=site.raw)[:1])


def _share(bound: Figure, figure: Figure) -> str:
    if bound.median is None or not figure.median:
        return text.MISSING
    return f"{text.micros(bound.median)} ({text.percent(100 * bound.median / figure.median, digits=0)})"


def _data(site: Site, found: dict[str, list[Point]], others: dict[str, Others]) -> Iterator[Data | Part]:
    for model, points in found.items():
        slug, cases = text.file_slug(model), _cases(points)
        yield (
            f"{slug}/commit",
            {
                "points": [_point(point) for point in points],
                "changes": _changes(points),
                "cases": [_facts(points, case) for case in cases.values()],
            },
        )
        yield Part(f"commit/{model}", site.inputs(model), _case_files(points, cases.values(), others[model]))


def _case_files(points: Sequence[Point], cases: Iterable[Case], others: Others) -> Iterator[Data]:
    grid = Grid([[record.columns for record in point.processes.records] for point in points])
    for case in cases:
        yield f"{text.file_slug(others.model)}/commit-{text.file_slug(case.name)}", _case(grid, case, others)


def _point(point: Point) -> dict[str, Any]:
    return {
        "commit": point.side.commit,
        "label": f"{point.side.what}, {point.side.case_set}, commit {point.side.commit}",
        "backfill": point.side.night is None,
        "environment": point.side.environment,
        "night": point.side.night.id if point.side.night else "",
    }


def _changes(points: Sequence[Point]) -> list[dict[str, Any]]:
    """Between each two neighbouring commits that were measured; ``entries`` is None where git does not know them."""
    log = Changelog.of(point.commit for point in points)
    firsts = [place for place, point in enumerate(points) if not place or point.commit != points[place - 1].commit]
    return [
        {
            "at": place,
            "from": points[place - 1].side.commit,
            "to": points[place].side.commit,
            "entries": log.gained(points[place - 1].commit, points[place].commit, WORDS),
        }
        for place in firsts[1:]
    ]


def _facts(points: Sequence[Point], case: Case) -> dict[str, Any]:
    newest = _newest(points, case.name)
    return {
        "name": case.name,
        "file": text.file_slug(case.name),
        "B": case.num_requests,
        "T": case.spec_query_len,
        "accepted": case.mean_accepted,
        "dtype": case.state_dtype,
        "heads": case.num_heads,
        "layers": case.num_layers,
        "commit": newest.processes.figure(derive.COMMIT, case.name).median if newest else None,
        "floor": at_share(newest, case.name, control=False).median if newest else None,
    }


def _case(grid: Grid, case: Case, others: Others) -> dict[str, Any]:
    """``grid``: of the processes of each point."""
    lines, steps = (
        {name: grid.by_night(grid.values(full_key(series, case.name))) for name, series in named}
        for named in (PARTS, STEPS)
    )
    commit = full_key(derive.COMMIT, case.name)
    times = grid.values(commit)
    lines["byte floor"] = grid.by_night(times * grid.values(commit, "roofline_pct") / 100)  # as ``at_share``
    lines["control"] = grid.by_night(times * grid.values(commit, "control_pct") / 100)
    return {
        "case": case.name,
        "stands_for": case.stands_for,
        "lines": {name: values for name, values in lines.items() if any(values)},
        "missing": [name for name, values in lines.items() if not any(values)],
        "steps": {name: values for name, values in steps.items() if any(values)},
        "peers": [list(rival) for rival in others.of(case)],
    }
