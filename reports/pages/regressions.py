"""What got worse, one row per event: since when, by which commits, whose it is, and the lines that measure it again."""

from dataclasses import dataclass

from reports.event_rows import EventRow
from reports.events import STATES
from reports.pages.page import Content, Page, Site


@dataclass(frozen=True, slots=True)
class Alarm:
    """What a night says together with the nights before it: a step or a creep that no single night shows."""

    gpu: str
    when: str
    text: str


@dataclass(frozen=True, slots=True)
class RegressionsView:
    events: tuple[EventRow, ...]
    alarms: tuple[Alarm, ...]  # of the newest nights
    gpu_models: tuple[tuple[str, str], ...]  # slug and name, for the filter
    states: tuple[str, ...]  # that occur, most urgent first


def load(site: Site) -> Content:
    if not site.history.nights:
        return Content(missing="No night is recorded in these stores.")
    events = site.events
    models = dict.fromkeys((row.gpu_model, row.gpu) for row in events)
    alarms = [
        Alarm(view.name, view.newest.when, line)
        for view in site.models
        for line in site.history.of(view.model)[-1].alarms
    ]
    states = tuple(state for state in STATES if any(row.state == state for row in events))
    return Content(RegressionsView(tuple(events), tuple(alarms), tuple(models), states))


PAGE = Page(
    "regressions",
    "Regressions",
    "What got slower or larger, since when, by which commits, and who has it?",
    load,
    ("regressions.js",),
)
