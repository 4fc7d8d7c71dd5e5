"""A night on a cluster: shards go to nodes, again where they are lost, and never to one that fails its control."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
from rich.console import Console

from benchmarks.cases import BenchCase
from benchmarks.harness.records import Shard, utc_now
from benchmarks.harness.store import Store
from benchmarks.sharding import ShardOf, deal
from ci.exits import BrokenEnvironmentError, CommandError, Exit, MissingDataError, UsageError
from ci.history.importing import import_from
from ci.nightly import Options
from ci.whole_files import json_bytes, replace_file

from .config import Fleet, Pool
from .slurm import Scheduler
from .worker import REPORT, STORE, Report, ShardJob

QUARANTINE_FILE = "quarantined-nodes.json"
TAKEN = "report-taken.json"


class Quarantined(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why a node gets no shard, and since when."""

    reason: str
    since_utc: str


@dataclass(frozen=True, slots=True)
class Hours:
    """Seconds that pass, and how to let them."""

    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


@dataclass(slots=True)
class Task:
    """A shard on its way."""

    pool: Pool
    job: ShardJob
    id: str | None = None  # of its job in the cluster
    failed: int = 0
    due_s: float = 0.0
    seen_gone: bool = False
    is_done: bool = False

    @property
    def name(self) -> str:
        return f"{self.pool.name} {self.job.options.shard}"


@dataclass(slots=True)
class FleetNight:
    """Brings every shard into ``store``, or says which one it could not.

    Attributes:
        folder: on a disk that this host and all nodes share.
    """

    fleet: Fleet
    scheduler: Scheduler
    store: Store
    folder: Path
    console: Console
    hours: Hours = Hours()
    messages: list[str] = field(default_factory=list)
    quarantined: dict[str, Quarantined] = field(default_factory=dict)

    def run(self, options: Options, cases: Sequence[BenchCase], night: str) -> list[str]:
        """Measure all shards of all pools; returns messages for people, of what was lost among them.

        Raises:
            CommandError: the cluster cannot be asked, or a shard says that all others would end likewise.
        """
        self._read_quarantine()
        tasks = self._tasks(options, cases, night)
        end_s = self.hours.clock() + 60 * self.fleet.give_up_min
        try:
            while open_tasks := [task for task in tasks if not task.is_done]:
                if self.hours.clock() >= end_s:
                    self.messages += [f"{t.name}: not there after {self.fleet.give_up_min} minutes" for t in open_tasks]
                    break
                self._submit(open_tasks)
                self.hours.sleep(self.fleet.poll_s)
                self._look(open_tasks)
        finally:
            self.scheduler.cancel([task.id for task in tasks if task.id is not None and not task.is_done])
        return self.messages

    def _tasks(self, options: Options, cases: Sequence[BenchCase], night: str) -> list[Task]:
        tasks = []
        for pool in self.fleet.pool:
            for index in range(1, pool.shards + 1):
                names = [case.name for case in deal(cases, ShardOf(index, pool.shards))]
                if not names:
                    raise UsageError(f"pool {pool.name}: {pool.shards} shards of {len(cases)} cases")
                own = replace(
                    options,
                    shard=Shard(night=night, index=index, count=pool.shards),
                    selected=names,
                    static=options.static and pool is self.fleet.pool[0],
                )
                place = self.folder / night / f"{pool.name}-{index}"
                is_done = any(_read(path).code == Exit.PASS for path in place.glob(f"*/{TAKEN}"))  # by an earlier run
                tasks.append(Task(pool, ShardJob(own, place, tuple(self.fleet.control)), is_done=is_done))
        return tasks

    def _submit(self, tasks: Sequence[Task]) -> None:
        due = [task for task in tasks if task.id is None and task.due_s <= self.hours.clock()]
        for pool in self.fleet.pool:
            if own := [task for task in due if task.pool is pool]:
                try:
                    ids = self.scheduler.submit(pool, [task.job for task in own], self.quarantined)
                except BrokenEnvironmentError as error:  # of this pool, and perhaps for a while
                    for task in own:
                        self._lost(task, str(error))
                    continue
                for task, job_id in zip(own, ids, strict=True):
                    task.id, task.seen_gone = job_id, False
                    self._say(f"{task.name}: job {job_id}")

    def _look(self, tasks: Sequence[Task]) -> None:
        out = [task for task in tasks if task.id is not None]
        alive = self.scheduler.alive([task.id for task in out if task.id is not None]) if out else set()
        for task in out:
            reports = sorted(task.job.place.glob(f"*/{REPORT}"))
            if reports:
                self._take(task, reports[0])
            elif task.id not in alive and task.seen_gone:
                self._lost(task, f"job {task.id} ended without a report")
            else:
                task.seen_gone = task.id not in alive  # its last words may be on their way through a network disk

    def _take(self, task: Task, path: Path) -> None:
        report = _read(path)
        path.replace(path.with_name(TAKEN))
        if report.node_fails:
            self._quarantine(report.node, "; ".join(report.node_fails))
            task.id = None  # it goes elsewhere at once
        elif report.code in (Exit.USAGE, Exit.MISSING):
            error = UsageError if report.code == Exit.USAGE else MissingDataError
            raise error(f"{task.name} on {report.node}: {'; '.join(report.messages)}")
        elif report.code != Exit.PASS and task.failed < self.fleet.retries:
            self._lost(task, f"exit {report.code} on {report.node}: {'; '.join(report.messages)}")
        else:
            self._bring_in(task, path.parent / STORE)
            task.is_done = True
            self._say(f"{task.name}: measured on {report.node}")

    def _bring_in(self, task: Task, folder: Path) -> None:
        try:
            import_from(folder, self.store)
        except CommandError as error:
            self.messages.append(f"{task.name}: measured, but not taken in: {error}")

    def _lost(self, task: Task, why: str) -> None:
        task.id, task.failed = None, task.failed + 1
        if task.failed > self.fleet.retries:
            task.is_done = True
            self.messages.append(f"{task.name}: given up after {task.failed} tries: {why}")
            return
        wait_s = self.fleet.backoff_s * 2 ** (task.failed - 1)
        task.due_s = self.hours.clock() + wait_s
        self._say(f"{task.name}: {why}; again in {wait_s:g} s")

    def _quarantine(self, node: str, why: str) -> None:
        self.quarantined[node] = Quarantined(why, utc_now())
        replace_file(self.folder / QUARANTINE_FILE, json_bytes(self.quarantined), "make room there")
        self._say(f"node {node} is quarantined: {why}")
        self.messages.append(self._told(node))

    def _read_quarantine(self) -> None:
        path = self.folder / QUARANTINE_FILE
        if path.exists():
            try:
                self.quarantined = msgspec.json.decode(path.read_bytes(), type=dict[str, Quarantined])
            except msgspec.DecodeError as error:
                raise UsageError(f"{path}: cannot be read: {error}") from error
        self.messages += map(self._told, self.quarantined)

    def _told(self, node: str) -> str:
        told, file = self.quarantined[node], self.folder / QUARANTINE_FILE
        return f"node {node} is quarantined since {told.since_utc}: {told.reason}; once repaired, take it out of {file}"

    def _say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)


def _read(path: Path) -> Report:
    return msgspec.json.decode(path.read_bytes(), type=Report)
