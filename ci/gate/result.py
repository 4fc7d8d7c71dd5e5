"""What a gate found: the one thing that ``gate judge`` makes and that every output is made of.

Pure data. The same gate folder always gives the same bytes: no clock, no folder of this machine, keys sorted, numbers
rounded where two machines' last digits may differ.
"""

import math
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from benchmarks.harness.records import Contract, RegressionState, Struct, VerdictName
from ci.exits import WORST_FIRST, Exit

SCHEMA_VERSION = 1
DIGITS = 6  # significant ones that are kept of what was computed

Side = Literal["base", "head"]
Stage = Literal["exact", "screen", "confirm", "none"]  # what a verdict rests on; static figures are exact

FindingKind = Literal[
    "base-without-data",  # the base cannot be measured, so nothing is known
    "head-does-not-build",  # the head cannot be imported or compiled
    "gpus-differ",  # the sides, or processes of one block, ran on different cards
    "environments-differ",  # driver, torch, power limit, ... changed between processes
    "wrong-tree",  # a record that is not its process's: of other sources, another seed, twice the same
    "crashed-on-head",  # a process or case ended early on the head alone
    "crashed-on-base",
    "crashed-on-both",
    "check-failed",  # a correctness check
    "unsound-processes",  # the card drifted; their blocks do not count
    "too-few-blocks",
    "damaged-folder",  # files of it cannot be read, or are gone
    "unfinished",  # `gate run` has not ended; --max-seconds or an interruption
    "case-vanished",  # from the head's own set, and renamed to nothing
    "policy-changed",  # the head changes what judges it
    "stale-policy",  # an alias or a known regression that names nothing any more
    "note",
]


class SideOf(Struct, frozen=True, kw_only=True):
    """One of the two commits."""

    commit: str
    source_hash: str  # of recoverssm's files
    subject: str = ""  # first line of the commit's message


class Finding(Struct, frozen=True, kw_only=True):
    """Something about the gate as a whole, or about one case of it."""

    kind: FindingKind
    message: str  # complete on its own
    exit_code: int = 0  # what it alone would end the gate with
    case: str = ""
    next_step: str = ""
    cleared_by: str = ""  # an owner; a finding that is cleared fails nothing


class GateVerdict(Struct, frozen=True, kw_only=True):
    """One series of the head against the same series of the base."""

    metric: str
    op: str
    provider: str
    case: str
    contract: Contract
    gpu_model: str  # an architecture such as "sm_90" for static figures, "cpu" for what a CPU takes
    unit: str
    decimals: Annotated[int, msgspec.Meta(ge=0, le=9)] | None = None  # to show of a value (ci/thresholds.toml)
    verdict: VerdictName
    reason: str
    stage: Stage
    gated: bool
    base_value: float | None = None  # median over processes, or the exact value
    head_value: float | None = None
    change_pct: float | None = None  # the estimate: 100 * (head / base - 1), over paired blocks
    low_pct: float | None = None  # its 95 % interval
    high_pct: float | None = None
    limit_pct: float | None = None
    detectable_pct: float | None = None  # smallest detectable effect: 80 % power at the gate's rate
    p: float | None = None
    q: float | None = None  # after Benjamini-Hochberg over the suspects
    sign_flip_p: float | None = None
    n_blocks: int = 0
    suspected: bool = False  # at the screen
    identical: bool = False  # same binaries and launch arguments on both sides: not judged by time, an A/A pair
    known: RegressionState = ""  # what ci/known-regressions.toml says of it
    known_reason: str = ""
    reproduce: str = ""  # a command line; only where somebody may want to

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        return (self.metric, self.op, self.provider, self.case, self.contract)

    @property
    def fails(self) -> bool:
        """Whether this verdict fails the gate."""
        return self.gated and self.verdict in ("regressed", "missing", "invalid") and self.known != "acknowledged"


class GateResult(Struct, frozen=True, kw_only=True):
    """Everything that outputs say. Verdicts: most urgent and strongest evidence first; findings: likewise."""

    schema_version: int = SCHEMA_VERSION
    base: SideOf
    head: SideOf
    distance: int  # commits of the head that the base lacks
    base_found: str  # how: "merge base", "nearest ancestor with data", "as given"
    harness: str  # whose benchmarks measured: base, head, own or a shortened commit
    case_set: str
    cases: list[str]
    gpu_model: str  # "cpu" without a GPU; "" where nothing was measured
    environment: str = ""  # one line: driver, torch, Triton
    seed: int
    n_blocks: dict[str, int]  # by stage, those that count
    verdicts: list[GateVerdict]
    findings: list[Finding]
    exit_code: int
    reproduce: str

    @property
    def outcome(self) -> str:
        """One word for people: passed, regressed, incomplete, invalid or broken."""
        return {
            Exit.PASS: "passed",
            Exit.REGRESSED: "regressed",
            Exit.MISSING: "incomplete",
            Exit.INVALID: "invalid",
        }.get(Exit(self.exit_code), "broken")

    def counts(self) -> dict[VerdictName, int]:
        """How many series have each verdict, of those that have any."""
        found: dict[VerdictName, int] = {}
        for one in self.verdicts:
            found[one.verdict] = found.get(one.verdict, 0) + 1
        return found


def exit_code(verdicts: Sequence[GateVerdict], findings: Sequence[Finding]) -> Exit:
    """What casts most doubt comes first; a slower head is told apart from one that could not be judged."""
    failing = {one.verdict for one in verdicts if one.fails}
    codes = [Exit.PASS, *(Exit(one.exit_code) for one in findings if not one.cleared_by)]
    codes += [Exit.INVALID] if "invalid" in failing else []
    codes += [Exit.MISSING] if "missing" in failing else []
    codes += [Exit.REGRESSED] if "regressed" in failing else []
    return min(codes, key=WORST_FIRST.index)


def rounded(value: float | None) -> float | None:
    """To ``DIGITS`` significant ones; None of what is not finite."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.{DIGITS}g}") + 0.0  # + 0.0: no negative zero


def encode(result: GateResult) -> bytes:
    """Strict JSON, keys sorted, ending in a newline."""
    return msgspec.json.format(msgspec.json.encode(result, order="sorted"), indent=1) + b"\n"


def decode(data: bytes) -> GateResult:
    """Raises msgspec.ValidationError, also of another version, and msgspec.DecodeError: both name the place."""
    result = msgspec.json.decode(data, type=GateResult)
    if result.schema_version != SCHEMA_VERSION:
        raise msgspec.ValidationError(f"expected a result of version {SCHEMA_VERSION}, got {result.schema_version}")
    return result
