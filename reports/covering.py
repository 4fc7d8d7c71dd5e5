"""Which nights speak for the cases of a GPU model: the one that is shown, and the newest of each set beside it."""

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from benchmarks.harness.records import Case, Night
from reports import derive
from reports.derive import Processes
from reports.document import Cell
from reports.sources import History
from reports.views import raw_place

BESIDE = ("roofline",)  # sets with cases of their own, measured now and then


@dataclass(frozen=True, slots=True)
class Covered:
    """A night with the cases that no night before it in the list has."""

    night: Night
    processes: Processes
    cases: tuple[Case, ...]


def covering(history: History, model: str) -> list[Covered]:
    """Newest broad night first, then others for what it does not have. Empty where no record can be read."""
    nights = history.of(model)
    shown = derive.shown_night(nights)
    newest = [_newest([night for night in nights if night.case_set == name]) for name in BESIDE]
    seen: set[str] = set()
    found: list[Covered] = []
    for night in [shown, *newest]:
        if night is None or any(night is one.night for one in found):
            continue
        processes = history.processes(night)
        cases = {case.name: case for record in processes.records for case in record.cases if case.name not in seen}
        seen |= set(cases)
        if cases:
            found.append(Covered(night, processes, tuple(cases.values())))
    return found


def _newest(nights: Sequence[Night]) -> Night | None:
    """The newest that ran all cases of its set; where there is none, the newest."""
    whole = [night for night in nights if not night.is_part] or nights
    return whole[-1] if whole else None


def raw_cells(history: History, ids: list[str], *, raw: bool) -> tuple[Cell, ...]:
    """Links to the JSON files of nights and records; none in a public site."""
    paths = [(id_, history.paths.get(id_)) for id_ in ids] if raw else []
    return tuple(Cell(id_, quote(str(raw_place(path)))) for id_, path in paths if path is not None)


def night_cell(history: History, night: Night, *, raw: bool) -> Cell:
    """Its day, linked to its file."""
    links = raw_cells(history, [night.id], raw=raw)
    return Cell(night.created_utc[:10], links[0].href if links else "", night.id)
