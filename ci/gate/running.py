"""``gate run``: build both sides, measure them in alternating processes on one GPU, and again where one looks changed.

It may be ended and started again at any time, on the same GPU: what is measured is kept, pair by pair. Needs no git and
no network.
"""

import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout
from rich.console import Console

from benchmarks.harness.environment import source_hash
from benchmarks.harness.errors import LockHeldError
from benchmarks.harness.lock import GpuLock
from benchmarks.harness.records import samples_path
from benchmarks.journal import boot_id, journal_path
from ci.config import NightlyConfig, load_nightly
from ci.exits import BrokenEnvironmentError, CommandError, Exit, Interrupted, UsageError
from ci.gpus import CPU, Gpu, choose_gpus, find_gpus, require_usable
from ci.processes import interruptible, run_child
from ci.progress import NightProgress
from ci.starting import FORK_SERVER, ForkServer, Starter
from ci.static import PROGRAM as STATIC_COMMAND
from ci.static import compile_static
from ci.succession import Succession
from ci.trees import clean_env, prove_import

from .evidence import Evidence
from .listing import list_cases
from .plan import HEAD_OWN, BlockStage, Plan, Process, State, blocks_to_try, load_plan, load_state, record_path, save
from .result import Side
from .times import suspected_cases

SIDES: tuple[Side, Side] = ("base", "head")
COMPILE_COMMAND = (*FORK_SERVER[:2], "benchmarks.compile_first")
CPU_BLOCKS = 1
"""Times of a CPU fail nothing, and what is exact needs no repetition."""

FIRST_GUESS_S = 20.0  # for a process, before one has been seen
MAX_FAILURES = 3  # processes of one side without a record; the rest would fail too


@dataclass(frozen=True, slots=True)
class Options:
    """How to run on this machine. ``max_s``: no process is started that would probably end later."""

    gpus: str | None = None
    wait_s: float = 0.0
    max_s: float | None = None
    static_command: Sequence[str] = STATIC_COMMAND


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
        if state.complete:
            return Exit.PASS
        gpu = _choose_gpu(options, state)
        state.gpu = gpu.uuid
        state.blocks = dict(plan.blocks) if gpu.uuid != CPU else dict.fromkeys(plan.blocks, CPU_BLOCKS)
        running = Running(folder.resolve(), plan, state, gpu, options, console, begun_s)
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


def require_whole(folder: Path, plan: Plan) -> None:
    """Raises BrokenEnvironmentError where a tree is not what was prepared."""
    for side in SIDES:
        expected = plan.side(side)
        for name, wanted in (("recoverssm", expected.source_hash), ("benchmarks", expected.program_hash)):
            tree = folder / side / name
            if not tree.is_dir() or source_hash(tree) != wanted:
                raise BrokenEnvironmentError(f"{tree}: is not what was prepared", "copy the folder anew, all of it")


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

    def __post_init__(self) -> None:
        self.config = load_nightly(self.folder / "policy" / "nightly.toml")

    def run(self) -> None:
        (self.folder / "records").mkdir(exist_ok=True)
        save(self.folder, self.state)
        self.prove()
        if self.state.broken:
            return
        self.list_cases()
        for side in SIDES:
            self.compile_static(side)
        with ExitStack() as stack:
            if self.gpu.uuid != CPU:
                stack.enter_context(_locked(self.gpu, self.options.wait_s))
                require_usable(self.gpu)
                self.compile_first()
            servers = self.start(stack)
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

    def env(self) -> Mapping[str, str]:
        return self.gpu.child_env(clean_env(os.environ))

    def prove(self) -> None:
        """Each side imports its own library, or says why not; then there is nothing to measure."""
        self.state.broken.clear()  # it may have been the machine
        for side in SIDES:
            why = prove_import(self.folder / side, self.env())
            if why is not None:
                self.state.broken[side] = why
                self.say(f"{side}: {why}")
        save(self.folder, self.state)

    def list_cases(self) -> None:
        """Ask the head's own program, where it differs, which cases it has."""
        own = self.folder / (HEAD_OWN if self.plan.harness == "base" else "head")
        if not own.is_dir():
            return
        if self.plan.harness == "own" and self.state.head_cases is None:
            self.state.head_cases = list_cases(own, self.plan.case_set, self.plan.pattern)
        elif self.plan.harness == "base" and self.state.vanished is None:
            self.state.vanished = self._vanished(own)
        save(self.folder, self.state)

    def _vanished(self, own: Path) -> list[str]:
        try:
            kept = list_cases(own, self.plan.case_set, "*")
        except CommandError as error:
            self.say(f"head: {error}")
            return self.plan.cases  # the set itself is gone, or its program cannot say
        return [name for name in self.plan.cases if name not in kept]

    def compile_static(self, side: Side) -> None:
        """Static figures and fingerprints of one side; that there are none is told, and judged."""
        out = self.folder / "static" / side
        if (out / "report.json").exists():
            return
        out.mkdir(parents=True, exist_ok=True)
        try:
            compile_static(
                self.plan.case_set,
                [",".join(self.state.cases_of(side, self.plan))],
                ",".join(self.plan.archs),
                out,
                self.console,
                self.options.static_command,
                cap_s=self.config.static.cap_s,
                tree=self.folder / side,
                cache=self.folder / "cache",
            )
            self.state.not_compiled.pop(side, None)
        except CommandError as error:
            self.state.not_compiled[side] = str(error)
        save(self.folder, self.state)

    def compile_first(self) -> None:
        """Kernels of both sides into Triton's cache, once for each start of the machine."""
        if self.state.built_in == boot_id() != "":
            return
        for side in SIDES:
            chosen = ["--set", self.plan.case_set, "--case", ",".join(self.state.cases_of(side, self.plan))]
            cap_s = self.config.precompile_cap_s
            ended = run_child(
                [*COMPILE_COMMAND, *chosen], env=self.env(), cwd=self.folder / side, cap_s=cap_s, on_line=self.say
            )
            if ended.code != Exit.PASS:
                self.say(f"{side}: not all was compiled ahead: {ended.describe(cap_s)}")
        self.state.built_in = boot_id()
        save(self.folder, self.state)

    def start(self, stack: ExitStack) -> Mapping[Side, Starter] | None:
        """A parent for each side's processes; None where one side's program cannot run, which is noted.

        Raises:
            BrokenEnvironmentError: neither side's can: it is the machine.
        """
        servers: dict[Side, Starter] = {}
        for side in SIDES:
            try:
                servers[side] = stack.enter_context(ForkServer(self.env(), self.folder / side))
            except BrokenEnvironmentError as error:
                if self.state.broken:
                    raise
                self.state.broken[side] = str(error)
                self.say(f"{side}: {error}")
        save(self.folder, self.state)
        return None if self.state.broken else servers

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
        spent_s = time.monotonic() - self.begun_s
        if self.options.max_s is not None and spent_s + processes * self.longest_s > self.options.max_s:
            raise OutOfTime(f"{spent_s:.0f} s of {self.options.max_s:g} are over")

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
            self.state.failures[process.name] = reason
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

    def say(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)


def _choose_gpu(options: Options, state: State) -> Gpu:
    chosen = choose_gpus(options.gpus or state.gpu or None, find_gpus())
    if len(chosen) != 1:
        raise UsageError(f"--gpus: expected one GPU, for both sides must run on the same; got {len(chosen)}")
    if state.gpu and chosen[0].uuid != state.gpu:
        raise UsageError(
            f"--gpus: this gate was begun on {state.gpu}, got {chosen[0].uuid}: both sides must run on the same card",
            "go on there, or remove records/ and state.json from the folder",
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
