"""Reads stores for the pages and the README table: nights, records, and the files that could not be read."""

import fnmatch
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
from msgspec.structs import replace

from benchmarks.harness.record_files import decode_checks, read_record
from benchmarks.harness.records import Check, Head, Night, Record
from benchmarks.harness.store import Store, check_samples, open_store
from ci.policy import Aliases, load_aliases
from reports.derive import Processes
from reports.digests import Digests
from reports.process import Process
from reports.sharing import Sharing

CPU = "cpu"
R = TypeVar("R", bound=Head)


@dataclass(slots=True)
class Stored(Generic[R]):
    """All nights of all stores. An id that two stores hold counts once, as the first store has it."""

    nights: dict[str, Night] = field(default_factory=dict)
    records: dict[str, R] = field(default_factory=dict)
    paths: dict[str, Path] = field(default_factory=dict)  # of a record's or night's JSON file, by id
    damaged: list[str] = field(default_factory=list)  # "file: what is wrong"; left out here, untouched on disk

    def gpu_models(self) -> list[str]:
        """GPU models with a night; neither the CPU nor what was only compiled for."""
        return sorted({night.gpu_model for night in self.nights.values() if not night.is_static} - {CPU})

    def archs(self) -> list[str]:
        """Architectures that a night has compiled for."""
        models = {night.gpu_model for night in self.nights.values() if night.is_static}
        return sorted(models, key=lambda model: (len(model), model))

    def of(self, gpu_model: str) -> list[Night]:
        """Nights of one GPU model, oldest first."""
        nights = [night for night in self.nights.values() if night.gpu_model == gpu_model]
        return sorted(nights, key=lambda night: (night.created_utc, night.id))

    def absent_records(self, night: Night) -> list[str]:
        """Ids that the night names and no store holds in readable form."""
        return [id_ for id_ in night.records if id_ not in self.records]


@dataclass(slots=True)
class History(Stored[Process]):
    """What pages are made of: records with their measurements in columns."""

    aliases: Aliases = field(default_factory=Aliases)  # whose new names stand here for the old ones
    hashes: dict[str, bytes] = field(default_factory=dict)  # SHA-256 of nights' files, by id
    _processes: dict[str, Processes] = field(default_factory=dict)

    def processes(self, night: Night) -> Processes:
        """The readable records of a night, put together once."""
        if night.id not in self._processes:
            records = [self.records[id_] for id_ in night.records if id_ in self.records]
            self._processes[night.id] = Processes(records, self.checks)
        return self._processes[night.id]

    def checks(self, id_: str) -> list[Check]:
        """Of one record, from its file: few pages ask, and of few nights."""
        checks = decode_checks(self.paths[id_].read_bytes())
        names = self.aliases.names({check.case for check in checks})
        return [
            replace(one, case=names[one.case]) if names[one.case] != one.case else one
            for one in checks
            if one.case in names
        ]

    def renamed(self, process: Process) -> Process:
        """With today's names of its cases, as ``Aliases.renamed`` says."""
        if not self.aliases.alias:
            return process
        present = {case.name for case in process.cases} | {line.case for line in process.columns.shape.lines}
        names = self.aliases.names(present)
        return process if names == {name: name for name in present} else process.renamed(names)

    def fingerprint(self, model: str) -> bytes:
        """SHA-256 of all that is known of one GPU model: nights, the records of each, and those of backfills."""
        told = hashlib.sha256(msgspec.json.encode(self.aliases))
        for night in self.of(model):
            told.update(self.hashes.get(night.id) or msgspec.json.encode(night))
            for id_ in night.all_records:
                told.update(self.records[id_].source if id_ in self.records else b"absent")
        for record in sorted(self.records.values(), key=lambda record: record.id):
            if record.backfill is not None and record.environment.gpu_model == model:
                told.update(record.source)
        return told.digest()

    def commit(self, night: Night) -> str | None:
        """What a night measured, by its first readable record."""
        return next((record.subject.commit for record in self.processes(night).records), None)


