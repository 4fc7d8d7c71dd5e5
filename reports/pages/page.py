"""What a page is, and what all pages are made from."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ci.policy import KnownRegressions, load_known
from reports.event_rows import EventRow, event_row
from reports.events import find_events
from reports.sources import CPU, History
from reports.trust_records import Trust
from reports.views import ModelView, model_view

PLOTS = ("plots.js",)  # a page with figures names it before its own script; plotly itself comes when one is near


@dataclass(slots=True)
class Site:
    """What the pages of one build share."""

    history: History
    now: datetime  # of the build, with a zone
    raw: bool = True  # link raw files, which name card and host
    known: KnownRegressions = field(default_factory=load_known)  # whose regressions are
    trust: Trust = field(default_factory=Trust)
    _events: list[EventRow] | None = None
    _models: dict[str, ModelView] = field(default_factory=dict)

    def model(self, name: str) -> ModelView:
        """The newest night of a GPU model, of the CPU or of an architecture, that has one."""
        if name not in self._models:
            self._models[name] = model_view(self.history, name, raw=self.raw)
        return self._models[name]

    @property
    def events(self) -> list[EventRow]:
        """Regressions of every GPU model: open ones first, then the newest first."""
        if self._events is None:
            models = dict.fromkeys(night.gpu_model for night in self.history.nights.values())
            found = [
                event_row(event, self.history, self.known, self.now, raw=self.raw)
                for model in models
                for event in find_events(self.history.of(model), self.history.commit)
            ]
            self._events = sorted(found, key=lambda row: (row.is_open, row.since_utc, row.anchor), reverse=True)
        return self._events

    @property
    def gpus(self) -> list[ModelView]:
        return [self.model(name) for name in self.history.gpu_models()]

    @property
    def cpu(self) -> ModelView | None:
        return self.model(CPU) if self.history.of(CPU) else None

    @property
    def compiled(self) -> list[ModelView]:
        return [self.model(name) for name in self.history.archs()]

    @property
    def models(self) -> list[ModelView]:
        return [*self.gpus, *([self.cpu] if self.cpu else []), *self.compiled]


@dataclass(frozen=True, slots=True)
class Content:
    """A page as loaded.

    Attributes:
        view: what its template shows, as ``view``; no number is computed in a template.
        missing: why there is nothing to show; the template's body is then left out.
        data: key and content of each ``data/KEY.js``, which scripts load by ``loadData(KEY)``; made as it is written.
        files: place in the site and bytes of what the page links beside the store's raw files.
    """

    view: Any = None
    missing: str = ""
    data: Iterable[tuple[str, Any]] = ()
    files: Iterable[tuple[str, bytes]] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """One page: ``NAME.html``, from ``templates/NAME.html.j2``, which extends ``base.html.j2``."""

    name: str
    title: str  # in the navigation
    question: str  # that it answers, below its title
    load: Callable[[Site], Content]
    scripts: tuple[str, ...] = ()  # of assets/, after frame.js
    template: str = ""  # where it is not one of its own
