"""Reads stores for the page and the README table: nights, records, and the files that could not be read."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness.records import Night, Record
from benchmarks.harness.store import Store, open_store
from reports.derive import Processes
from reports.sharing import Sharing

CPU = "cpu"


@dataclass(slots=True)
class History:
    """All nights of all stores. An id that two stores hold counts once, as the first store has it."""

    nights: dict[str, Night] = field(default_factory=dict)
    records: dict[str, Record] = field(default_factory=dict)
    paths: dict[str, Path] = field(default_factory=dict)  # of a record's or night's JSON file, by id
    damaged: list[str] = field(default_factory=list)  # "file: what is wrong"; left out here, untouched on disk
    _processes: dict[str, Processes] = field(default_factory=dict)

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

    def processes(self, night: Night) -> Processes:
        """The readable records of a night, indexed once."""
        if night.id not in self._processes:
            self._processes[night.id] = Processes([self.records[id_] for id_ in night.records if id_ in self.records])
        return self._processes[night.id]

    def commit(self, night: Night) -> str | None:
        """What a night measured, by its first readable record."""
        return next((record.subject.commit for record in self.processes(night).records), None)

    def absent_records(self, night: Night) -> list[str]:
        """Ids that the night names and no store holds in readable form."""
        return [id_ for id_ in night.records if id_ not in self.records]


def read_stores(specs: Sequence[str]) -> History:
    """Read folders or ``branch:NAME``; nothing on disk is changed. An empty folder is fine.

    Raises:
        FileNotFoundError: a store is no folder.
        StoreError: git cannot check a branch out.
    """
    history, sharing = History(), Sharing()
    for spec in specs:
        store = open_store(spec, writable=False)
        if not store.folder.is_dir():
            fix = f"a night is recorded there by: python -m ci nightly --set smoke --store {spec}"
            raise FileNotFoundError(f"--store: expected a folder, got {spec}; {fix}")
        _add(history, store, sharing)
    return history


def _add(history: History, store: Store, sharing: Sharing) -> None:
    for night in map(sharing.night, store.nights()):
        if history.nights.setdefault(night.id, night) is night:
            history.paths[night.id] = store.folder / "nights" / night.gpu_model / f"{night.id}.json"
    for record in map(sharing.record, store.each_record()):
        if history.records.setdefault(record.id, record) is record:
            model = record.environment.gpu_model
            history.paths[record.id] = store.folder / "records" / model / f"{record.id}.json"
    history.damaged += [f"{store.folder.name}/{note}" for note in store.quarantined]
