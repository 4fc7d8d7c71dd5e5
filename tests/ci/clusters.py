"""A cluster that exists only here, and nights on it whose measuring processes are prepared."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import msgspec
import pytest
from rich.console import Console

from benchmarks.cases import select
from benchmarks.harness.records import Record
from ci.exits import BrokenEnvironmentError
from ci.fleet.command import nightly_on_cluster
from ci.fleet.config import load_fleet
from ci.fleet.night import Hours
from ci.nightly import Result
from ci.shards import take_shard
from tests.ci.nights import QUIET, FakeNight
from tests.ci.test_shards import of_cases

CASES = select("smoke")
FILE = """
version = 1
retries = 1
backoff_s = 60
poll_s = 10
give_up_min = 30
[[pool]]
name = "h200"
partition = "gpu"
shards = 2
"""


@dataclass
class FakeCluster:
    """Jobs run when they are asked about, one on each node in turn; ``do`` says what happens to the nth."""

    monkeypatch: pytest.MonkeyPatch
    do: dict = field(default_factory=dict)
    nodes: tuple = ("n1", "n2", "n3")
    submitted: list = field(default_factory=list)  # (shard, excluded nodes)
    waiting: dict = field(default_factory=dict)
    cancelled: set = field(default_factory=set)
    silent: int = 0  # how often it cannot be asked
    cannot_cancel: bool = False

    def submit(self, pool, jobs, exclude):
        ids = []
        for job in jobs:
            ids.append(f"1_{len(self.submitted)}")
            self.submitted.append((str(job.options.shard), sorted(exclude)))
            self.waiting[ids[-1]] = job, next(node for node in self.nodes if node not in exclude)
        return ids

    def alive(self, ids):
        if self.silent:
            self.silent -= 1
            raise BrokenEnvironmentError("squeue: no answer within 60 s")
        for one in [one for one in ids if one in self.waiting]:
            number = int(one.partition("_")[2])
            do = self.do.get(number)
            if do == "pending":
                continue
            job, node = self.waiting.pop(one)
            if do == "killed":
                continue
            self.monkeypatch.setenv("SLURMD_NODENAME", node)
            (replace(job, control=("false",)) if do == "sick" else job)()
            if callable(do):
                do(job.place / node)
        return {one: "PENDING (Resources)" for one in ids if one in self.waiting}

    def cancel(self, ids):
        if self.cannot_cancel:
            raise BrokenEnvironmentError("scancel: no answer within 60 s")
        self.cancelled |= set(ids)


class FakeFleet:
    """Call it with what happens to jobs, and the records of processes; it runs a night."""

    def __init__(self, night: FakeNight, monkeypatch: pytest.MonkeyPatch) -> None:
        self.night, self.fake = night, FakeCluster(monkeypatch)
        self.folder, self.file = night.tmp / "fleet", night.tmp / "fleet.toml"
        self.file.write_text(FILE)
        self._now_s = 0.0

    def __call__(self, do: dict, found: Iterable[Record | bytes | None], night: str = "n1", **changes) -> Result:
        self.fake.do = do
        self.night.prepare(found)
        options = replace(self.night.options, **{"out": self.folder, **changes})
        with (self.night.tmp / "progress.txt").open("a") as progress:
            console, hours = Console(file=progress, width=200), Hours(lambda: self._now_s, self._sleep)
            return nightly_on_cluster(options, CASES, night, load_fleet(self.file), console, self.fake, hours)

    def _sleep(self, seconds: float) -> None:
        self._now_s += seconds

    @property
    def said(self) -> str:
        return (self.night.tmp / "progress.txt").read_text()


def shards(*indices, values=QUIET, **changes):
    """Records of the processes of these shards, in the order in which they are measured."""
    parts = {index: [case.name for case in take_shard(f"{index}/2", "n1", CASES)[1]] for index in (1, 2)}
    return [unsampled(record) for index in indices for record in of_cases(parts[index], values, **changes)]


def unsampled(record):
    """As an import takes it: prepared processes leave no samples."""
    return msgspec.structs.replace(
        record, measurements=[msgspec.structs.replace(item, n_samples=0) for item in record.measurements]
    )
