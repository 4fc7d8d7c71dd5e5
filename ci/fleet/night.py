"""A night on a cluster: shards go to nodes, again where they are lost, and never to one that fails its control."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
from rich.console import Console

from benchmarks.cases import BenchCase
from benchmarks.harness.errors import StoreError
from benchmarks.harness.ids import utc_now
from benchmarks.harness.records import Shard
from benchmarks.harness.store import Store
from ci.exits import WORST_FIRST, BrokenEnvironmentError, CommandError, Exit, MissingDataError, UsageError
from ci.history.importing import import_from
from ci.options import Options
from ci.session import load
from ci.whole_files import json_bytes, replace_file

from .config import Fleet, Pool
from .slurm import Scheduler
from .worker import REPORT, STORE, Report, ShardJob

QUARANTINE_FILE = "quarantined-nodes.json"
TAKEN = "report-taken.json"
ASIDE = "aside"  # what a node measured that nobody can use
JOBS = "jobs.json"  # by shard; the jobs of a night that was killed go on without it


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
    state: str = ""  # what it was last seen to wait for
    failed: int = 0
    due_s: float = 0.0
    seen_gone: bool = False
    is_done: bool = False

    @property
    def name(self) -> str:
        return f"{self.pool.name} {self.job.options.shard}"

    @property
    def reports(self) -> list[Path]:
        """Of nodes that are through with it, not taken yet."""
        return sorted(self.job.place.glob(f"*/{REPORT}"))


@dataclass(slots=True)
class FleetNight:
    """Brings every shard into ``store``, or says which one it could not.

    Attributes:
        folder: on a disk that this host and all nodes share.
        messages: for people, of what was lost among other things.
        code: the worst that any shard came to; MISSING where one did not come.
    """

    fleet: Fleet
    scheduler: Scheduler
    store: Store
    folder: Path
    console: Console
    hours: Hours = Hours()
    messages: list[str] = field(default_factory=list)
    code: Exit = Exit.PASS
    quarantined: dict[str, Quarantined] = field(default_factory=dict)

    def run(self, options: Options, cases: Sequence[BenchCase], night: str) -> None:
        """Measure all shards of all pools; ``messages`` and ``code`` say what came of it.

        Raises:
            CommandError: a shard says that all others would end likewise.
        """
        self._read_quarantine()
        tasks, jobs = self._tasks(options, cases, night), self.folder / night / JOBS
        if options.resume and jobs.exists():
            found = msgspec.json.decode(jobs.read_bytes(), type=dict[str, str])
            for task in tasks:
                task.id = None if task.is_done else found.get(task.name)
        end_s = self.hours.clock() + 60 * self.fleet.give_up_min
        try:
            while open_tasks := self._look([task for task in tasks if not task.is_done]):
                if self.hours.clock() >= end_s:
                    for task in open_tasks:
                        self._miss(task, f"not there after {self.fleet.give_up_min} minutes: {task.state}")
                    break
                self._submit(open_tasks, jobs)
                self.hours.sleep(self.fleet.poll_s)
        finally:
            self._cancel([task.id for task in tasks if task.id is not None and not task.is_done], jobs)

    def _tasks(self, options: Options, cases: Sequence[BenchCase], night: str) -> list[Task]:
        tasks = []
        for pool in self.fleet.pool:
            for index, names in enumerate(pool.dealt(cases), start=1):
                own = replace(
                    options,
                    shard=Shard(night=night, index=index, count=pool.shards),
                    selected=names,
                    gpus=options.gpus or ("all" if pool.has_gpus else None),  # all that Slurm gave it, and one at least
                    static=options.static and pool is self.fleet.pool[0],
                )
                place = self.folder / night / f"{pool.name}-{index}"
                is_done = any(_is_of_use(path) for path in place.glob(f"*/{TAKEN}"))  # by an earlier run
                tasks.append(Task(pool, ShardJob(own, place, tuple(self.fleet.control)), is_done=is_done))
        return tasks

    def _submit(self, tasks: Sequence[Task], jobs: Path) -> None:
        now = self.hours.clock()
        due = [task for task in tasks if task.id is None and not task.reports and task.due_s <= now]
        for pool in self.fleet.pool:
            if own := [task for task in due if task.pool is pool]:
                try:
                    ids = self.scheduler.submit(pool, [task.job for task in own], self.quarantined)
                except BrokenEnvironmentError as error:  # of this pool, and perhaps for a while
                    for task in own:
                        self._lost(task, str(error))
                    continue
                for task, job_id in zip(own, ids, strict=True):
                    task.id, task.state, task.seen_gone = job_id, f"job {job_id}", False
                    self._say(f"{task.name}: job {job_id}")
                jobs.parent.mkdir(parents=True, exist_ok=True)
                replace_file(jobs, json_bytes({task.name: task.id for task in tasks if task.id is not None}))

    def _look(self, tasks: Sequence[Task]) -> list[Task]:
        """Take what has come; returns the tasks that are still open."""
        alive = self._alive([task.id for task in tasks if task.id is not None])
        for task in tasks:
            if reports := task.reports:
                self._take(task, reports[0])
            elif task.id is None or alive is None:
                continue
            elif task.id in alive:
                task.seen_gone, task.state = False, f"job {task.id} {alive[task.id]}"
            elif task.seen_gone:
                self._lost(task, f"job {task.id} ended without a report")
            else:
                task.seen_gone = True  # its last words may be on their way through a network disk
        return [task for task in tasks if not task.is_done]

    def _alive(self, ids: Collection[str]) -> Mapping[str, str] | None:
        """None where the cluster cannot be asked: the next look will tell."""
        try:
            return self.scheduler.alive(ids) if ids else {}
        except BrokenEnvironmentError as error:
            self._say(str(error))
            return None

    def _take(self, task: Task, path: Path) -> None:
        """What was measured is stored before its report counts as taken: who is killed between does it again."""
        report = _read(path)
        if report is None:
            self._put_aside(task, path)
            self._lost(task, f"{path}: cannot be read")
        elif report.node_fails:
            self._quarantine(report.node, "; ".join(report.node_fails))
            self._put_aside(task, path)
            task.id = None  # it goes elsewhere at once
        elif report.code in (Exit.USAGE, Exit.MISSING):
            path.replace(path.with_name(TAKEN))
            error = UsageError if report.code == Exit.USAGE else MissingDataError
            raise error(f"{task.name} on {report.node}: {'; '.join(report.messages)}")
        elif report.code != Exit.PASS and task.failed < self.fleet.retries:
            self._leave(task, path)
            self._lost(task, f"exit {report.code} on {report.node}: {'; '.join(report.messages)}")
        else:
            self._bring_in(task, path, report)

    def _bring_in(self, task: Task, path: Path, report: Report) -> None:
        try:
            import_from(path.parent / STORE, self.store)
        except CommandError as error:
            self._put_aside(task, path)
            self._lost(task, f"measured on {report.node}, but not taken in: {error}")
        except (StoreError, OSError) as error:  # of our store, and perhaps for a while
            task.state = f"measured on {report.node}, not stored: {error}"
            self._say(f"{task.name}: {task.state}")
        else:
            task.is_done = True
            self._say(f"{task.name}: measured on {report.node}")
            if report.code == Exit.PASS:
                path.replace(path.with_name(TAKEN))
            else:
                self._leave(task, path)
                self._worsen(Exit(report.code))
                self.messages.append(f"{task.name}: exit {report.code} on {report.node}: {'; '.join(report.messages)}")

    def _leave(self, task: Task, path: Path) -> None:
        """For the node to go on with; what is complete it would only tell again."""
        state = load(path.parent)
        if state is not None and state.is_complete:
            self._put_aside(task, path)
        else:
            path.replace(path.with_name(TAKEN))

    def _put_aside(self, task: Task, path: Path) -> None:
        """What a node left that is of no use; there the shard begins anew."""
        aside = task.job.place / ASIDE
        aside.mkdir(exist_ok=True)
        path.parent.rename(aside / f"{len(list(aside.iterdir()))}-{path.parent.name}")

    def _lost(self, task: Task, why: str) -> None:
        task.id, task.failed = None, task.failed + 1
        if task.failed > self.fleet.retries:
            task.is_done = True
            self._miss(task, f"given up after {task.failed} tries: {why}")
            return
        wait_s = self.fleet.backoff_s * 2 ** (task.failed - 1)
        task.due_s, task.state = self.hours.clock() + wait_s, why
        self._say(f"{task.name}: {why}; again in {wait_s:g} s")

    def _miss(self, task: Task, why: str) -> None:
        self._worsen(Exit.MISSING)
        self.messages.append(f"{task.name}: {why}")

    def _worsen(self, code: Exit) -> None:
        self.code = min(self.code, code, key=WORST_FIRST.index)

    def _cancel(self, ids: Sequence[str], jobs: Path) -> None:
        try:
            if ids:
                self.scheduler.cancel(ids)
        except BrokenEnvironmentError as error:  # whatever ended the night says more
            self._say(f"jobs {', '.join(ids)} were not cancelled: {error}; --resume finds them again")
        else:
            jobs.unlink(missing_ok=True)

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


def _read(path: Path) -> Report | None:
    """None where it cannot be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Report)
    except (OSError, msgspec.DecodeError):
        return None


def _is_of_use(path: Path) -> bool:
    report = _read(path)
    return report is not None and report.code == Exit.PASS and not report.node_fails
