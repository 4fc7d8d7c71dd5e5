"""What a gate is to do, and the files of its folder. Written once by ``gate prepare``; nothing here needs git.

plan.json                  this module's Plan
base/ head/                recoverssm of each commit, beside the measuring program that measures it
policy/                    the limits, known regressions and renamed cases that judge
head-own/                  the head beside its own program, where that differs: which cases has it?
policy-head/               cases that the head renames, which count once an owner has approved
static/{base,head}/        what was compiled of each side
records/NAME.json          one per measuring process, named stage-block-position-side
state.json                 how far ``gate run`` has come
verdict.json and others    what ``gate judge`` found (outputs/)
"""

import datetime as dt
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeVar, get_args

import msgspec

from ci.exits import UsageError
from ci.whole_files import replace_file

from .result import Side

HEAD_OWN = "head-own"
PLAN_FILE, STATE_FILE = "plan.json", "state.json"
SCHEMA_VERSION = 1

BlockStage = Literal["screen", "confirm"]
STAGES: tuple[BlockStage, ...] = get_args(BlockStage)
USUAL_BLOCKS: dict[BlockStage, int] = {"screen": 6, "confirm": 12}
CPU_BLOCKS = 1  # of each stage: times of a CPU fail nothing, and what is exact needs no repetition
Positive = Annotated[int, msgspec.Meta(ge=1)]


T = TypeVar("T", bound=msgspec.Struct)


class SidePlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One side. Hashes are of files: whoever copied the folder has copied all of it, or is told."""

    commit: str
    subject: str
    source_hash: str  # of recoverssm
    program_hash: str  # of benchmarks, which measures it


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that decides what is measured and how it is judged."""

    schema_version: int = SCHEMA_VERSION
    date: dt.date  # UTC day of preparation: by it entries of the policy expire, however late they are judged
    base: SidePlan
    head: SidePlan
    distance: int
    base_found: str
    harness: str  # whose program measures: base, head, own or a shortened commit
    case_set: str
    pattern: str
    cases: list[str]  # of the program that measures the base
    archs: list[str]  # that kernels are compiled for
    seed: int
    blocks: dict[BlockStage, Positive]
    policy_hash: str
    policy_of: str  # commit
    policy_changes: list[str]  # files of the head that would have judged it otherwise
    approved_by: str = ""  # an owner, who has seen those

    def side(self, side: Side) -> SidePlan:
        return self.base if side == "base" else self.head


class State(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How far a run has come. Records tell which processes are done."""

    gpu: str = ""  # UUID of the one that all of it is measured on
    blocks: dict[BlockStage, Positive] = {}  # needed on this machine; on a CPU fewer than planned
    built_in: str = ""  # start of the machine in which both sides were last compiled
    not_compiled: dict[Side, str] = {}  # sides without static figures, and why
    failures: dict[str, str] = {}  # processes without a record, and why
    broken: dict[Side, str] = {}  # sides that cannot be measured at all
    head_cases: list[str] | None = None  # of the head's own program, where that measures it
    vanished: list[str] | None = None  # cases that the head's own set lacks; their new names are looked up when judging
    suspects: list[str] | None = None  # cases that the screen leaves to the confirmation
    complete: bool = False

    def cases_of(self, side: Side, plan: Plan) -> list[str]:
        """Names as the program knows them that measures this side."""
        return plan.cases if side == "base" or self.head_cases is None else self.head_cases


@dataclass(frozen=True, slots=True)
class Process:
    """One measuring process of a block; base and head of a pair share the seed, and so inputs and order of cases."""

    stage: BlockStage
    block: int
    position: int
    side: Side
    seed: int

    @property
    def name(self) -> str:
        return f"{self.stage}-{self.block:02d}-{self.position}-{self.side}"


def block_of(seed: int, stage: BlockStage, number: int) -> tuple[Process, ...]:
    """The four processes of a block in their order: base, head, head, base or the reverse, by chance."""
    rng = random.Random(f"{seed}/{stage}/{number}")
    first, second = rng.choice((("base", "head"), ("head", "base")))
    seeds = [rng.randrange(2**31) for _ in range(2)]
    order: tuple[Side, ...] = (first, second, second, first)  # type: ignore[assignment]  # mypy sees strings
    return tuple(Process(stage, number, place, side, seeds[place // 2]) for place, side in enumerate(order))


def spare_blocks(needed: int) -> int:
    """How many more are tried where the card drifted, or a process left no record."""
    return max(1, needed // 3)


def blocks_to_try(plan: Plan, stage: BlockStage, needed: int) -> Iterator[tuple[Process, ...]]:
    """Blocks in the order in which they are measured, spare ones last."""
    for number in range(needed + spare_blocks(needed)):
        yield block_of(plan.seed, stage, number)


def record_path(folder: Path, name: str) -> Path:
    return folder / "records" / f"{name}.json"


def load_plan(folder: Path) -> Plan:
    """Raises UsageError: there is none, or it is of another version."""
    path = folder / PLAN_FILE
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", "python -m ci gate prepare BASE HEAD --out DIR") from error
    plan = _decode(path, data, Plan)
    if plan.schema_version != SCHEMA_VERSION:
        raise UsageError(
            f"{path}: expected a plan of version {SCHEMA_VERSION}, got {plan.schema_version}",
            "use the program that prepared it, or prepare the gate anew",
        )
    return plan


def load_state(folder: Path) -> State:
    """A new one where nothing has run. Raises as ``load_plan``."""
    path = folder / STATE_FILE
    return _decode(path, path.read_bytes(), State) if path.exists() else State()


def save(folder: Path, content: Plan | State) -> None:
    """Replace the file at once. Raises BrokenEnvironmentError where it cannot be written."""
    replace_file(folder / (PLAN_FILE if isinstance(content, Plan) else STATE_FILE), to_bytes(content))


def to_bytes(content: Plan | State) -> bytes:
    """Strict JSON, keys sorted."""
    return msgspec.json.format(msgspec.json.encode(content, order="sorted"), indent=1) + b"\n"


def _decode(path: Path, data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.DecodeError as error:
        raise UsageError(f"{path}: cannot be read: {error}", "prepare the gate anew in another folder") from error
