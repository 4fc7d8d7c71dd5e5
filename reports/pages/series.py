"""One series over all nights: every process, levels and steps between them, what the card was like, raw samples.

One data file per case holds its series; nights and processes stand in the GPU model's timeline, which they refer to.
"""

import itertools
import math
import shlex
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.harness.records import Verdict
from benchmarks.harness.stats.change_point import MIN_PROCESSES, steps
from ci.config import Thresholds, load_thresholds
from reports import text
from reports.derive import COMMIT, Figure, Series
from reports.pages.page import PLOTS, Content, Page, Site
from reports.pages.samples import SHOWN_NIGHTS, cases_of, night_samples
from reports.pages.timeline import INVALID, Timeline, model_name, timeline, timeline_data
from reports.views import HEADLINE_CASE

EXACT = ("exact", "static")


@dataclass(frozen=True, slots=True)
class SeriesView:
    """``models``: slug and name of each model that has a timeline, the GPUs first."""

    models: tuple[tuple[str, str], ...]
    first_case: str = HEADLINE_CASE
    first_series: str = "/".join(COMMIT)
    sample_nights: int = SHOWN_NIGHTS


def load(site: Site) -> Content:
    lines = [timeline(site.history, view.model) for view in site.models]
    lines = [line for line in lines if line.moments]
    if not lines:
        return Content(missing="No night with a readable record is in these stores.")
    names = [model_name(line.model, is_static=line.is_static) for line in lines]
    models = tuple((text.file_slug(line.model), name) for line, name in zip(lines, names, strict=True))
    return Content(SeriesView(models), data=_data(site, lines))


PAGE = Page(
    "series",
    "Series",
    "How has one figure moved night by night, when did it change, and what did single processes and samples say?",
    load,
    ("numbers.js", *PLOTS, "series_charts.js", "series.js"),
)


def _data(site: Site, lines: Sequence[Timeline]) -> Iterator[tuple[str, Any]]:
    thresholds = load_thresholds()
    for line in lines:
        slug, keys = text.file_slug(line.model), line.keys()
        files = {case: text.file_slug(case) for case in keys}
        sampled = set(_sampled(line))
        yield f"{slug}/timeline", {"files": files} | timeline_data(site.history, line, raw=site.raw, sampled=sampled)
        for case, own in keys.items():
            yield f"{slug}/series-{files[case]}", case_series(line, case, own, thresholds)
        for moment in line.moments:
            if moment.night.id in sampled:
                for case, data in night_samples(site.history, moment.night).items():
                    yield f"{slug}/samples/{moment.night.id}/{files[case]}", data


def _sampled(line: Timeline) -> list[str]:
    """Nights whose samples lie on the site: what was only compiled has none."""
    return [] if line.is_static else [moment.night.id for moment in line.moments[-SHOWN_NIGHTS:]]


@dataclass(frozen=True, slots=True)
class Level:
    """Nights between two steps or cuts, by their places in the timeline, and the median of their values."""

    first: int
    last: int
    value: float


@dataclass(frozen=True, slots=True)
class Change:
    """A lasting step, by the place of its first night."""

    night: int
    change_pct: float
    nights_before: int
    nights_after: int


@dataclass(frozen=True, slots=True)
class Segments:
    """``missing`` says why no step was looked for; empty when it was."""

    levels: tuple[Level, ...]
    changes: tuple[Change, ...]
    missing: str = ""


