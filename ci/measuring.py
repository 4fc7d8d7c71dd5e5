"""Runs the measuring processes of a night on one GPU and brings each record into the store as soon as it is whole."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console

from benchmarks.harness.errors import AlreadyStoredError, BranchError, StoreError
from benchmarks.harness.records import decode_record, samples_path
from benchmarks.harness.store import Store

from .config import NightlyConfig
from .exits import BrokenEnvironmentError, Exit, MissingDataError, UsageError
from .gpus import CPU, Gpu
from .processes import Ended, run_child
from .progress import NightProgress
from .session import State, save

ROOT = Path(__file__).resolve().parent.parent


@dataclass(slots=True)
class Measuring:
    """A night's measuring on its way.

    Attributes:
        command: what starts one measuring process; ``--set``, ``--out`` and the rest are appended.
        quarantined: records that could not be read, with the reason; they lie in ``out / "quarantine"``.
        failures: processes that left no record, with the reason.
        warnings: what went wrong without loss, such as a push that failed.
    """

    state: State
    out: Path
    store: Store
    config: NightlyConfig
    command: Sequence[str]
    console: Console
    quarantined: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def measure(self, gpu: Gpu) -> None:
        """Run every process of this GPU that has left no record yet.

        Raises:
            UsageError, MissingDataError, BrokenEnvironmentError: a process says that the others would end likewise.
            Interrupted: records of finished processes are in the store and in the state file.
        """
        total, missing = len(self.state.plan.seeds), self.state.missing(gpu.uuid)
        with NightProgress(self.console, gpu.uuid[:12], done=total - len(missing), total=total) as progress:
            for seed in missing:
                if len(self.failures) >= self.config.max_failed_processes:
                    progress.warn(f"{len(self.failures)} processes failed: no more are started (ci/nightly.toml)")
                    return
                path = self._path(gpu, seed)
                if path.exists():  # a run before this one measured it, but could not store it
                    self._bring_in(gpu, seed, path)
                    progress.process_ended("record of an earlier run stored")
                    continue
                progress.process_started(seed)
                ended = run_child(
                    self._child_command(path, seed),
                    env=gpu.child_env(os.environ),
                    cwd=ROOT,
                    cap_s=self.config.cap_s(self.state.plan.case_set),
                    on_line=progress.line,
                )
                progress.process_ended(self._settle(gpu, seed, path, ended))

    def clear(self) -> None:
        """Remove the folder of records on their way; call it when every process has been stored."""
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _folder(self) -> Path:
        return self.out / "processes" / self.state.plan.id

    def _path(self, gpu: Gpu, seed: int) -> Path:
        return self._folder / gpu.uuid / f"{seed}.json"

    def _child_command(self, path: Path, seed: int) -> list[str]:
        path.parent.mkdir(parents=True, exist_ok=True)
        plan = self.state.plan
        command = [*self.command, "--set", plan.case_set, "--out", str(path), "--seed", str(seed)]
        command += ["--case", plan.pattern] if plan.pattern != "*" else []
        return command + (["--commit", plan.commit] if plan.commit else [])

    def _settle(self, gpu: Gpu, seed: int, path: Path, ended: Ended) -> str:
        last = ended.tail[-1] if ended.tail else "it said nothing"
        if ended.code == Exit.USAGE:
            raise UsageError(f"the measuring process refused its command line: {last}")
        if ended.code == Exit.MISSING:
            raise MissingDataError(f"the measuring process selected nothing: {last}")
        if ended.code == Exit.BROKEN:
            raise BrokenEnvironmentError(f"the measuring process cannot work here: {last}", "python -m ci doctor")
        if ended.code in (Exit.PASS, Exit.INVALID) and path.exists():
            self._bring_in(gpu, seed, path)
            return "measured" if ended.code == Exit.PASS else "measured; a check failed or a value is invalid"
        how = ended.describe(self.config.cap_s(self.state.plan.case_set))
        self.failures.append(f"seed {seed} on {gpu.uuid}: {how}")
        for line in ended.tail:
            self.console.print(f"    {line}", markup=False, highlight=False, soft_wrap=True)
        return f"no record: {how}"

    def _bring_in(self, gpu: Gpu, seed: int, path: Path) -> None:
        try:
            record = decode_record(path.read_bytes())
            samples = pq.read_table(samples_path(path), page_checksum_verification=True)
        except (OSError, ValueError, msgspec.MsgspecError, pa.ArrowException) as error:
            self._set_aside(path, f"{type(error).__name__}: {error}")
            return
        if gpu.uuid != CPU and record.environment.gpu_model == CPU:
            reason = f"the process that was to measure GPU {gpu.uuid} saw no GPU and measured the CPU"
            self._set_aside(path, reason)
            raise BrokenEnvironmentError(reason, "python -m ci doctor")
        try:
            self.store.add_record(record, samples)
        except AlreadyStoredError:
            pass  # an earlier run was interrupted after storing it
        except BranchError as error:
            self.warnings.append(str(error))
        except ValueError as error:
            self._set_aside(path, str(error))
            return
        except (StoreError, OSError) as error:
            raise BrokenEnvironmentError(
                f"{path}: measured, but not stored: {error}", "repair it, then --resume"
            ) from error
        self.state.records.setdefault(gpu.uuid, {})[seed] = record.id
        save(self.state, self.out)
        for done in (path, samples_path(path)):
            done.unlink(missing_ok=True)

    def _set_aside(self, path: Path, reason: str) -> None:
        folder = self.out / "quarantine" / self.state.plan.id
        folder.mkdir(parents=True, exist_ok=True)
        for part in (path, samples_path(path)):
            if part.exists():
                part.replace(folder / part.name)
        self.quarantined.append(f"{folder / path.name}: {reason}")
        self.console.print(f"{path.name}: set aside: {reason}", markup=False, highlight=False, soft_wrap=True)
