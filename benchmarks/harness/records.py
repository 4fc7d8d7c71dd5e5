"""What one measuring process leaves behind: the schema of a record and of a night.

A *record* is one run of ``python -m benchmarks.run``: what was measured, on what, and how. Every sample lies in a
Parquet file of the same name. A *night* names the records of one ``ci nightly`` and holds its verdicts.
Units are fixed by the metric's name (``device_us``, ``cache_bytes``); readers convert only when printing.
Schema history: 1 (2026-11-29) first. Fields with a default may be added without a new version; anything else needs
one, and a step in ``migrations.py``.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, get_args

import msgspec

SCHEMA_VERSION = 1

Contract = Literal["graph-cold", "graph-warm", "nvbench-cold", "host-dispatch", "cpu-reference", "exact", "static"]
Status = Literal["ok", "skipped", "failed", "invalid"]
Started = Literal["fresh", "forked"]
CounterStatus = Literal["ok", "marked", "small", "missing"]
When = Literal["start", "end"]
VerdictName = Literal["regressed", "improved", "unchanged", "new", "inconclusive", "blind", "missing", "invalid"]
RegressionState = Literal["", "new", "confirmed", "acknowledged", "fixed", "expired"]

# Nights are ordered by it as text.
Utc = Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z$")]

CONTRACTS: tuple[str, ...] = get_args(Contract)


class Struct(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all stored objects: immutable, no unknown fields."""


class Environment(Struct, frozen=True, kw_only=True):
    """What cuts a series when it changes. Absent facts are None; ``missing`` says why, by field name."""

    gpu_model: str  # slug such as "nvidia-h200"; "cpu" without a GPU
    gpu_memory_bytes: int | None = None
    compute_capability: str | None = None
    num_sms: int | None = None
    l2_bytes: int | None = None
    mig: str | None = None
    ecc: str | None = None
    power_limit_w: float | None = None
    driver: str | None = None
    cuda: str | None = None
    python: str
    torch: str
    triton: str | None = None
    ptxas: str | None = None
    harness: str  # version of benchmarks.harness
    cpu_model: str | None = None
    os_kernel: str | None = None
    missing: dict[str, str] = {}

    def cut_key(self, *, host: bool) -> tuple[Any, ...]:
        """Fields that must be equal for two values to stand in one series; CPU and OS count for host metrics only."""
        values = msgspec.structs.asdict(self)
        values.pop("missing")
        if not host:
            values.pop("cpu_model")
            values.pop("os_kernel")
        return tuple(values.items())


class Silicon(Struct, frozen=True, kw_only=True):
    """Which physical card and host. A random effect: shown (hashed in public), never cutting a series."""

    gpu_uuid: str | None = None
    vbios: str | None = None
    host: str | None = None
    missing: dict[str, str] = {}


class Subject(Struct, frozen=True, kw_only=True):
    """What is tracked: the code that was measured."""

    commit: str | None = None  # None where there is no git and no --commit
    commit_utc: str | None = None
    dirty: bool | None = None
    source_hash: str  # of the recoverssm package's files
    version: str
    binaries: dict[str, str] = {}  # hashes of compiled kernels by "name id", code and constants alone


class Case(Struct, frozen=True, kw_only=True):
    """A named workload, as far as readers of a record need it."""

    name: str
    stands_for: str
    num_requests: int
    spec_query_len: int
    num_heads: int
    num_layers: int
    mean_accepted: float
    state_dtype: str  # "fp32" | "bf16"


class Check(Struct, frozen=True, kw_only=True):
    """One comparison with the float64 reference, made before anything was timed."""

    case: str
    op: str
    provider: str
    metric: str  # "out_error", "u_error", "state_error": relative Frobenius norm; "untouched": differing elements
    value: float | None  # None when not finite; then passed is False
    limit: float
    passed: bool
    detail: str = ""


class Control(Struct, frozen=True, kw_only=True):
    """A kernel of ours on plain memory, or in registers alone: what this process on this card could reach."""

    name: str  # "copy" | "read" | "read4_write1" | "fma"
    when: When = "start"  # of the process, or its end
    read_bytes: int
    write_bytes: int
    median_us: float  # the middle one of readings_us
    bytes_per_s: float
    readings_us: list[float] = []  # medians of the readings, in order; empty in older records, which had one
    first_readings_us: list[float] = []  # at the end: those that were off, after which it was measured once more


