"""The newest night of each GPU model, case by case: tiles, history, every series and check, run details."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from reports import derive, text
from reports.case_data import case_data
from reports.cases import VERDICT_MARKS
from reports.derive import Processes
from reports.pages.page import PLOTS, Content, Data, Page, Part, Site
from reports.views import ModelView, shown_past


@dataclass(frozen=True, slots=True)
class CasesView:
    models: tuple[ModelView, ...]  # all of what follows
    gpus: tuple[ModelView, ...]
    cpu: ModelView | None
    compiled: tuple[ModelView, ...]
    marks: dict[str, str]


def load(site: Site) -> Content:
    if not site.models:
        return Content(missing="No night is recorded in these stores.")
    view = CasesView(tuple(site.models), tuple(site.gpus), site.cpu, tuple(site.compiled), VERDICT_MARKS)
    parts = [Part(f"cases/{one.model}", site.inputs(one.model), _data(site, one)) for one in site.models]
    return Content(view, data=parts)


PAGE = Page(
    "cases",
    "Cases",
    "What did the newest night measure, case by case, and how does each compare with full state?",
    load,
    ("numbers.js", "tables.js", "cases.js", *PLOTS, "case_charts.js"),
)


def _data(site: Site, view: ModelView) -> Iterator[Data]:
    nights, past = shown_past(site.history, view.model)
    names = [row.name for row in view.rows]
    yield f"{view.slug}/night", _night_data(names, view.prefix, past.processes[-1])
    for name in names:
        yield f"{view.slug}/case-{text.file_slug(name)}", case_data(name, nights[-1], nights, past)


def _night_data(names: Sequence[str], prefix: str, processes: Processes) -> dict[str, Any]:
    """Device times of all cases, for the figure that compares them."""
    pairs = {
        "verify": (derive.VERIFY, derive.FULL_VERIFY),
        "commit": (derive.COMMIT, None),
        "step": (derive.STEP, derive.FULL_STEP),
    }
    files = {name: f"case-{text.file_slug(name)}" for name in names}
    data: dict[str, Any] = {"cases": list(names), "prefix": prefix, "files": files}
    for op, (ours, full) in pairs.items():
        data[op] = {"RecoverSSM": [_bar(processes, ours, name) for name in names]}
        if full is not None:
            data[op]["full state"] = [_bar(processes, full, name) for name in names]
    return data


def _bar(processes: Processes, series: derive.Series, case: str) -> dict[str, Any] | None:
    figure = processes.figure(series, case)
    if figure.median is None:
        return None
    shown = f"{text.micros(figure.median)} µs ({text.span(figure, 'us') or '1 process'})"
    return {"median": figure.median, "low": figure.low, "high": figure.high, "text": shown}
