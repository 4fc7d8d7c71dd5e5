"""Reads ``ci/nightly.toml`` and ``ci/thresholds.toml``; a wrong key, type or range is an error that names the place."""

import tomllib
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal, TypeVar, cast, get_args

import msgspec

from benchmarks.harness.records import CONTRACTS
from benchmarks.harness.stats.verdict import Better, Limits

from .exits import UsageError

FOLDER = Path(__file__).parent
NIGHTLY_FILE = FOLDER / "nightly.toml"
THRESHOLDS_FILE = FOLDER / "thresholds.toml"

EXACT_CONTRACTS = ("exact", "static")
Key = tuple[str, str, str, str, str]  # metric, op, provider, case, contract: `key` of a measurement or verdict
# Exact values never reach the statistics; Limits still wants a range.
_EXACT_PCT = (1.0, 0.0)

Text = Annotated[str, msgspec.Meta(min_length=1)]
Reason = Annotated[str, msgspec.Meta(min_length=20)]
Date = Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d{2}-\d{2}$")]
Percent = Annotated[float, msgspec.Meta(gt=0, lt=100)]
Share = Annotated[float, msgspec.Meta(ge=0, lt=100)]
Fork = Literal["no", "yes", "mixed"]
Positive = Annotated[int, msgspec.Meta(ge=1)]


