"""Runs the measuring processes of a night on one GPU and brings each record into the store as soon as it is whole."""

import math
import os
import shutil
import threading
import time
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from rich.console import Console

from benchmarks.harness.errors import AlreadyStoredError, BranchError, StoreError, UnsentError
from benchmarks.harness.record_files import decode_record, samples_path
from benchmarks.harness.records import Control, Record
from benchmarks.harness.samples import read_samples
from benchmarks.harness.store import Store
from benchmarks.journal import journal_path

from .config import NightlyConfig
from .exits import BrokenEnvironmentError, Interrupted
from .gpus import CPU, Gpu
from .progress import NightProgress
from .session import State, save
from .starting import ForkServer, FreshStarter, Starter
from .succession import Succession
from .trees import clean_env

if TYPE_CHECKING:
    from .counting import Counted

ROOT = Path(__file__).resolve().parent.parent


@dataclass(slots=True)
class Measuring:
    """A night's measuring on its way.

    Attributes:
        command: what starts one measuring process; ``--set``, ``--out`` and the rest are appended.
        fork_server: what starts a parent of forked ones.
        root: where they start, and so whose sources they measure: this checkout, or the tree of a commit.
        source_hash: of the sources that each must have measured; None asks nothing.
        backfill: what records say they were measured for.
        quarantined: records that could not be read, with the reason; they lie in ``out / "quarantine"``.
        failures: processes that left no record, with the reason.
        warnings: what went wrong without loss, such as a push that failed.
        counted: by GPU, what goes into its next record.
        controls_alone: by GPU, its controls while the others were idle.
        at_once: whether ``measure`` is called for several GPUs at the same time, each in a thread of its own.
        stop: set it, and every ``measure`` ends its process and raises Interrupted.
    """

    state: State
    out: Path
    store: Store
    config: NightlyConfig
    command: Sequence[str]
    fork_server: Sequence[str]
    console: Console
    root: Path = ROOT
    source_hash: str | None = None
    backfill: str | None = None
    quarantined: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    counted: "dict[str, Counted]" = field(default_factory=dict)
    controls_alone: dict[str, list[Control]] = field(default_factory=dict)
    at_once: bool = False
    stop: threading.Event = field(default_factory=threading.Event)
    until_s: float = math.inf  # of the monotonic clock: no process is started after it
    _lock: threading.Lock = field(default_factory=threading.Lock)  # of all that is kept here
    _running: dict[str, int] = field(default_factory=dict)  # GPUs that measure now, and how many others at most did

    def measure(self, gpu: Gpu, seeds: Container[int] | None = None) -> None:
        """Run every process of this GPU that has left no record yet, or of those the ones with these seeds.

        Raises:
            UsageError, MissingDataError, BrokenEnvironmentError: a process says that the others would end likewise.
            Interrupted: records of finished processes are in the store and in the state file.
        """
        total, missing = len(self.state.plan.seeds), self.state.missing(gpu.uuid)
        where = gpu.uuid[:12] if self.root == ROOT else f"{gpu.uuid[:12]} {self.root.name}"
        with (
            NightProgress(
                self.console, where, done=total - len(missing), total=total, live=not self.at_once
            ) as progress,
            ExitStack() as servers,
        ):
            succession = Succession(
                self.config, self.config.cap_s(self.state.plan.case_set), progress.line, progress.warn, self.stop
            )
            starters = self._starters(gpu, servers)
            for seed in (one for one in missing if seeds is None or one in seeds):
                if self.stop.is_set():
                    raise Interrupted("the night ends")
                if time.monotonic() >= self.until_s:
                    return
                if len(self.failures) >= self.config.max_failed_processes:
                    progress.warn(f"{len(self.failures)} processes failed: no more are started (ci/nightly.toml)")
                    return
                progress.process_started(seed, ", forked" if self.state.is_forked(seed) else "")
                path = self._path(gpu, seed)
                path.parent.mkdir(parents=True, exist_ok=True)
                with self._among_neighbours(gpu) as neighbours:
                    # There already if a run before this one measured it, but could not store it.
                    is_there = path.exists() or self._run(succession, starters(seed), gpu, seed, path)
                if is_there:
                    with self._lock:
                        progress.process_ended(self._bring_in(gpu, seed, path, neighbours()))
                else:
                    progress.process_ended(f"no record: {self.failures[-1]}")

    def _starters(self, gpu: Gpu, servers: ExitStack) -> Callable[[int], Starter]:
        """How to start the process of a seed; a parent to fork from comes up when the first one needs it."""
        env = gpu.child_env(os.environ if self.root == ROOT else clean_env(os.environ))
        fresh = FreshStarter(self.command, env, self.root)
        forked = cache(lambda: servers.enter_context(ForkServer(env, self.root, self.fork_server)))
        return lambda seed: forked() if self.state.is_forked(seed) else fresh

    def _run(self, succession: Succession, starter: Starter, gpu: Gpu, seed: int, path: Path) -> bool:
        reason = succession.run(starter, path, self._arguments(path, seed))
        if reason is not None:
            self.failures.append(f"seed {seed} on {gpu.uuid}: {reason}")
        return reason is None

    @contextmanager
    def _among_neighbours(self, gpu: Gpu) -> Iterator[Callable[[], int]]:
        """Afterwards: on how many other GPUs this night measured at the same time, at most."""
        most = 0
        with self._lock:
            self._running[gpu.uuid] = 0
            for uuid, seen in self._running.items():
                self._running[uuid] = max(seen, len(self._running) - 1)
        try:
            yield lambda: most
        finally:
            with self._lock:
                most = self._running.pop(gpu.uuid)

    def clear(self) -> None:
        """Remove the folder of records on their way; call it when every process has been stored."""
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _folder(self) -> Path:
        return self.out / "processes" / self.state.plan.id

    def _path(self, gpu: Gpu, seed: int) -> Path:
        return self._folder / gpu.uuid / f"{seed}.json"

    def _arguments(self, path: Path, seed: int) -> list[str]:
        plan = self.state.plan
        command = ["--set", plan.case_set, "--out", str(path), "--seed", str(seed)]
        command += plan.case_arguments
        command += plan.peer_arguments
        if plan.delays is not None:
            command += ["--lean", "--collection", plan.id]  # what a gate measures
            command += ["--delay-pct", f"{plan.delays[seed]:g}"] if seed in plan.delays else []
        return command + (["--commit", plan.commit] if plan.commit else [])

    def _bring_in(self, gpu: Gpu, seed: int, path: Path, neighbours: int) -> str:
        """Move a record into the store; returns a line for people."""
        try:
            record = decode_record(path.read_bytes())
            samples = read_samples(samples_path(path))
        except (OSError, ValueError, msgspec.MsgspecError, pa.ArrowException) as error:
            return self._set_aside(path, f"{type(error).__name__}: {error}")
        if gpu.uuid != CPU and record.environment.gpu_model == CPU:
            reason = f"the process that was to measure GPU {gpu.uuid} saw no GPU and measured the CPU"
            self._set_aside(path, reason)
            raise BrokenEnvironmentError(reason, "python -m ci doctor")
        if self.source_hash not in (None, record.subject.source_hash):
            return self._set_aside(path, f"measured other sources than those in {self.root}")
        record = msgspec.structs.replace(
            record,
            shard=self.state.plan.shard,
            backfill=self.backfill,
            neighbours=neighbours,
            controls_alone=self.controls_alone.get(gpu.uuid, []),
        )
        if counted := self.counted.get(gpu.uuid):
            counters = {"counters": list(counted.counters), "counters_missing": counted.missing}
            record = msgspec.structs.replace(record, **counters)
        try:
            self.keep(record, samples)
        except ValueError as error:
            return self._set_aside(path, str(error))
        except (StoreError, OSError) as error:
            raise BrokenEnvironmentError(
                f"{path}: measured, but not stored: {error}", "repair it, then --resume"
            ) from error
        self.counted.pop(gpu.uuid, None)
        self.state.records.setdefault(gpu.uuid, {})[seed] = record.id
        save(self.state, self.out)
        for done in (path, samples_path(path), journal_path(path)):
            done.unlink(missing_ok=True)
        failed = sum(m.status in ("failed", "invalid") for m in record.measurements)
        compiled = record.compilations.num_compiled if record.compilations else 0
        return (
            "measured"
            + (f"; {failed} series failed or are invalid" if failed else "")
            + (f"; {compiled} kernels were not compiled ahead" if compiled else "")
        )

    def keep(self, record: Record, samples: pa.Table) -> None:
        """Put a record into the store; that it could not be published is a warning. Raises as ``Store.add_record``."""
        try:
            self.store.add_record(record, samples)
        except AlreadyStoredError:
            pass  # an earlier run was interrupted after storing it
        except (BranchError, UnsentError) as error:
            self.warnings.append(str(error))

    def _set_aside(self, path: Path, reason: str) -> str:
        folder = self.out / "quarantine" / self.state.plan.id
        folder.mkdir(parents=True, exist_ok=True)
        for part in (path, samples_path(path)):
            if part.exists():
                part.replace(folder / part.name)
        self.quarantined.append(f"{folder / path.name}: {reason}")
        return f"set aside: {reason}"
