"""The state file of a night or collection in progress: which processes are to run and which have left a record."""

import random
from pathlib import Path

import msgspec

from benchmarks.harness.command_line import peer_arguments
from benchmarks.harness.records import Shard

from .config import Fork
from .exits import UsageError
from .whole_files import json_bytes, replace_file

STATE_FILE = "night-state.json"


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was asked for; ``--resume`` goes on with exactly this."""

    id: str  # also names the folder of records on their way into the store
    case_set: str
    pattern: str
    store: str
    commit: str | None
    gpus: list[str]  # UUIDs
    seeds: list[int]  # one per process and GPU
    all_gpus: bool = False  # they were to be all of the host
    fork: Fork = "no"  # "mixed": every second process is forked
    providers: str = "none"  # other projects' kernels, as for benchmarks.run
    provider_files: list[str] = []  # path:Class
    shard: Shard | None = None  # of a night that other runs measure too
    cases: list[str] = []  # of that shard
    delays: dict[int, float] | None = None  # percent, by seed; None: a night and no collection (`ci calibrate collect`)

    @property
    def case_arguments(self) -> list[str]:
        """Options of programs that choose cases, besides the set."""
        pattern = ",".join(self.cases) if self.shard else self.pattern
        return ["--case", pattern] if pattern != "*" else []

    @property
    def peer_arguments(self) -> list[str]:
        """Options of a measuring process."""
        return peer_arguments(self.providers, self.provider_files)


class State(msgspec.Struct, forbid_unknown_fields=True):
    """A plan and how far it has come."""

    plan: Plan
    records: dict[str, dict[int, str]]  # GPU -> seed -> record id
    static: dict[str, str] = {}  # architecture -> id of the record of what was compiled for it
    night_ids: list[str] = []  # written at the end of a full night

    def missing(self, gpu: str) -> list[int]:
        """Seeds of the processes of this GPU without a record, in the order of the plan."""
        return [seed for seed in self.plan.seeds if seed not in self.records.get(gpu, {})]

    def is_forked(self, seed: int) -> bool:
        """Whether the process of this seed is to be forked, not started afresh."""
        return self.plan.fork == "yes" or (self.plan.fork == "mixed" and self.plan.seeds.index(seed) % 2 == 1)

    @property
    def is_complete(self) -> bool:
        return bool(self.night_ids) and not any(self.missing(gpu) for gpu in self.plan.gpus)

    def progress(self) -> str:
        done = sum(len(seeds) for seeds in self.records.values())
        return f"{done} of {len(self.plan.seeds) * len(self.plan.gpus)} processes measured"


def make_seeds(seed: int, processes: int) -> list[int]:
    """One seed per process, different from each other, the same for the same ``seed``."""
    return random.Random(seed).sample(range(2**31), processes)


def save(state: State, folder: Path) -> None:
    """Replace the state file at once: a reader sees the old or the new one, whatever happens.

    Raises:
        BrokenEnvironmentError: it cannot be written; the old one is there still.
    """
    replace_file(folder / STATE_FILE, json_bytes(state), "make room there, or give another --out")


def load(folder: Path) -> State | None:
    """The state in ``folder``, or None without one.

    Raises:
        UsageError: the file cannot be read; it is named.
    """
    path = folder / STATE_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=State)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}", "remove it and start without --resume") from error
