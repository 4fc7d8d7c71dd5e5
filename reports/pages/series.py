"""One series over all nights: every process, levels and steps between them, what the card was like, raw samples.

One data file per case holds its series; nights and processes stand in the GPU model's timeline, which they refer to.
"""

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.harness.records import Night, Verdict
from ci.config import Thresholds, load_thresholds
from reports import text
from reports.derive import COMMIT, Series, full_key
from reports.grid import Floats
from reports.pages.page import PLOTS, Content, Data, Page, Part, Site
from reports.pages.samples import SHOWN_NIGHTS, night_samples, samples_hash
from reports.pages.timeline import Timeline, model_name, timeline_data
from reports.steps import EXACT, Rule, Segments, step_name
from reports.views import HEADLINE_CASE

NOTHING = Segments((), ())


@dataclass(frozen=True, slots=True)
class SeriesView:
    """``models``: slug and name of each model that has a timeline, the GPUs first."""

    models: tuple[tuple[str, str], ...]
    first_case: str = HEADLINE_CASE
    first_series: str = "/".join(COMMIT)
    sample_nights: int = SHOWN_NIGHTS


def load(site: Site) -> Content:
    lines = [line for view in site.models if (line := site.timeline(view.model)).moments]
    if not lines:
        return Content(missing="No night with a readable record is in these stores.")
    names = [model_name(line.model, is_static=line.is_static) for line in lines]
    models = tuple((text.file_slug(line.model), name) for line, name in zip(lines, names, strict=True))
    return Content(SeriesView(models), data=[part for line in lines for part in _parts(site, line)])


PAGE = Page(
    "series",
    "Series",
    "How has one figure moved night by night, when did it change, and what did single processes and samples say?",
    load,
    ("numbers.js", *PLOTS, "series_charts.js", "series.js"),
)


def _parts(site: Site, line: Timeline) -> Iterator[Part]:
    """All series, and apart from them the samples of each of the newest nights; what was only compiled has none."""
    sampled = [] if line.is_static else [moment.night for moment in line.moments[-SHOWN_NIGHTS:]]
    yield Part(f"series/{line.model}", site.inputs(line.model), _data(site, line, {night.id for night in sampled}))
    for night in sampled:
        yield Part(f"samples/{night.id}", samples_hash(site.history, night), _samples(site, line.model, night))


def _data(site: Site, line: Timeline, sampled: Set[str]) -> Iterator[Data]:
    thresholds = load_thresholds()
    slug, keys = text.file_slug(line.model), line.keys()
    files = {case: text.file_slug(case) for case in keys}
    yield f"{slug}/timeline", {"files": files} | timeline_data(site.history, line, raw=site.raw, sampled=sampled)
    for case, own in keys.items():
        yield f"{slug}/series-{files[case]}", case_series(line, case, own, thresholds, site.steps(line.model))


def _samples(site: Site, model: str, night: Night) -> Iterator[Data]:
    for case, data in night_samples(site.history, night).items():
        yield f"{text.file_slug(model)}/samples/{night.id}/{text.file_slug(case)}", data


def case_series(
    line: Timeline, case: str, keys: Sequence[Series], thresholds: Thresholds, found: Mapping[str, Segments]
) -> dict[str, Any]:
    """The data file of one case: every series with one value per process of the timeline, None where there is none.

    Args:
        found: levels and steps, by ``step_name``.
    """
    verdicts = [
        {Series(v.metric, v.op, v.provider, v.contract): v for v in moment.verdicts_of(case)} for moment in line.moments
    ]
    newest = line.newest(case)
    rules = [Rule.of(line, case, key, newest.num_requests if newest else 0, thresholds) for key in keys]
    return {
        "case": case,
        "stands_for": newest.stands_for if newest else "",
        "reproduce": f"python -m ci nightly --set {_newest_set(line, case)} --case {shlex.quote(case)}",
        "series": [
            _series(line, case, key, [own.get(key) for own in verdicts], rule, found.get(step_name(key, case), NOTHING))
            for key, rule in zip(keys, rules, strict=True)
        ],
    }


def _newest_set(line: Timeline, case: str) -> str:
    return next(m.night.case_set for m in reversed(line.moments) if case in m.processes.cases())


def _series(
    line: Timeline, case: str, key: Series, verdicts: Sequence[Verdict | None], rule: Rule, found: Segments
) -> dict[str, Any]:
    lines = (moment.processes.line(key, case) for moment in line.moments)
    values = line.grid.values(full_key(key, case))
    medians, counts = line.grid.nights(values)
    empty = {place: line.moments[place].processes.figure(key, case).reason for place in np.flatnonzero(counts == 0)}
    return {
        "key": "/".join(key),
        "name": f"{key.op}, {key.provider}, {key.metric}, {key.contract}",
        "unit": next((one.unit for one in lines if one is not None), ""),
        "values": _listed(values),
        "medians": _listed(medians),
        "reasons": {int(place): reason for place, reason in empty.items() if reason != "not measured"},
        "verdicts": [verdict.verdict if verdict is not None else "" for verdict in verdicts],
        "better": rule.better,
        "limit_pct": rule.limit_pct if key.contract not in EXACT else None,
        "levels": [[level.first, level.last, level.value] for level in found.levels],
        "changes": [[c.night, c.change_pct, c.nights_before, c.nights_after] for c in found.changes],
        "steps_missing": found.missing,
    }


def _listed(values: Floats) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values.tolist()]
