"""The trust record: how often the gate is wrong on one GPU model, and what it finds; strict JSON in reports/trust."""

import math
from pathlib import Path

import msgspec

from benchmarks.harness.records import Struct
from ci.exits import UsageError

SCHEMA_VERSION = 1
MODEL = "model estimate: gates made of recorded processes drawn at random, each gate from one occasion"
DIGITS = 4  # significant ones that are kept


class Occasion(Struct, frozen=True, kw_only=True):
    """One start of one machine."""

    id: str
    card: str  # hashed
    commit: str | None
    source_hash: str
    began_utc: str
    num_plain: int  # sound processes of the code as it is
    num_delayed: dict[str, int]  # by delay asked for, percent
    num_unsound: int


class DisjointGates(Struct, frozen=True, kw_only=True):
    """Gates of the code against itself, no process in two of them."""

    num_gates: int
    num_with_suspects: int  # that the screen made; a confirmation followed where processes were left
    num_with_alarm: int
    num_unsettled: int  # suspects, and no processes left to confirm them
    upper_pct: float | None  # exact 95 % upper bound of the rate of alarms, unsettled ones counted; None without gates


class ResampledGates(Struct, frozen=True, kw_only=True):
    """The same from processes that are used again and again."""

    label: str = MODEL
    num_gates: int
    num_with_suspects: int
    num_with_alarm: int
    rate_pct: float | None
    by_occasion_pct: dict[str, float]


class IdenticalPairs(Struct, frozen=True, kw_only=True):
    """Series of real gates whose binaries are the same on both sides: screened, never confirmed."""

    gates: list[str]  # base..head, where most series are such ones
    num_series: int  # over all gates
    num_suspects: int  # of those series; a suspect is no alarm yet
    num_gates_with_suspects: int
    upper_pct: float | None  # exact 95 % upper bound of the rate of gates with suspects


class Power(Struct, frozen=True, kw_only=True):
    """Share of gates that find one slowed series among series that are not, over all series."""

    delay_pct: float  # asked for
    realised_pct: float  # mean over series of what came out, each process against its own windows
    apart_pct: float  # mean over series by which these processes differ from the plain ones of their occasion
    real_pct: float  # head: processes with a delay on the device
    synthetic_pct: float  # head: plain processes, their times scaled by the same
    num_series: int
    num_gates: int  # of each series

    @property
    def points_apart(self) -> float:
        return abs(self.real_pct - self.synthetic_pct)


class SeriesTrust(Struct, frozen=True, kw_only=True):
    """One series. Percent; None where the data cannot tell."""

    metric: str
    op: str
    provider: str
    case: str
    contract: str
    gated: bool
    median_us: float | None
    process_sd_pct: float | None  # of process medians on one occasion, pooled over occasions
    modes_pct: float | None = None  # how far apart two modes of its processes are on an occasion; None: one mode
    limit_pct: float  # the least change that counts, absolute floor included
    detectable_pct: float | None  # found with 80 % power by the whole gate
    noise_detectable_pct: float | None  # the same without the absolute floor
    found_pct: dict[str, float]  # real delays, by delay asked for


class Target(Struct, frozen=True, kw_only=True):
    """What was promised, and whether the data keep it; None where they cannot say."""

    name: str
    wanted: str
    found: str
    met: bool | None


class TrustRecord(Struct, frozen=True, kw_only=True):
    """Everything that docs/trust.md and the page say of one GPU model."""

    schema_version: int = SCHEMA_VERSION
    gpu_model: str
    data_sha256: str  # of the A/A set
    policy_sha256: str  # of the limits that a gate has for the set's series; in the first record of ci/thresholds.toml
    newest_utc: str  # of its processes
    seed: int
    num_screen_blocks: int
    num_confirm_blocks: int
    rate: float
    occasions: list[Occasion]
    disjoint: DisjointGates
    resampled: ResampledGates
    identical: IdenticalPairs
    power: list[Power]
    blind_pct: dict[str, float]  # share of series whose detectable effect exceeds so many percent
    series: list[SeriesTrust]  # worst detectable effect first
    targets: list[Target]

    def blind(self, effect_pct: float) -> list[SeriesTrust]:
        """The series in which an effect of this size is not found with 80 % power, or nobody can tell."""
        return [one for one in self.series if one.detectable_pct is None or one.detectable_pct > effect_pct]


def encode(record: TrustRecord) -> bytes:
    """Strict JSON ending in a newline; the same record always gives the same bytes."""
    return msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"


def load(path: Path) -> TrustRecord:
    """Raises UsageError that names the file and the place."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=TrustRecord)
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"{path}: no trust record: {error}") from error


def file_name(record: TrustRecord) -> str:
    """By GPU model, newest process and data, so that records of other data stand beside each other."""
    return f"{record.gpu_model}-{record.newest_utc[:10]}-{record.data_sha256[:8]}.json"


def rounded(value: float) -> float | None:
    """To four significant digits; None of what is not finite."""
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
