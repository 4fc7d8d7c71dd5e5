"""What all series of one GPU model share: nights and processes in order of time, with cards and monitor readings."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from benchmarks.harness.records import Case, Environment, Night, Verdict
from reports import derive, text
from reports.derive import Processes, Series
from reports.grid import Grid
from reports.process import Process
from reports.sources import CPU, History
from reports.views import EXIT_WORDS, raw_links

INVALID = 4  # exit code of a night whose numbers nobody should believe

LANES = (
    ("sm_clock_mhz_median", "SM clock, median", "MHz"),
    ("power_w_median", "power, median", "W"),
    ("temperature_c_max", "temperature, max", "°C"),
)


@dataclass(frozen=True, slots=True)
class Moment:
    """One night.

    Attributes:
        cut: facts of the environment that differ from the night before; empty where none does.
        environment: which one it is, counted in order of first appearance: one that comes back keeps its number.
    """

    night: Night
    processes: Processes
    cut: tuple[str, ...]
    environment: int
    _verdicts: dict[str, list[Verdict]] = field(default_factory=dict)

    def verdicts_of(self, case: str) -> list[Verdict]:
        if not self._verdicts:
            for verdict in self.night.verdicts:
                self._verdicts.setdefault(verdict.case, []).append(verdict)
        return self._verdicts.get(case, [])


@dataclass(frozen=True)
class Timeline:
    """All nights of one GPU model that have readable records, oldest first."""

    model: str
    moments: Sequence[Moment]
    environments: Sequence[Environment] = field(default_factory=list)

    @cached_property
    def grid(self) -> Grid:
        return Grid([[record.columns for record in moment.processes.records] for moment in self.moments])

    @property
    def is_static(self) -> bool:
        """Whether the model is an architecture that was only compiled for."""
        return any(moment.night.is_static for moment in self.moments)

    @property
    def records(self) -> list[Process]:
        return [record for moment in self.moments for record in moment.processes.records]

    @property
    def others(self) -> frozenset[str]:
        """Other projects' kernels: their times are shown, and no change of them is an event."""
        return frozenset[str]().union(*(moment.processes.others for moment in self.moments))

    def newest(self, case: str) -> Case | None:
        """As its newest record describes it."""
        return next((one for record in reversed(self.records) for one in record.cases if one.name == case), None)

    def keys(self) -> dict[str, list[Series]]:
        """The series of each case that any night has, both in natural order."""
        found: dict[str, dict[Series, None]] = {}
        for shape in {id(record.columns.shape): record.columns.shape for record in self.records}.values():
            for line in shape.lines:
                found.setdefault(line.case, {})[Series(line.metric, line.op, line.provider, line.contract)] = None
        return {case: sorted(found[case], key=_order) for case in sorted(found, key=text.natural_key)}


def _order(series: Series) -> tuple[bool, bool, Series]:
    return (series.contract in ("exact", "static"), series.provider != "recoverssm", series)


def timeline(history: History, model: str) -> Timeline:
    """Nights without a readable record are left out here: they have no value in any series."""
    moments: list[Moment] = []
    environments: list[Environment] = []
    for night in history.of(model):
        processes = history.processes(night)
        if not processes.records:
            continue
        now = processes.records[0].environment
        cut = derive.environment_changes(environments[moments[-1].environment], now) if moments else []
        keys = [one.cut_key(host=False) for one in environments]
        if now.cut_key(host=False) not in keys:
            environments.append(now)
            keys.append(now.cut_key(host=False))
        moments.append(Moment(night, processes, tuple(cut), keys.index(now.cut_key(host=False))))
    return Timeline(model, moments, environments)


def model_name(model: str, *, is_static: bool) -> str:
    """For people: ``NVIDIA H200``, ``CPU``, ``sm_90, compiled``."""
    return "CPU" if model == CPU else f"{model}, compiled" if is_static else text.gpu_name(model)


def timeline_data(history: History, line: Timeline, *, raw: bool, sampled: Collection[str] = ()) -> dict[str, Any]:
    """Nights and processes, which data files of series refer to by their places.

    Args:
        raw: link the raw files.
        sampled: ids of the nights whose samples have data files.
    """
    cards = list(dict.fromkeys(text.short_hash(record.silicon.gpu_uuid) for record in line.records))
    return {
        "model": line.model,
        "name": model_name(line.model, is_static=line.is_static),
        "cards": cards,
        "nights": [
            _night(history, moment, raw=raw) | {"has_samples": moment.night.id in sampled} for moment in line.moments
        ],
        "processes": [
            _process(history, place, record, cards, raw=raw)
            for place, moment in enumerate(line.moments)
            for record in moment.processes.records
        ],
        "lanes": [_lane(line, *lane) for lane in LANES],
    }


def _night(history: History, moment: Moment, *, raw: bool) -> dict[str, Any]:
    night, subject = moment.night, moment.processes.records[0].subject
    return {
        "id": night.id,
        "utc": night.created_utc.removesuffix("Z"),
        "when": text.utc(night.created_utc),
        "set": night.case_set,
        "commit": text.short_commit(subject.commit, subject.dirty),
        "word": EXIT_WORDS.get(night.exit_code, f"exit code {night.exit_code}"),
        "red": night.exit_code != 0,
        "environment": moment.environment,
        "cut": "; ".join(moment.cut),
        "raw": [link.href for link in raw_links(history, night.id, raw=raw)],
    }


def _process(history: History, night: int, record: Process, cards: Sequence[str], *, raw: bool) -> dict[str, Any]:
    return {
        "night": night,
        "id": record.id,
        "card": cards.index(text.short_hash(record.silicon.gpu_uuid)),
        "raw": [link.href for link in raw_links(history, record.id, raw=raw)],
    }


def _lane(line: Timeline, name: str, title: str, unit: str) -> dict[str, Any]:
    monitors = [record.monitor for record in line.records]
    values = [getattr(monitor, name) for monitor in monitors]
    reasons = dict.fromkeys(monitor.missing.get(name, "") for monitor in monitors if getattr(monitor, name) is None)
    missing = "; ".join(filter(None, reasons)) or "not recorded"
    return {"title": title, "unit": unit, "values": values, "missing": "" if any(values) else missing}
