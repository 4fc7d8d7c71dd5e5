"""The nights and records of stores that names on a command line stand for, and no others."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from benchmarks.harness.record_files import read_record
from benchmarks.harness.records import Record
from benchmarks.harness.store import RECENT_NIGHTS, Store
from benchmarks.harness.store_folder import KINDS, Kind
from ci.history.layout import open_existing
from reports.sources import Stored

from .sides import LATEST, SHOWN_NIGHTS, is_named, is_of_commit, latest

RECENT: dict[Kind, int] = {
    "nights": RECENT_NIGHTS,
    "records": 10 * RECENT_NIGHTS,
}  # of a GPU model, looked through first


class Place(NamedTuple):
    """A GPU model in a store."""

    store: Store
    model: str


def read_named(
    specs: Sequence[str], names: Sequence[str], gpu_model: str = "*", *, with_bases: bool = False
) -> Stored[Record]:
    """What ``resolve`` needs for these names: few files of a store, however old it is. Samples are not looked at.

    Args:
        with_bases: also the nights that those found were held against.
    Raises:
        MissingDataError: there is no such store.
    """
    stores, found = [open_existing(spec) for spec in specs], Stored[Record]()
    nights, records = (_places(stores, kind, gpu_model) for kind in KINDS)
    back = max((int(last[1] or 0) for name in names if (last := LATEST.fullmatch(name))), default=0)
    for place in nights:
        _add_nights(found, place, newest=back + 1 + SHOWN_NIGHTS)
    wanted: set[str | None] = set()
    for name in names:
        if LATEST.fullmatch(name):
            wanted |= {night.id for night in latest(found, name, gpu_model)}
            continue
        fitting = _fitting(nights, "nights", name)
        wanted.update(*fitting)
        for place, ids in zip(nights, fitting, strict=True):
            _add_nights(found, place, ids=ids)
        if not any(is_named(name, id_) for ids in fitting for id_ in ids):
            for place, ids in zip(records, _fitting(records, "records", name), strict=True):
                _add_records(found, place, ids)
    if with_bases:
        bases = {night.base_night for night in found.nights.values() if night.id in wanted}
        for place in nights:
            _add_nights(found, place, ids={name for name in bases if name})
        wanted |= bases
    for place in records:
        own = (night for night in found.nights.values() if night.id in wanted and night.gpu_model == place.model)
        _add_records(found, place, {id_ for night in own for id_ in night.records})
    return found


def _places(stores: Sequence[Store], kind: Kind, gpu_model: str) -> list[Place]:
    return [
        Place(store, model) for store in stores for model in store.gpu_models(kind) if fnmatchcase(model, gpu_model)
    ]


def _fitting(places: Sequence[Place], kind: Kind, name: str) -> list[set[str]]:
    """Of each place the ids that a name or commit fits, further and further back until that finds no more."""
    fitting: list[set[str]] = []
    newest = RECENT[kind]
    while True:
        ids = [place.store.ids(kind, place.model, newest=newest) for place in places]
        wider = [{id_ for id_ in own if is_named(name, id_) or is_of_commit(name, id_)} for own in ids]
        if (any(wider) and wider == fitting) or all(len(own) < newest for own in ids):
            return wider
        fitting, newest = wider, 2 * newest


def _add_nights(found: Stored[Record], place: Place, *, newest: int | None = None, ids: set[str] | None = None) -> None:
    for night in place.store.nights(place.model, newest=newest, ids=ids):
        found.nights.setdefault(night.id, night)


def _add_records(found: Stored[Record], place: Place, ids: set[str]) -> None:
    for record in place.store.read_each(read_record, None, ids - set(found.records), place.model):
        found.records.setdefault(record.id, record)
