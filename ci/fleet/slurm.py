"""Slurm behind a seam: submit shards as array jobs through submitit, ask what is left of them, take them back."""

import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from ci.exits import BrokenEnvironmentError

from .config import Pool
from .worker import ShardJob

ASK_CAP_S = 60
COMMANDS = ("sbatch", "squeue", "scancel", "sinfo")
ENDED = frozenset(
    [
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
    ]
)


class Scheduler(Protocol):
    """What a night needs of a cluster."""

    def submit(self, pool: Pool, jobs: Sequence[ShardJob], exclude: Collection[str]) -> list[str]:
        """Ids of the jobs, which keep off the excluded nodes. Raises BrokenEnvironmentError where none were made."""

    def alive(self, ids: Collection[str]) -> Mapping[str, str]:
        """Those that wait, run or are about to run again, each with its state. Raises BrokenEnvironmentError."""

    def cancel(self, ids: Collection[str]) -> None:
        """End them; those that have ended already are no error. Raises BrokenEnvironmentError."""


class Slurm:
    """The cluster that ``sbatch`` and ``squeue`` of this host speak with.

    Accounting is not asked for: small clusters have none. ``logs`` and the places of jobs lie on a disk that all share.
    """

    def __init__(self, logs: Path) -> None:
        try:
            from submitit import SlurmExecutor
        except ImportError as error:
            raise BrokenEnvironmentError(f"--executor slurm: {error}", "pip install 'recoverssm[cluster]'") from error
        if missing := [name for name in COMMANDS if shutil.which(name) is None]:
            raise BrokenEnvironmentError(
                f"--executor slurm: no {', '.join(missing)} on this host", "run it where jobs are submitted"
            )
        self._executor = partial(SlurmExecutor, folder=logs)

    def submit(self, pool: Pool, jobs: Sequence[ShardJob], exclude: Collection[str]) -> list[str]:
        try:
            executor = self._executor()
            executor.update_parameters(
                job_name=f"recoverssm-{pool.name}",
                partition=pool.partition,
                gres=pool.gres,
                cpus_per_task=pool.cpus_per_task,
                time=pool.time_min,
                exclude=",".join(_known(exclude)) or None,
                stderr_to_stdout=True,
                additional_parameters={"requeue": True} | {k: v for k, v in pool.sbatch.items() if v is not False},
            )
            with executor.batch():  # one array
                submitted = [executor.submit(job) for job in jobs]
            return [job.job_id for job in submitted]
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:
            raise BrokenEnvironmentError(f"partition {pool.partition}: jobs cannot be submitted: {error}") from error

    def alive(self, ids: Collection[str]) -> Mapping[str, str]:
        arrays = ",".join(sorted({one.partition("_")[0] for one in ids}))
        said = _ask("squeue", "--noheader", "--array", "--states=all", f"--jobs={arrays}", "--format=%i %T (%r)")
        states = dict(line.split(maxsplit=1) for line in said.splitlines() if line.strip())
        return {one: states[one] for one in ids if one in states and states[one].split()[0] not in ENDED}

    def cancel(self, ids: Collection[str]) -> None:
        _ask("scancel", *sorted(ids))


def _known(nodes: Collection[str]) -> list[str]:
    """Those that this cluster has: Slurm refuses every job that is to keep off another one."""
    return sorted(set(nodes) & set(_ask("sinfo", "--noheader", "--Node", "--format=%N").split())) if nodes else []


def _ask(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ASK_CAP_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BrokenEnvironmentError(f"{command[0]}: {error}", "is Slurm installed on this host?") from error
    if done.returncode and "Invalid job id" not in done.stderr:  # what ended long ago is forgotten
        raise BrokenEnvironmentError(f"{command[0]}: exit {done.returncode}: {done.stderr.strip()}")
    return done.stdout
