"""``gate run``: build both sides, measure them in alternating processes on one GPU, and again where one looks changed.

It may be ended and started again at any time, on the same GPU: what is measured is kept, pair by pair. Needs no git and
no network.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout
from rich.console import Console

from benchmarks.harness.errors import LockHeldError
from benchmarks.harness.lock import GpuLock
from benchmarks.harness.record_files import samples_path
from benchmarks.journal import journal_path
from ci.config import Fork, NightlyConfig, load_nightly
from ci.exits import BrokenEnvironmentError, CommandError, Exit, Interrupted, UsageError
from ci.gpus import CPU, Gpu, choose_gpus, find_gpus, require_usable
from ci.processes import interruptible
from ci.progress import NightProgress
from ci.starting import Starter
from ci.static import PROGRAM as STATIC_COMMAND
from ci.succession import Succession

from .building import SIDES, Building, require_whole
from .evidence import Evidence
from .plan import (
    CPU_BLOCKS,
    BlockStage,
    Plan,
    Process,
    State,
    blocks_to_try,
    load_plan,
    load_state,
    record_path,
    save,
)
from .result import Side
from .times import suspected_cases

FIRST_GUESS_S = 20.0  # for a process, before one has been seen
MAX_FAILURES = 3  # processes of one side without a record; the rest would fail too


@dataclass(frozen=True, slots=True)
class Options:
    """How to run on this machine. ``max_s``: no process is started that would probably end later."""

    gpus: str | None = None
    wait_s: float = 0.0
    max_s: float | None = None
    static_command: Sequence[str] = STATIC_COMMAND
    fork: Fork = "yes"  # "no": each process is a new interpreter, and takes some seconds longer


class OutOfTime(Exception):
    """``max_s`` is nearly over."""


def run(folder: Path, options: Options, console: Console) -> Exit:
    """Measure what is missing. PASS: everything is there to be judged; INTERRUPTED: run again to go on.

    Raises:
        CommandError: with its exit code; what was measured is kept.
    """
    begun_s = time.monotonic()
    plan = load_plan(folder)
    require_whole(folder, plan)
    with _own(folder):
        state = load_state(folder)
        damaged = Evidence.read(folder).damaged
        if state.complete and not damaged:
            return Exit.PASS
        if not any((folder / "records").glob("*.json")):
            state.gpu = state.built_in = ""  # begun in vain, as where the card was in use
        gpu = _choose_gpu(options, state)
        state.gpu, state.complete = gpu.uuid, False
        state.blocks = dict(plan.blocks) if gpu.uuid != CPU else dict.fromkeys(plan.blocks, CPU_BLOCKS)
        running = Running(folder.resolve(), plan, state, gpu, options, console, begun_s)
        for name, why in damaged.items():
            running.building.say(f"{name} {why}: made again")
            (folder / name).unlink(missing_ok=True)
        try:
            with interruptible():
                running.run()
        except (Interrupted, OutOfTime) as why:
            console.print(f"{why}; everything measured is kept", markup=False, highlight=False, soft_wrap=True)
            return Exit.INTERRUPTED
        except CommandError as error:
            error.next_step = error.next_step or f"python -m ci gate run {folder}"
            raise
        return Exit.PASS


@dataclass(slots=True)
class Running:
    """One ``gate run`` on its way."""

    folder: Path
    plan: Plan
    state: State
    gpu: Gpu
    options: Options
    console: Console
    begun_s: float
    longest_s: float = FIRST_GUESS_S
    config: NightlyConfig = field(init=False)
    building: Building = field(init=False)

    def __post_init__(self) -> None:
        self.config = load_nightly(self.folder / "policy" / "nightly.toml")
        self.building = Building(self.folder, self.plan, self.state, self.gpu, self.config, self.console)

    def run(self) -> None:
        (self.folder / "records").mkdir(exist_ok=True)
        save(self.folder, self.state)
        self.building.prove()
        if self.state.broken:
            return
        self.building.list_cases()
        for side in SIDES:
            self.building.compile_static(side, self.options.static_command)
        with ExitStack() as stack:
            if self.gpu.uuid != CPU:
                stack.enter_context(_locked(self.gpu, self.options.wait_s))
                require_usable(self.gpu)
                self.building.compile_first()
            servers = self.building.start(stack, self.options.fork)
            if servers is None:
                return
            self.measure("screen", servers, None)
            if self.state.suspects is None:
                self.state.suspects = suspected_cases(Evidence.read(self.folder))
                save(self.folder, self.state)
            if self.state.suspects:
                self.measure("confirm", servers, self.state.suspects)
        self.state.complete = True
        save(self.folder, self.state)

    def measure(self, stage: BlockStage, servers: Mapping[Side, Starter], cases: list[str] | None) -> None:
        """Blocks of a stage until as many as needed count; spare ones take the place of those that do not."""
        needed = self.state.blocks[stage]
        done = len(list((self.folder / "records").glob(f"{stage}-*.json")))
        with NightProgress(self.console, stage, done=done, total=4 * needed) as progress:
            succession = {
                side: Succession(self.config, self.config.cap_s(self.plan.case_set), progress.line, progress.warn)
                for side in SIDES
            }
            for block in blocks_to_try(self.plan, stage, needed):
                if Evidence.read(self.folder).num_counted(stage) >= needed:
                    return
                if self.has_failed_too_often():
                    return
                for pair in (block[:2], block[2:]):
                    if self.is_wanted(block, pair):
                        self.require_time(len(pair))
                        for process in pair:
                            self.one(process, servers[process.side], succession[process.side], progress, cases)

    def is_wanted(self, block: Sequence[Process], pair: Sequence[Process]) -> bool:
        """Whether a pair is to be measured. Its processes follow each other, so what is left of half a pair goes."""
        if any(process.name in self.state.failures for process in block):
            return False  # the block will not count
        paths = [record_path(self.folder, process.name) for process in pair]
        if all(path.exists() for path in paths):
            return False
        for path in paths:
            for part in (path, samples_path(path), journal_path(path)):
                part.unlink(missing_ok=True)
        return True

    def require_time(self, processes: int) -> None:
        """Raises OutOfTime where so many more would probably not end in time."""
        spent_s, needed_s = time.monotonic() - self.begun_s, processes * self.longest_s
        if self.options.max_s is not None and spent_s + needed_s > self.options.max_s:
            told = f"{spent_s:.0f} s of {self.options.max_s:g} are over"
            raise OutOfTime(f"{told}, and {processes} processes may take {needed_s:.0f}")

    def has_failed_too_often(self) -> bool:
        lost = Counter(name.rsplit("-", 1)[1] for name in self.state.failures)
        return any(count >= MAX_FAILURES for count in lost.values())

    def one(
        self,
        process: Process,
        starter: Starter,
        succession: Succession,
        progress: NightProgress,
        cases: list[str] | None,
    ) -> None:
        progress.process_started(process.seed, f", {process.name}")
        begun_s, path = time.monotonic(), record_path(self.folder, process.name)
        reason = succession.run(starter, path, self.arguments(process, path, cases))
        took_s = time.monotonic() - begun_s
        self.longest_s = took_s if self.longest_s == FIRST_GUESS_S else max(self.longest_s, took_s)
        if reason is not None:
            self.state.failures[process.name] = self.building.placeless(reason)
            save(self.folder, self.state)
        progress.process_ended("measured" if reason is None else f"no record: {reason}")

    def arguments(self, process: Process, path: Path, cases: list[str] | None) -> list[str]:
        names = self.state.cases_of(process.side, self.plan)
        chosen = names if cases is None else [name for name in names if name in cases]
        asked = ["--set", self.plan.case_set, "--case", ",".join(chosen), "--lean"]
        return [
            *asked,
            "--out",
            str(path),
            "--seed",
            str(process.seed),
            "--commit",
            self.plan.side(process.side).commit,
        ]


def _choose_gpu(options: Options, state: State) -> Gpu:
    present = find_gpus()
    is_here = state.gpu in (CPU, *(gpu.uuid for gpu in present))
    chosen = choose_gpus(options.gpus or (state.gpu if is_here else None), present)
    if len(chosen) != 1:
        raise UsageError(f"--gpus: expected one GPU, for both sides must run on the same; got {len(chosen)}")
    if state.gpu and chosen[0].uuid != state.gpu:
        raise UsageError(
            f"this gate was begun on {state.gpu}, got {chosen[0].uuid}: both sides must run on the same card",
            "go on there, or remove records/ from the folder to begin anew",
        )
    return chosen[0]


@contextmanager
def _own(folder: Path) -> Iterator[None]:
    lock = FileLock(folder / ".lock", timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise BrokenEnvironmentError(f"{folder}: another gate run is using it", "wait for it") from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _locked(gpu: Gpu, wait_s: float) -> Iterator[None]:
    try:
        with GpuLock(gpu.uuid, timeout_s=wait_s):
            yield
    except LockHeldError as error:
        raise BrokenEnvironmentError(str(error), "wait for it: --wait SECONDS") from error