class Statistics(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Figures that hold for all series."""

    min_processes: Annotated[int, msgspec.Meta(ge=2)]
    false_discovery_rate: Annotated[float, msgspec.Meta(gt=0, lt=1)]
    control_limit_pct: Percent
    drift_limit_pct: Percent
    unit: Text
    reason: Reason
    owner: Text
    date: Date


class PairedFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How ``ci gate`` judges times, where both commits alternate on one card; a limit row may say otherwise."""

    limit_pct: Percent
    margin_pct: Share
    unit: Text
    reason: Reason
    owner: Text
    date: Date


class LimitRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One row of limits; the first seven fields say which series it fits (globs), the rest how those are judged."""

    metric: Text = "*"
    op: Text = "*"
    provider: Text = "*"
    case: Text = "*"
    contract: Text = "*"
    gpu_model: Text = "*"
    num_requests_min: int = 0
    limit_pct: Percent | None = None  # needed unless the contract is exact or static
    margin_pct: Share | None = None
    paired_limit_pct: Percent | None = None  # of ``ci gate``; where left out those of [paired]
    paired_margin_pct: Share | None = None
    floor_us: Annotated[float, msgspec.Meta(ge=0, lt=1e6)] = 0.0  # a change of a time by less is never acted on
    band_pct: Percent | None = None  # only of exact values: how much worse is no regression
    decimals: Annotated[int, msgspec.Meta(ge=0, le=9)] | None = None  # to show, of a value in its unit
    gated: bool = True
    better: dict[str, Better] = {}  # by metric; where not named "lower" for times, "equal" for exact values
    unit: Text
    reason: Reason
    owner: Text
    date: Date

    def fits(self, key: Key, num_requests: int, gpu_model: str) -> bool:
        globs = (self.metric, self.op, self.provider, self.case, self.contract, self.gpu_model)
        names = (*key, gpu_model)
        return num_requests >= self.num_requests_min and all(map(fnmatchcase, names, globs))

    @property
    def percents(self) -> tuple[float, float]:
        """Limit and margin of a row that times fall under; ``load_thresholds`` has seen to it that they are there."""
        if self.limit_pct is None or self.margin_pct is None:
            raise ValueError(f"limit row of {self.contract}: limit_pct and margin_pct are needed")
        return self.limit_pct, self.margin_pct

    @property
    def is_catch_all(self) -> bool:
        globs = {self.metric, self.op, self.provider, self.case, self.contract, self.gpu_model}
        return self.num_requests_min == 0 and globs == {"*"}


class Thresholds(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The content of ``thresholds.toml``."""

    version: Literal[1]
    statistics: Statistics
    paired: PairedFigures
    limit: Annotated[list[LimitRow], msgspec.Meta(min_length=1)]

    def row_for(self, key: Key, *, num_requests: int = 0, gpu_model: str = "") -> LimitRow:
        """The first row that fits a series."""
        return next(row for row in self.limit if row.fits(key, num_requests, gpu_model))

    def limits_for(self, key: Key, *, num_requests: int = 0, gpu_model: str = "") -> Limits:
        """How a night judges a series. An exact metric whose better direction no row names must not change at all."""
        row = self.row_for(key, num_requests=num_requests, gpu_model=gpu_model)
        metric, contract, processes = key[0], key[4], self.statistics.min_processes
        if contract in EXACT_CONTRACTS:
            return Limits(*_EXACT_PCT, processes, row.better.get(metric, "equal"), row.gated, row.band_pct or 0.0)
        limit, margin = row.percents
        return Limits(limit, margin, processes, row.better.get(metric, "lower"), row.gated, floor_us=row.floor_us)

    def paired_pct_for(self, row: LimitRow) -> tuple[float, float]:
        """Limit and margin of a gate for the series that fall under this row."""
        limit = self.paired.limit_pct if row.paired_limit_pct is None else row.paired_limit_pct
        margin = self.paired.margin_pct if row.paired_margin_pct is None else row.paired_margin_pct
        return limit, margin


class StaticConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a night compiles without running it."""

    archs: Annotated[tuple[Text, ...], msgspec.Meta(min_length=1)] = ("sm_90", "sm_100", "sm_103")
    case: Text = "*"  # glob over the cases of the night's set
    max_compilations: Positive = 60  # of the set nightly, over all architectures; a test holds the glob to it
    cap_s: Positive = 600


class Pinned(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The night of a GPU model that nights are held against once a week: that of a release."""

    gpu_model: Text
    night: Text
    reason: Reason
    owner: Text
    date: Date


class NightlyConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The content of ``nightly.toml``."""

    version: Literal[1]
    processes: Positive
    max_failed_processes: Positive
    time_cap_s: dict[str, Positive]
    max_successors: Annotated[int, msgspec.Meta(ge=0)] = 4
    max_crashes_of_a_case: Positive = 2
    case_cap_s: Positive = 180
    precompile_cap_s: Positive = 240
    fork: Fork = "no"
    exclusive: bool = False
    static: StaticConfig = StaticConfig()
    pinned: list[Pinned] = []

    def pinned_night(self, gpu_model: str) -> str | None:
        """The id of the night that this GPU model is held against."""
        return next((one.night for one in self.pinned if one.gpu_model == gpu_model), None)

    def cap_s(self, case_set: str) -> int:
        """Seconds one process may take; a set not named gets the longest."""
        return self.time_cap_s.get(case_set, max(self.time_cap_s.values()))


T = TypeVar("T", bound=msgspec.Struct)


def load_thresholds(path: Path = THRESHOLDS_FILE) -> Thresholds:
    """Raises UsageError that names the file, the place and what was expected there."""
    thresholds = load_toml(path, Thresholds)
    for number, row in enumerate(thresholds.limit, start=1):
        _check_row(f"{path}: limit row {number}", row, thresholds)
    if not thresholds.limit[-1].is_catch_all:
        raise UsageError(
            f"{path}: the last limit row must fit every series (no metric, op, provider, case, contract, gpu_model or "
            "num_requests_min)"
        )
    return thresholds


def load_nightly(path: Path = NIGHTLY_FILE) -> NightlyConfig:
    """Raises UsageError that names the file, the place and what was expected there."""
    config = load_toml(path, NightlyConfig)
    if not config.time_cap_s:
        raise UsageError(f"{path}: time_cap_s: expected at least one set with its seconds")
    return config


def choose_fork(asked: str | None, config: NightlyConfig) -> Fork:
    """What the command line says, else the file.

    Raises:
        UsageError: neither no, yes nor mixed.
    """
    for known in get_args(Fork):
        if asked == known:
            return cast(Fork, known)
    if asked is None:
        return config.fork
    raise UsageError(f"--fork: expected no, yes or mixed, got {asked!r}")


def _check_row(where: str, row: LimitRow, thresholds: Thresholds) -> None:
    contracts = [c for c in CONTRACTS if fnmatchcase(c, row.contract)]
    if not contracts:
        raise UsageError(
            f"{where}: contract: expected one of {', '.join(CONTRACTS)} or a glob of them, got {row.contract!r}"
        )
    if set(contracts) <= set(EXACT_CONTRACTS):
        if row.floor_us:
            raise UsageError(f"{where}: floor_us: of times alone, not of contract {row.contract}")
        return
    if row.band_pct is not None:
        raise UsageError(f"{where}: band_pct: expected only with contract {' or '.join(EXACT_CONTRACTS)}")
    if row.limit_pct is None or row.margin_pct is None:
        raise UsageError(f"{where}: limit_pct and margin_pct are needed, for it fits {', '.join(contracts)}")
    _check_percents(where, "", row.limit_pct, row.margin_pct)
    _check_percents(where, "paired_", *thresholds.paired_pct_for(row))


def _check_percents(where: str, prefix: str, limit_pct: float, margin_pct: float) -> None:
    if margin_pct >= limit_pct:
        raise UsageError(
            f"{where}: {prefix}margin_pct: expected less than {prefix}limit_pct {limit_pct:g}, got {margin_pct:g}"
        )


def load_toml(path: Path, kind: type[T]) -> T:
    """The file as that struct. Raises UsageError that names the file, the place and what was expected there."""
    try:
        return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), kind)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: not valid TOML: {error}") from error
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: {error}") from error