class Measurement(Struct, frozen=True, kw_only=True):
    """One series' value in this process. Series key: metric / op / provider / case / GPU model / contract."""

    metric: str
    op: str
    provider: str
    case: str
    contract: Contract
    unit: str
    status: Status = "ok"
    reason: str = ""  # why not ok; for ok: why sampling stopped
    value: float | None = None  # median of the samples, or the exact value
    low: float | None = None  # 95 % interval of the median within this process
    high: float | None = None
    n_samples: int = 0
    launches_per_sample: int = 0  # op calls inside one timed window
    read_bytes: int | None = None  # compulsory DRAM bytes of one op call
    write_bytes: int | None = None
    roofline_pct: float | None = None
    control_pct: float | None = None
    sm_mhz: float | None = None  # lowest SM clock of any block of counted samples, from the SMs' cycle counters
    n_dropped: int = 0  # samples that do not count: the card was held back while they were taken
    throttle_us: dict[str, int] = {}  # growth of the throttle counters over this series, by reason
    delay_pct: float | None = None  # how much longer every window was than without the delay asked for, as measured

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        return (self.metric, self.op, self.provider, self.case, self.contract)


class MonitorSummary(Struct, frozen=True, kw_only=True):
    """What NVML saw of the card during this process. Absent facts are None; ``missing`` says why."""

    num_readings: int = 0
    sm_clock_mhz_min: float | None = None
    sm_clock_mhz_median: float | None = None
    sm_clock_mhz_max: float | None = None
    memory_clock_mhz: float | None = None
    power_w_median: float | None = None
    power_w_max: float | None = None
    temperature_c_max: float | None = None
    throttle_us: dict[str, int] = {}  # cumulative counters' growth over the process, by reason
    foreign_processes: list[int] = []
    missing: dict[str, str] = {}


class Attempt(Struct, frozen=True, kw_only=True):
    """A process that ended before its record was whole; a successor with the same seed went on after it."""

    created_utc: Utc
    ended: str  # how, as its parent saw it
    num_parts: int  # cases finished in it; they are in the record
    lost: str | None = None  # the case it died of, which has no numbers; None where it was measured anew
    controls: list[Control] = []  # at its start
    drift_pct: dict[str, float] = {}  # by control: at the start of the process that went on, against its own start


class Compilations(Struct, frozen=True, kw_only=True):
    """What Triton did for this process before kernels could run."""

    num_compiled: int
    num_cached: int  # found in the cache on disk
    compile_s: float
    compiled: list[str] = []  # names of the kernels compiled, each once


class Counter(Struct, frozen=True, kw_only=True):
    """Hardware counters of one launch of one op (Nsight Compute, clocks as they are, caches flushed before it)."""

    case: str
    op: str
    provider: str
    status: CounterStatus = "ok"
    reason: str = ""  # why not ok
    kernel: str = ""
    dram_read_bytes: float | None = None
    l2_write_sectors: float | None = None  # of 32 bytes, as the SMs send them
    l2_hit_pct: float | None = None
    occupancy_pct: float | None = None  # warps active, of what an SM holds
    tensor_pipe_pct: float | None = None  # of active cycles
    model_read_bytes: int | None = None  # compulsory DRAM reads, recoverssm/cost.py
    read_error_pct: float | None = None  # 100 * (dram_read_bytes / model_read_bytes - 1)
    model_write_bytes: int | None = None  # compulsory writes, recoverssm/cost.py
    write_error_pct: float | None = None  # 100 * (32 * l2_write_sectors / model_write_bytes - 1)


class Calibration(Struct, frozen=True, kw_only=True):
    """What a process measured for, whose numbers show what a gate would say: they are no values of the code."""

    collection: str  # on one occasion: one start of one machine
    delay_pct: float | None = None  # by which every window was to become longer on purpose; None: as it is


class Shard(Struct, frozen=True, kw_only=True):
    """Which part of a night's cases a process had: the night is all records of all shards of that name."""

    night: str
    index: int  # from 1
    count: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


class PeerFacts(Struct, frozen=True, kw_only=True):
    """Another project's kernel that was to be measured beside ours, under the provider ``name``."""

    name: str
    title: str = ""
    version: str = ""
    licence: str = ""  # SPDX
    source: str = ""
    scheme: str = ""  # what it keeps of a window: "recoverssm" | "full_state" | "last_state"
    covers: str = ""  # what its ops leave out, in what precision they work
    tolerance: dict[str, float] = {}  # largest relative errors it is meant to keep, by what is compared
    tolerance_reason: str = ""
    missing: str = ""  # why it was not measured at all; empty where it was


