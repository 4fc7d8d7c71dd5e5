"""Is anything wrong, since when, and can it be believed? The newest night of each GPU model in one screen."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from benchmarks.harness.records import Night, Verdict
from ci.config import load_thresholds
from reports import derive, text
from reports.addresses import series_address
from reports.cases import VERDICT_MARKS
from reports.derive import Processes
from reports.event_rows import EventRow, change_text, series_name
from reports.pages.page import Content, Page, Site
from reports.targets import target_of
from reports.tiles import Tile
from reports.views import ModelView

STALE_AFTER = timedelta(hours=36)
MIN_NIGHTS = 5  # before tonight, whose range a control is held against
NIGHTS_LOOKED_AT = 30
BEYOND_PCT = 0.5  # by which a control may leave its range, as those of sound processes do (docs/measuring.md)
MAX_LISTED = 8
HEADS = {  # the series that a tile leads to
    "verify_overhead": derive.VERIFY,
    "commit": derive.COMMIT,
    "memory": derive.SAVED_PCT,
    "step_overhead": derive.STEP,
}


@dataclass(frozen=True, slots=True)
class Headline:
    tile: Tile
    target: str  # in words, or that there is none
    met: bool | None  # None without a target or a figure
    href: str  # of the series that it is made of, with the raw samples of the night


@dataclass(frozen=True, slots=True)
class VerdictTile:
    mark: str
    name: str
    number: int
    href: str


@dataclass(frozen=True, slots=True)
class ListedSeries:
    name: str
    case: str
    href: str
    change: str


@dataclass(frozen=True, slots=True)
class ControlLine:
    """One control of the newest night: what plain memory or arithmetic reached on the card."""

    name: str
    rate: str
    has_past: bool
    past: str  # range of nights before it, or why there is none
    drift: str  # largest between the two ends of a process
    problem: str  # empty where it is as ever


@dataclass(frozen=True, slots=True)
class TodayModel:
    model: ModelView
    is_stale: bool  # when the page was built
    stale_utc: str  # when it becomes so
    age: str
    headlines: tuple[Headline, ...]
    verdicts: tuple[VerdictTile, ...]
    regressions: tuple[EventRow, ...]  # open ones
    improvements: tuple[ListedSeries, ...]
    more_improvements: int
    environment: str  # what changed since the night before it
    controls: tuple[ControlLine, ...]

    @property
    def control_state(self) -> tuple[str, str]:
        """Word and tone."""
        if any(line.problem for line in self.controls):
            return "✕ not as ever", "bad"
        return ("✓ as ever", "good") if any(line.has_past for line in self.controls) else ("no history yet", "")


@dataclass(frozen=True, slots=True)
class TodayView:
    gpus: tuple[TodayModel, ...]
    others: tuple[TodayModel, ...]  # CPU and architectures compiled for
    red: tuple[ModelView, ...]  # whose last night did not pass
    damaged: tuple[str, ...]
    newest: int | None  # nights of each GPU model that this is made of; None for all
    stale_hours: int = int(STALE_AFTER.total_seconds() // 3600)


def load(site: Site) -> Content:
    red = tuple(view for view in site.models if view.newest.red)
    models = [_today(site, view) for view in site.models]
    gpus = tuple(models[: len(site.gpus)])
    return Content(TodayView(gpus, tuple(models[len(gpus) :]), red, tuple(site.history.damaged), site.newest))


PAGE = Page(
    "index", "Today", "Is anything wrong, since when, because of what, and can it be believed?", load, ("today.js",)
)


def _today(site: Site, view: ModelView) -> TodayModel:
    nights = site.history.of(view.model)
    night = nights[-1]
    stale = datetime.fromisoformat(night.created_utc) + STALE_AFTER
    better = [item for item in night.verdicts if item.gated and item.verdict == "improved"]
    better.sort(key=lambda item: -abs(item.change_pct or 0.0))
    return TodayModel(
        model=view,
        is_stale=site.now > stale,
        stale_utc=f"{stale:%Y-%m-%dT%H:%M:%SZ}",
        age=text.age(night.created_utc, site.now),
        headlines=tuple(_headline(tile, view) for tile in view.tiles),
        verdicts=tuple(_verdict_tiles(view, night)),
        regressions=tuple(row for row in site.events if row.is_open and row.gpu_model == view.model),
        improvements=tuple(_listed(night, item) for item in better[:MAX_LISTED]),
        more_improvements=max(0, len(better) - MAX_LISTED),
        environment=_environment(site, nights),
        controls=tuple(_controls(site, nights)),
    )


def _headline(tile: Tile, view: ModelView) -> Headline:
    return Headline(
        tile, *_target(tile, view), series_address(view.model, view.selected, HEADS[tile.key], view.night.id)
    )


def _target(tile: Tile, view: ModelView) -> tuple[str, bool | None]:
    target = target_of(tile.key, view.selected, view.model)
    if target is None:
        return "no target is set", None
    shown = text.percent(target.at_most, signed=True) if target.unit == "pct" else f"{target.at_most:g}{text.NBSP}µs"
    met = None if tile.number is None else tile.number <= target.at_most
    word = {True: "✓ met", False: "✕ missed", None: "no figure"}[met]
    return f"target at most {shown}: {word}", met


def _verdict_tiles(view: ModelView, night: Night) -> list[VerdictTile]:
    """Blind and missing are told even where there are none: their absence is news."""
    counts = {"regressed": 0, "missing": 0, "blind": 0} | derive.verdict_counts(night.verdicts)
    tiles = []
    for name in derive.VERDICT_ORDER:
        if name in counts:
            where = f"regressions.html#gpu={view.slug}" if name == "regressed" else f"cases.html#model={view.slug}"
            filtered = "" if name == "regressed" else f"&verdict={name}"
            tiles.append(VerdictTile(VERDICT_MARKS[name], name, counts[name], where + filtered))
    return tiles


def _listed(night: Night, verdict: Verdict) -> ListedSeries:
    series = (verdict.metric, verdict.op, verdict.provider, verdict.contract)
    where = series_address(night.gpu_model, verdict.case, series, night.id)
    return ListedSeries(series_name(verdict), verdict.case, where, change_text(verdict))


def _environment(site: Site, nights: Sequence[Night]) -> str:
    known = [
        processes.records[0].environment
        for night in nights[-2:]
        if (processes := site.history.processes(night)).records
    ]
    if len(known) < 2:
        return "no night before it to compare with" if len(nights) < 2 else "not known: a night has no readable record"
    changes = derive.environment_changes(*known)
    return "; ".join(changes) if changes else "as in the night before"


def _controls(site: Site, nights: Sequence[Night]) -> list[ControlLine]:
    tonight = site.history.processes(nights[-1])
    if not tonight.records:
        return []
    key = tonight.records[0].environment.cut_key(host=False)
    past = [site.history.processes(night) for night in nights[-1 - NIGHTS_LOOKED_AT : -1]]
    past = [item for item in past if item.records and item.records[0].environment.cut_key(host=False) == key]
    limit = load_thresholds().statistics.drift_limit_pct
    names = dict.fromkeys(control.name for record in tonight.records for control in record.controls)
    return [_control(name, tonight, past, limit) for name in names]


def _control(name: str, tonight: Processes, past: Sequence[Processes], limit_pct: float) -> ControlLine:
    rate = _rate(tonight, name)
    before = [value for item in past if (value := _rate(item, name)) is not None]
    drifts = [record.drift_pct[name] for record in tonight.records if name in record.drift_pct]
    worst = max(drifts, key=abs, default=None)
    problems = []
    if rate is not None and len(before) >= MIN_NIGHTS and _is_beyond(rate, before):
        problems.append("outside the range of the nights before")
    if worst is not None and abs(worst) > limit_pct:
        problems.append(f"a process drifted by more than {text.percent(limit_pct)}")
    return ControlLine(
        name=name,
        rate=_shown(rate),
        has_past=len(before) >= MIN_NIGHTS,
        past=f"{_shown(min(before))} to {_shown(max(before))}, {len(before)} nights"
        if len(before) >= MIN_NIGHTS
        else f"{len(before)} of the {MIN_NIGHTS} nights needed",
        drift=text.percent(worst, signed=True) if worst is not None else "not recorded",
        problem="; ".join(problems),
    )


def _is_beyond(rate: float, before: Sequence[float]) -> bool:
    """Whether it left their range by more than the ends of a range of so few nights may move by."""
    slack = BEYOND_PCT / 100
    return not min(before) * (1 - slack) <= rate <= max(before) * (1 + slack)


def _rate(processes: Processes, name: str) -> float | None:
    """Bytes per second of a stream, microseconds of arithmetic in registers; the median over processes."""
    controls = [c for record in processes.records for c in record.controls if c.name == name and c.when == "start"]
    rates = [control.median_us if name == "fma" else control.bytes_per_s for control in controls]
    return statistics.median(rates) if rates else None


def _shown(rate: float | None) -> str:
    if rate is None:
        return text.MISSING
    return f"{text.number(rate / 1e12, 3)}{text.NBSP}TB/s" if rate > 1e9 else text.value_with_unit(rate, "us")
