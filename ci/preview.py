"""What a nightly would do, without starting anything: cases, commands, and how long it took before."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from benchmarks.cases import SETS, BenchCase, NothingSelectedError, UnknownNameError, select, select_by_set
from benchmarks.estimate import estimate_process
from benchmarks.harness.errors import StoreError
from benchmarks.harness.store import Store, open_store

from .config import load_nightly
from .exits import BrokenEnvironmentError, MissingDataError, UsageError
from .gpus import choose_gpus, find_gpus


def select_cases(case_set: str | None, pattern: str) -> tuple[str, list[BenchCase]]:
    """The set asked for and its cases that match a glob.

    Raises:
        UsageError: no set, or no such set or case; the known names are in the message.
        MissingDataError: a glob that matches nothing.
    """
    if case_set is None:
        known = ", ".join(SETS)
        raise UsageError(f"--set: expected one of {known}; --list without --set names the cases of each")
    try:
        return case_set, select(case_set, pattern)
    except UnknownNameError as error:
        raise UsageError(str(error)) from error
    except NothingSelectedError as error:
        raise MissingDataError(str(error)) from error


def require_peers(names: str, files: Sequence[str]) -> None:
    """Raises UsageError for a kernel that nobody has, a file or class that is not there; loads nobody's code."""
    if (names, *files) == ("none",):
        return
    from benchmarks.peers.discovery import UnknownPeerError, choose  # it imports torch

    try:
        choose(names, files)
    except UnknownPeerError as error:
        raise UsageError(str(error)) from error


def listing(case_set: str | None, pattern: str) -> dict[str, Any]:
    """The cases of a set, or of every set. Raises as ``select_cases``."""
    if case_set is not None:
        return _listing(*select_cases(case_set, pattern))
    try:
        return {"sets": [_listing(name, cases) for name, cases in select_by_set(pattern).items()]}
    except NothingSelectedError as error:
        raise MissingDataError(str(error)) from error


def _listing(case_set: str, cases: Sequence[BenchCase]) -> dict[str, Any]:
    return {"set": case_set, "cases": [{"name": case.name, "stands_for": case.stands_for} for case in cases]}


@dataclass(frozen=True, slots=True)
class Preview:
    """A nightly that is not run."""

    case_set: str
    pattern: str
    cases: Sequence[BenchCase]
    store: str
    processes: int
    gpus: str | None
    seed: int | None
    peer_arguments: Sequence[str] = ()

    def dry_run(self) -> dict[str, Any]:
        """Which GPUs, how many processes, which base nights there are; asks NVML, touches no GPU."""
        gpus = choose_gpus(self.gpus, find_gpus())
        command = f"python -m benchmarks.run --set {self.case_set} --out FILE --seed SEED"
        command += f" --case '{self.pattern}'" if self.pattern != "*" else ""
        command = " ".join([command, *self.peer_arguments])
        static = load_nightly().static
        stored = _stored(self.store)
        newest = {m: next((n.id for n in stored.newest_first(m) if n.accepted), None) for m in stored.gpu_models()}
        return {
            "set": self.case_set,
            "num_cases": len(self.cases),
            "gpus": [{"uuid": gpu.uuid, "name": gpu.name} for gpu in gpus],
            "processes_per_gpu": self.processes,
            "command": command,
            "seed": self.seed,
            "store": self.store,
            "compiled": f"{', '.join(static.archs)}: cases of these that match {static.case}",
            "last_accepted": {model: name for model, name in newest.items() if name},
            **self.estimate(),
        }

    def estimate(self) -> dict[str, Any]:
        """Seconds by GPU model, from the newest night of this set; at most what the time cap allows."""
        found = estimate_process(_stored(self.store), self.case_set, len(self.cases))
        by_model = {
            model: {"seconds_per_gpu": round(one.process_s * self.processes, 1), "from_night": one.from_night}
            for model, one in found.items()
        }
        cap = load_nightly().cap_s(self.case_set) * self.processes
        return {"estimate": by_model, "at_most_s_per_gpu": cap}


def _stored(spec: str) -> Store:
    try:
        return open_store(spec, writable=False)
    except StoreError as error:
        raise BrokenEnvironmentError(f"--store {spec}: {error}") from error


def show(facts: dict[str, Any], console: Console) -> None:
    """One line for each fact, one for each entry of a list."""
    for name, value in facts.items():
        if name == "sets":
            for one in value:
                show(one, console)
            continue
        if name == "cases":
            lines = [f"{case['name']}  {case['stands_for']}" for case in value]
        elif isinstance(value, list):
            lines = [f"{name}: {'  '.join(map(str, item.values()))}" for item in value]
        elif isinstance(value, dict):
            lines = [f"{name}: {key}  {_flat(item)}" for key, item in value.items()] or [f"{name}: none yet"]
        else:
            lines = [f"{name}: {'at random' if value is None else value}"]
        for line in lines:
            console.print(line, markup=False, highlight=False, soft_wrap=True)


def _flat(item: Any) -> str:
    return ", ".join(f"{k} {v}" for k, v in item.items()) if isinstance(item, dict) else str(item)
