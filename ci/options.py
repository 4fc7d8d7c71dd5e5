"""What a command that measures is told: of a night, of both of ``ci neighbours``, of a collection."""

import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cases import BenchCase
from benchmarks.harness.records import Shard

from .config import Fork, choose_fork, load_nightly
from .starting import FORK_SERVER
from .static import PROGRAM as STATIC_COMMAND

COMMAND = (sys.executable, "-m", "benchmarks.run")
CONTROLS_COMMAND = (sys.executable, "-m", "benchmarks.controls_alone")
COMPILE_COMMAND = (sys.executable, "-m", "benchmarks.compile_first")


@dataclass(frozen=True, slots=True)
class Options:
    """A nightly as asked for; ``selected`` are the names of the cases that ``case_set`` and ``pattern`` choose."""

    case_set: str
    pattern: str
    selected: Sequence[str]
    store: str
    out: Path
    processes: int
    seed: int
    shard: Shard | None = None  # ``selected`` are then its cases alone
    gpus: str | None = None
    commit: str | None = None
    resume: bool = False
    wait_s: float = 0.0
    exclusive: bool = False  # one GPU at a time; else all of them at once
    page: bool = True
    fork: Fork = "no"
    precompile: bool = False
    static: bool = False
    counters: bool = False
    providers: str = "none"
    provider_files: Sequence[str] = ()
    command: Sequence[str] = COMMAND
    fork_server: Sequence[str] = FORK_SERVER
    compile_command: Sequence[str] = COMPILE_COMMAND
    static_command: Sequence[str] = STATIC_COMMAND
    controls_command: Sequence[str] = CONTROLS_COMMAND


def asked(
    case_set: str,
    pattern: str,
    cases: Sequence[BenchCase],
    *,
    store: str,
    out: Path,
    processes: int | None,
    seed: int | None,
    fork: str | None,
    gpus: str | None,
    commit: str | None,
    resume: bool,
    wait_s: float,
) -> Options:
    """What every command that measures nights is told; None is as ``ci/nightly.toml`` has it, and of the seed drawn.

    Raises:
        UsageError: ``fork`` is neither no, yes nor mixed.
    """
    config = load_nightly()
    return Options(
        case_set=case_set,
        pattern=pattern,
        selected=[case.name for case in cases],
        store=store,
        out=out,
        processes=config.processes if processes is None else processes,
        seed=random.randrange(2**31) if seed is None else seed,
        gpus=gpus,
        commit=commit,
        resume=resume,
        wait_s=wait_s,
        exclusive=config.exclusive,
        fork=choose_fork(fork, config),
    )
