"""Where a store keeps what: the files of its folder sorted by kind, nothing opened."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness.store import Store, open_store
from ci.exits import MissingDataError
from ci.measuring import ROOT

from .names import STORED

HISTORY = ROOT / "reports" / "history"  # recorded nights that ship with the source
DEFAULT_STORES = (Path("out/store"), HISTORY)


@dataclass(slots=True)
class Files:
    """The files of one store. ``links`` and ``strangers`` are what a store never holds."""

    folder: Path
    records: list[Path] = field(default_factory=list)  # JSON, in order of time
    samples: list[Path] = field(default_factory=list)
    nights: list[Path] = field(default_factory=list)
    interrupted: list[Path] = field(default_factory=list)
    quarantined: list[Path] = field(default_factory=list)
    links: list[Path] = field(default_factory=list)
    strangers: list[Path] = field(default_factory=list)

    def name(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()


def list_files(folder: Path) -> Files:
    """Sort the files below ``folder``; links are not followed."""
    files = Files(folder)
    for path in _walk(folder):
        name = path.relative_to(folder).as_posix()
        found = STORED.fullmatch(name)
        if path.is_symlink() or not path.is_file():
            files.links.append(path)
        elif name.startswith("quarantine/"):
            if not name.endswith(".reason.txt"):
                files.quarantined.append(path)
        elif path.suffix == ".tmp":
            files.interrupted.append(path)
        elif found and found["kind"] == "nights" and found["ending"] == "json":
            files.nights.append(path)
        elif found and found["kind"] == "records":
            (files.records if found["ending"] == "json" else files.samples).append(path)
        elif name.startswith(("records/", "nights/")):
            files.strangers.append(path)
    for group in (files.records, files.samples, files.nights):
        group.sort(key=lambda path: path.name)
    return files


def _walk(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        links = [name for name in folders if (Path(root) / name).is_symlink()]
        folders[:] = sorted(name for name in folders if name != ".git" and name not in links)
        for name in sorted([*names, *links]):
            if name not in (".git", ".lock"):
                yield Path(root) / name


def default_stores() -> list[str]:
    """What is read without ``--store``: nights measured here, then the recorded ones that ship with the source.

    Raises:
        MissingDataError: there is neither.
    """
    found = [str(folder) for folder in DEFAULT_STORES if folder.is_dir()]
    if not found:
        raise MissingDataError("no store: neither out/store nor reports/history is there", "give one with --store")
    return found


def open_whole(spec: str, *, writable: bool = False) -> Store:
    """As ``open_existing``, for commands that look at every file: all of them lie in its folder."""
    store = open_existing(spec, writable=writable)
    store.fetch()
    return store


def open_existing(spec: str, *, writable: bool = False) -> Store:
    """The store that ``spec`` names. Raises MissingDataError when it does not exist."""
    store = open_store(spec, writable=writable)
    if not store.is_there:
        raise MissingDataError(f"--store {spec}: there is no such store", "give the place of records/ and nights/")
    return store
