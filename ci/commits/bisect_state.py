"""The state of a bisection in its folder: what was asked for, the series that is followed, what is known of commits."""

from pathlib import Path

import msgspec

from ci.config import Key
from ci.exits import UsageError
from ci.whole_files import json_bytes, replace_file

from .ranges import Commit
from .search import Answer

FILE = "bisect.json"


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is known of one commit against GOOD."""

    answer: Answer
    reason: str
    is_measured: bool = True
    change_pct: float | None = None
    low_pct: float | None = None
    high_pct: float | None = None


class BisectPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What was asked for; ``--resume`` goes on with exactly this. Filters are globs of what is followed.

    Attributes:
        program: whose benchmarks measure every gate: ``base``, that is GOOD, or a commit.
    """

    good: str
    good_source: str  # git's hash of its library, as of the commits
    bad: str
    commits: list[Commit]  # after GOOD up to BAD
    case_set: str
    pattern: str
    metric: str
    op: str
    provider: str
    seed: int
    blocks: tuple[int, int]  # of screen and confirmation
    program: str


class BisectState(msgspec.Struct, forbid_unknown_fields=True):
    """A plan, the series that is followed (the one that BAD shows best), and what is known of commits."""

    plan: BisectPlan
    series: Key | None = None
    gpu_model: str = ""  # of that series; an architecture where it is a static figure
    others: list[str] = []  # what else is slower in BAD
    steps: dict[str, Step] = {}


def save(state: BisectState, out: Path) -> None:
    """Raises BrokenEnvironmentError where it cannot be written."""
    replace_file(out / FILE, json_bytes(state))


def load(out: Path) -> BisectState:
    """Raises UsageError without one that can be read."""
    try:
        return msgspec.json.decode((out / FILE).read_bytes(), type=BisectState)
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(f"{out / FILE}: cannot be read: {error}", "python -m ci bisect GOOD BAD --out DIR") from error