def segments(line: Timeline, figures: Sequence[Figure], limit_pct: float) -> Segments:
    """Levels and steps of one series, environment by environment, as ``ci trends`` finds them.

    A night counts with five processes or more; one that was judged invalid counts for nothing. Values are as
    measured, adjusted by no control.

    Args:
        figures: one per night of the timeline.
        limit_pct: the least change that is a step.
    """
    levels: list[Level] = []
    changes: list[Change] = []
    missing = ""
    for environment in range(len(line.environments)):
        known = [
            (place, value)
            for place, (moment, figure) in enumerate(zip(line.moments, figures, strict=True))
            if moment.environment == environment and moment.night.exit_code != INVALID
            if figure.n >= MIN_PROCESSES and (value := figure.median) is not None and math.isfinite(value) and value > 0
        ]
        try:
            found = steps([value for _, value in known], limit_pct)
        except ModuleNotFoundError as error:
            found, missing = [], f"no steps were looked for: {error}"
        bounds = [0, *(step.index for step in found), len(known)]
        changes += [Change(known[s.index][0], s.change_pct, s.nights_before, s.nights_after) for s in found]
        for start, end in itertools.pairwise(bounds):
            own = known[start:end]
            if own:
                levels.append(Level(own[0][0], own[-1][0], statistics.median(value for _, value in own)))
    return Segments(tuple(levels), tuple(sorted(changes, key=lambda change: change.night)), missing)


def case_series(line: Timeline, case: str, keys: Sequence[Series], thresholds: Thresholds) -> dict[str, Any]:
    """The data file of one case: every series with one value per process of the timeline, None where there is none."""
    verdicts = [
        {Series(v.metric, v.op, v.provider, v.contract): v for v in moment.verdicts_of(case)} for moment in line.moments
    ]
    found = next((item for record in reversed(line.records) for item in record.cases if item.name == case), None)
    num_requests = found.num_requests if found is not None else 0
    rules = [Rule.of(line, case, key, num_requests, thresholds) for key in keys]
    return {
        "case": case,
        "stands_for": found.stands_for if found is not None else "",
        "reproduce": f"python -m ci nightly --set {_newest_set(line, case)} --case {shlex.quote(case)}",
        "series": [
            _series(line, case, key, [own.get(key) for own in verdicts], rule)
            for key, rule in zip(keys, rules, strict=True)
        ],
    }


@dataclass(frozen=True, slots=True)
class Rule:
    """What ``ci/thresholds.toml`` says of a series: the least change that is a step, and which way is better."""

    limit_pct: float
    better: str

    @classmethod
    def of(cls, line: Timeline, case: str, key: Series, num_requests: int, thresholds: Thresholds) -> "Rule":
        full = (key.metric, key.op, key.provider, case, key.contract)
        row = thresholds.row_for(full, num_requests=num_requests, gpu_model=line.model)
        limit, _ = thresholds.paired_pct_for(row)
        better = thresholds.limits_for(full, num_requests=num_requests, gpu_model=line.model).better
        return cls(limit, better)


def _newest_set(line: Timeline, case: str) -> str:
    return next(m.night.case_set for m in reversed(line.moments) if case in cases_of(m.processes))


def _series(line: Timeline, case: str, key: Series, verdicts: Sequence[Verdict | None], rule: Rule) -> dict[str, Any]:
    items = [item for moment in line.moments for item in moment.processes.measurements(key, case)]
    figures = [moment.processes.figure(key, case) for moment in line.moments]
    is_timed = key.contract not in EXACT
    found = segments(line, figures, rule.limit_pct) if is_timed else Segments((), ())
    return {
        "key": "/".join(key),
        "name": f"{key.op}, {key.provider}, {key.metric}, {key.contract}",
        "unit": next((item.unit for item in items if item is not None), ""),
        "values": [item.value if item is not None and item.status == "ok" else None for item in items],
        "medians": [figure.median for figure in figures],
        "reasons": {place: figure.reason for place, figure in enumerate(figures) if _says_more(figure)},
        "verdicts": [verdict.verdict if verdict is not None else "" for verdict in verdicts],
        "better": rule.better,
        "limit_pct": rule.limit_pct if is_timed else None,
        "levels": [[level.first, level.last, level.value] for level in found.levels],
        "changes": [[c.night, c.change_pct, c.nights_before, c.nights_after] for c in found.changes],
        "steps_missing": found.missing,
    }


def _says_more(figure: Figure) -> bool:
    return not figure.n and figure.reason != "not measured"