def read_stores(specs: Sequence[str], digests: Digests | None = None, aliases: Aliases | None = None) -> History:
    """Read folders or ``branch:NAME`` for pages; nothing in them is changed. An empty folder is fine.

    Args:
        digests: of records that were read before; what is new comes in.
        aliases: renamed cases; of ``ci/aliases.toml`` when left out.
    Raises:
        FileNotFoundError: a store is no folder.
        StoreError: git cannot check a branch out.
    """
    digests = Digests() if digests is None else digests
    history = History(aliases=load_aliases() if aliases is None else aliases)
    for store in _open(specs):
        records = store.read_each(digests.process, digests.check)
        _add(history, store, store.nights(read=digests.night), map(history.renamed, records))
        _end(history, store, digests)
    _rename_nights(history)
    return history


def read_newest(
    specs: Sequence[str], count: int, digests: Digests | None = None, aliases: Aliases | None = None
) -> History:
    """As ``read_stores``, of the newest ``count`` nights of each GPU model and those that they were held against.

    Samples are not looked at. What is read does not grow with the age of a store.
    """
    digests = Digests() if digests is None else digests
    history = History(aliases=load_aliases() if aliases is None else aliases)
    for store in _open(specs):
        for model in store.gpu_models():
            nights = store.nights(model, newest=count, read=digests.night)
            bases = {night.base_night for night in nights if night.base_night} - {night.id for night in nights}
            if bases:
                nights = [*store.nights(model, ids=bases, read=digests.night), *nights]
            wanted = {name for night in nights for name in night.all_records}
            records = store.read_each(digests.process, None, wanted, model)
            _add(history, store, nights, map(history.renamed, records))
        _end(history, store, digests)
    _rename_nights(history)
    return history


def read_records(specs: Sequence[str], gpu_model: str = "*", newest: int | None = None) -> Stored[Record]:
    """Read folders or ``branch:NAME`` with every measurement, under the names that cases had. Raises likewise.

    Args:
        newest: so many nights of each GPU model that fits the glob, with their records alone; all there is without it.
    """
    found, sharing = Stored[Record](), Sharing()
    for store in _open(specs):
        if newest is None:
            _add(found, store, map(sharing.night, store.nights()), map(sharing.record, store.each_record()))
        for model in [] if newest is None else fnmatch.filter(store.gpu_models(), gpu_model):
            nights = store.nights(model, newest=newest)
            wanted = {name for night in nights for name in night.all_records}
            records = store.read_each(read_record, partial(check_samples, thorough=False), wanted, model)
            _add(found, store, map(sharing.night, nights), map(sharing.record, records))
        _add_damaged(found, store)
    return found


def _open(specs: Sequence[str]) -> Iterator[Store]:
    for spec in specs:
        store = open_store(spec, writable=False)
        if not store.is_there:
            fix = f"a night is recorded there by: python -m ci nightly --set smoke --store {spec}"
            raise FileNotFoundError(f"--store: expected a folder, got {spec}; {fix}")
        yield store


def _add(found: Stored[R], store: Store, nights: Iterable[Night], records: Iterable[R]) -> None:
    for night in nights:
        if found.nights.setdefault(night.id, night) is night:
            found.paths[night.id] = store.folder / "nights" / night.gpu_model / f"{night.id}.json"
    for record in records:
        if found.records.setdefault(record.id, record) is record:
            model = record.environment.gpu_model
            found.paths[record.id] = store.folder / "records" / model / f"{record.id}.json"


def _add_damaged(found: Stored[R], store: Store) -> None:
    found.damaged += [f"{store.folder.name}/{note}" for note in store.quarantined]


def _end(history: History, store: Store, digests: Digests) -> None:
    _add_damaged(history, store)
    for id_, told in digests.nights.items():
        history.hashes.setdefault(id_, told)


def _rename_nights(history: History) -> None:
    if history.aliases.alias:
        history.nights = {id_: _renamed(night, history.aliases) for id_, night in history.nights.items()}


def _renamed(night: Night, aliases: Aliases) -> Night:
    names = aliases.names({verdict.case for verdict in night.verdicts})
    verdicts = [replace(v, case=names[v.case]) for v in night.verdicts if v.case in names]
    return replace(night, verdicts=verdicts)
