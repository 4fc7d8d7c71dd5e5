"""What a page is, and what all pages are made from."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ci.config import load_thresholds
from ci.policy import KnownRegressions, load_known
from reports.event_rows import EventRow, event_row
from reports.events import Event, find_events
from reports.kept import Kept
from reports.pages.timeline import Timeline, timeline
from reports.sources import CPU, History
from reports.step_events import step_events
from reports.steps import Segments, steps_of
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
    kept: Kept = field(default_factory=lambda: Kept(None))
    newest: int | None = None  # nights of each GPU model at most, where the history is no more than those
    _events: list[EventRow] | None = None
    _models: dict[str, ModelView] = field(default_factory=dict)
    _inputs: dict[str, bytes] = field(default_factory=dict)
    _timelines: dict[str, Timeline] = field(default_factory=dict)
    _steps: dict[str, dict[str, Segments]] = field(default_factory=dict)

    def inputs(self, model: str) -> bytes:
        """Of a part that is made of everything of one GPU model."""
        if model not in self._inputs:
            self._inputs[model] = self.history.fingerprint(model) + bytes([self.raw])
        return self._inputs[model]

    def model(self, name: str) -> ModelView:
        """The newest night of a GPU model, of the CPU or of an architecture, that has one."""
        if name not in self._models:
            self._models[name] = model_view(self.history, name, raw=self.raw)
        return self._models[name]

    def timeline(self, model: str) -> Timeline:
        if model not in self._timelines:
            self._timelines[model] = timeline(self.history, model)
        return self._timelines[model]

    def steps(self, model: str) -> dict[str, Segments]:
        """Of every timed series of a GPU model, by ``step_name``; looked for where something is new."""
        if model not in self._steps:
            self._steps[model] = self.kept.result(
                f"steps/{model}",
                self.inputs(model),
                dict[str, Segments],
                lambda: steps_of(self.timeline(model), load_thresholds()),
            )
        return self._steps[model]

    @property
    def events(self) -> list[EventRow]:
        """Regressions of every GPU model: open ones first, then the newest first."""
        if self._events is None:
            models = dict.fromkeys(night.gpu_model for night in self.history.nights.values())
            found = [
                event_row(event, self.history, self.known, self.now, raw=self.raw)
                for model in models
                for event in self._events_of(model)
            ]
            self._events = sorted(found, key=lambda row: (row.is_open, row.since_utc, row.anchor), reverse=True)
        return self._events

    def _events_of(self, model: str) -> list[Event]:
        judged = find_events(self.history.of(model), self.history.commit)
        line = self.timeline(model)
        if line.is_static or model == CPU:
            return judged
        rising = step_events(line, self.steps(model), load_thresholds(), self.known, self.now.date(), judged)
        return [*judged, *rising]

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


Data = tuple[str, Any]


@dataclass(frozen=True, slots=True)
class Part:
    """Data files that belong together; what ``inputs`` says of records and nights, and the code, decides them all."""

    name: str
    inputs: bytes
    data: Iterable[Data]


@dataclass(frozen=True, slots=True)
class Content:
    """A page as loaded.

    Attributes:
        view: what its template shows, as ``view``; no number is computed in a template.
        missing: why there is nothing to show; the template's body is then left out.
        data: key and content of each ``data/KEY.js``, which scripts load by ``loadData(KEY)``; made as it is written,
            or, of a part that has not changed since the last build, not at all.
        files: place in the site and bytes of what the page links beside the store's raw files.
    """

    view: Any = None
    missing: str = ""
    data: Iterable["Data | Part"] = ()
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
