"""Reads the file that says where a night's shards run: pools of like nodes, and what is done about trouble."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from benchmarks.cases import BenchCase
from benchmarks.sharding import ShardOf, deal
from ci.config import Positive, load_toml
from ci.exits import UsageError

OURS = {
    "array", "chdir", "cpus-per-task", "error", "exclude", "gres", "job-name", "open-mode", "output",
    "partition", "time",
}  # fmt: skip

Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,31}$")]
Option = Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9_-]*$")]  # of sbatch, without its dashes
Line = Annotated[str, msgspec.Meta(pattern=r"^[^\r\n]+\Z")]  # of a job's script


class Pool(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Nodes with one kind of GPU, or without any."""

    name: Name
    partition: Line
    gres: Line | None = None  # as "gpu:h200:1"; None: nodes without a GPU
    shards: Positive = 1
    cpus_per_task: Positive = 4
    time_min: Positive = 60
    sbatch: dict[
        Option, Line | int | bool
    ] = {}  # further options of sbatch, by name: account, qos, exclusive = true, ...

    def __post_init__(self) -> None:
        if ours := sorted(OURS & {name.replace("_", "-") for name in self.sbatch}):
            raise ValueError(f"sbatch: {', '.join(ours)}: expected other options than those that this program sets")

    @property
    def has_gpus(self) -> bool:
        """Whether a node without a GPU is broken; else shards are measured on what a node has."""
        return self.gres is not None and "gpu" in self.gres

    def dealt(self, cases: Sequence[BenchCase]) -> list[list[str]]:
        """Names of the cases of each shard. Raises UsageError where one would have none."""
        if self.shards > len(cases):
            raise UsageError(f"pool {self.name}: {self.shards} shards of {len(cases)} cases")
        indices = range(1, self.shards + 1)
        return [[case.name for case in deal(cases, ShardOf(index, self.shards))] for index in indices]


class Fleet(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The content of the file."""

    version: Literal[1]
    pool: Annotated[list[Pool], msgspec.Meta(min_length=1)]
    control: list[Line] = []  # run first on each node; an exit code other than 0 quarantines it
    retries: Annotated[int, msgspec.Meta(ge=0)] = 2  # of a shard whose job was lost or failed
    backoff_s: Annotated[float, msgspec.Meta(ge=0, le=86400)] = (
        60  # before the first retry; twice as long before the next
    )
    poll_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 15
    give_up_min: Positive = 240  # after so long the night is judged without what has not come


def load_fleet(path: Path | None) -> Fleet:
    """Raises UsageError that names the file, the place and what was expected there."""
    if path is None:
        raise UsageError("--fleet: expected a file that names partitions", "docs/operating.md has one to copy")
    fleet = load_toml(path, Fleet)
    names = [pool.name for pool in fleet.pool]
    if twice := {name for name in names if names.count(name) > 1}:
        raise UsageError(f"{path}: pool: expected each name once, got {sorted(twice)} twice")
    return fleet


def described(fleet: Fleet, cases: Sequence[BenchCase]) -> dict[str, Any]:
    """Of each pool what would be asked of Slurm, and how the cases are dealt to its shards."""
    return {
        pool.name: {
            "partition": pool.partition,
            "gres": pool.gres,
            "shards": pool.shards,
            "cases": "+".join(str(len(names)) for names in pool.dealt(cases)),
            "at_most_min": pool.time_min,
        }
        for pool in fleet.pool
    }
