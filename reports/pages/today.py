"""Is anything wrong, since when, and can it be believed? The newest night of each GPU model in one screen."""

from dataclasses import dataclass

from reports.pages.page import Content, Page, Site
from reports.views import ModelView


@dataclass(frozen=True, slots=True)
class TodayView:
    gpus: tuple[ModelView, ...]
    cpu: ModelView | None
    compiled: tuple[ModelView, ...]
    red: tuple[ModelView, ...]  # whose last night did not pass
    damaged: tuple[str, ...]


def load(site: Site) -> Content:
    red = tuple(view for view in site.models if view.newest.red)
    return Content(TodayView(tuple(site.gpus), site.cpu, tuple(site.compiled), red, tuple(site.history.damaged)))


PAGE = Page("index", "Today", "Is anything wrong, since when, because of what, and can it be believed?", load)