class Head(Struct, frozen=True, kw_only=True):
    """What a record says beside its checks and measurements, which are nearly all of its bytes."""

    schema_version: int = SCHEMA_VERSION
    id: str
    created_utc: Utc
    duration_s: float
    case_set: str
    seed: int
    command: list[str]
    environment: Environment
    silicon: Silicon
    subject: Subject
    monitor: MonitorSummary
    cases: list[Case]
    controls: list[Control]
    drift_pct: dict[str, float] = {}  # by control: its time at the end of the process against that at its start
    started: Started = "fresh"  # or forked from a parent that had imported torch and never touched CUDA
    attempts: list[Attempt] = []
    compilations: Compilations | None = None
    counters: list[Counter] = []
    counters_missing: str | None = None  # why counters that were asked for are not there
    neighbours: int = 0  # other GPUs of its host on which its night measured at the same time, at most
    controls_alone: list[Control] = []  # of this GPU, while those that became its neighbours were idle
    shard: Shard | None = None  # of a night that several runs measure; None: all of it
    backfill: str | None = None  # id of the backfill it was measured for; such a record is of no night
    calibration: Calibration | None = None  # never part of a night or a gate
    peers: list[PeerFacts] = []  # empty where none was asked for

    @property
    def peer_names(self) -> frozenset[str]:
        """Providers that are other projects' kernels and were loaded: shown and compared, never failing anything."""
        return frozenset(peer.name for peer in self.peers if not peer.missing)


class Record(Head, frozen=True, kw_only=True):
    """One measuring process, with those that it took over from."""

    checks: list[Check]
    measurements: list[Measurement]

    @property
    def is_static(self) -> bool:
        """Whether it holds compiled figures alone: no card, no times, no controls, and one process is enough."""
        return bool(self.measurements) and all(item.contract == "static" for item in self.measurements)


class Verdict(Struct, frozen=True, kw_only=True):
    """Tonight's value of one series against the base night's."""

    metric: str
    op: str
    provider: str
    case: str
    contract: Contract
    unit: str
    verdict: VerdictName
    reason: str
    gated: bool  # False: shown, never failing a night (ci/thresholds.toml says why)
    value: float | None = None  # median over processes
    low: float | None = None  # 95 % interval of value over processes
    high: float | None = None
    n_processes: int = 0
    process_sd_pct: float | None = None  # standard deviation of the process medians
    base_value: float | None = None
    change_pct: float | None = None  # 100 * (value / base_value - 1), with its 95 % interval
    change_low_pct: float | None = None
    change_high_pct: float | None = None
    limit_pct: float | None = None
    detectable_pct: float | None = None  # smallest detectable effect: 80 % power, one-sided 5 %
    known: RegressionState = ""  # of a regression, and of a series that was a known one (ci/known-regressions.toml)
    known_reason: str = ""

    @property
    def fails(self) -> bool:
        """Whether this verdict alone fails its night; a regression that an owner took on does not."""
        return self.gated and self.verdict in ("regressed", "missing", "invalid") and self.known != "acknowledged"

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        return (self.metric, self.op, self.provider, self.case, self.contract)


class Acceptance(Struct, frozen=True, kw_only=True):
    """An owner's decision to hold later nights against a night that did not become a base by itself."""

    owner: str
    reason: str
    at_utc: Utc


SOME_CASES = "only cases matching"
"""How the note of a night begins that measured some cases of its set alone."""


class Night(Struct, frozen=True, kw_only=True):
    """One run of ``ci nightly`` on one GPU model."""

    schema_version: int = SCHEMA_VERSION
    id: str
    created_utc: Utc
    case_set: str
    gpu_model: str
    records: list[str]  # ids of those whose times the verdicts are of
    left_out: list[str] = []  # ids of processes that cannot be believed; the notes say why, and their checks count
    lacks: list[str] = []  # shards of which there is no record
    quarantined: list[str] = []  # files that could not be read, with the reason
    base_night: str | None = None
    verdicts: list[Verdict]
    accepted: bool
    exit_code: int
    notes: list[str] = []
    alarms: list[
        str
    ] = []  # what it says together with the nights before it; each fails it, as a regressed verdict does
    acceptance: Acceptance | None = None  # where it was not accepted when it was judged

    @property
    def as_judged(self) -> "Night":
        """Without what an owner decided later: the part that never changes."""
        return self if self.acceptance is None else msgspec.structs.replace(self, accepted=False, acceptance=None)

    @property
    def is_static(self) -> bool:
        """Whether it judges compiled figures alone; its GPU model is then an architecture."""
        return bool(self.verdicts) and all(verdict.contract == "static" for verdict in self.verdicts)

    @property
    def is_part(self) -> bool:
        """Whether it measured some cases of its set alone."""
        return any(note.startswith(SOME_CASES) for note in self.notes)

    @property
    def all_records(self) -> list[str]:
        """Ids of what was measured for this night, whether it counts or not."""
        return [*self.records, *self.left_out]


def repetitions(records: Sequence[Record]) -> int:
    """How often each case was measured, at least: the processes of a night, or those of its shard with fewest."""
    parts = [record.shard.index if record.shard else 0 for record in records]
    return min(map(parts.count, parts), default=0)
