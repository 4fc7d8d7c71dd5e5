"""Golden nights: synthetic records whose derived figures are known in advance. No number here was measured.

Times scale with batch, heads and window from round figures at batch 32: verify 60 us against 50 us of full state
(+20 %), commit 1200 us, step 5000 us against 4000 us (+25 %). Process i of a night is slower by i * 0.1 %.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from benchmarks.harness.records import (
    Case,
    Check,
    Control,
    Environment,
    Measurement,
    MonitorSummary,
    Night,
    PeerFacts,
    Record,
    Silicon,
    Subject,
    Verdict,
)
from benchmarks.harness.samples import SampleSeries, samples_table
from benchmarks.harness.store import Store
from reports.derive import Processes
from reports.process import Process
from reports.sources import History

HEADLINE = "kimi_k3_tp8_b32_t8_a3.84_fp32"
SKIPPED = "kimi_k3_tp1_b16_t8_a3.84_fp32"
TWIN = "twin_h2_v32_l2_b2_t8_a3.84_fp32"
SKIP_REASON = "needs 153.2 GiB of device memory, 139.7 GiB are free"
HOST, UUID = "golden-host.invalid", "GPU-00000000-synthetic"
PROCESSES = 5
LAYERS = 69

US_AT_B32 = {  # (op, provider): microseconds of process 0 at batch 32, 12 heads, window 8
    ("verify", "recoverssm"): 60.0,
    ("verify", "full_state"): 50.0,
    ("commit", "recoverssm"): 1200.0,
    ("commit_plan", "recoverssm"): 4.0,
    ("commit_state", "recoverssm"): 1100.0,
    ("conv", "recoverssm"): 90.0,
    ("step", "recoverssm"): 5000.0,
    ("step", "full_state"): 4000.0,
}


def golden_cases() -> list[Case]:
    """Forty, as in the nightly set; made here, because pages are tested without torch."""
    grid = [(8, b, 8, 3.84) for b in (1, 8, 16, 32, 48, 96, 128)]
    grid += [(8, 32, 3, 2.73), (8, 32, 4, 3.0), (8, 32, 9, 4.0), (8, 32, 8, 1.0), (8, 32, 8, 3.78), (8, 32, 8, 8.0)]
    grid += [(16, b, 8, 3.84) for b in (1, 32, 128)] + [(1, b, 8, 3.84) for b in (1, 4, 16)] + [(8, 32, 1, 1.0)]
    return [_case(*point, dtype) for point in grid for dtype in ("fp32", "bf16")]


def _case(tp: int, batch: int, window: int, accepted: float, dtype: str) -> Case:
    return Case(
        name=f"kimi_k3_tp{tp}_b{batch}_t{window}_a{accepted:.2f}_{dtype}",
        stands_for=f"synthetic: Kimi-K3 at TP{tp}, {batch} requests per rank",
        num_requests=batch,
        spec_query_len=window,
        num_heads=96 // tp,
        num_layers=LAYERS,
        mean_accepted=accepted,
        state_dtype=dtype,
    )


@dataclass(frozen=True)
class NightPlan:
    """What one golden night is like."""

    day: int
    gpu_model: str = "nvidia-h200"
    case_set: str = "nightly"
    speed: Callable[[str, str], float] = lambda op, provider: 1.0  # factor on times
    driver: str = "580.00-synthetic"
    exit_code: int = 0
    red_case: str = ""  # verify of this case is regressed
    processes: int = PROCESSES
    base: int | None = None  # day of the night it was held against
    others: tuple[str, ...] = ()  # providers that are said to be other projects' kernels


def write_night(store: Store, plan: NightPlan, cases: list[Case] | None = None) -> Night:
    """Put a night and its records into a store."""
    cases = golden_cases() if cases is None else cases
    records = [golden_record(plan, index, cases) for index in range(plan.processes)]
    for record in records:
        series = SampleSeries("device_us", "verify", "recoverssm", cases[0].name, "graph-cold", "us", (1.0,), (1.0,))
        store.add_record(record, samples_table([series]))
    night = Night(
        id=_id(plan, "abc123"),
        created_utc=_utc(plan, 59),
        case_set=plan.case_set,
        gpu_model=plan.gpu_model,
        records=[record.id for record in records],
        base_night=None if plan.base is None else _id(replace(plan, day=plan.base), "abc123"),
        verdicts=golden_verdicts(plan, records),
        accepted=plan.exit_code == 0,
        exit_code=plan.exit_code,
    )
    store.add_night(night)
    return night


def golden_record(plan: NightPlan, index: int, cases: list[Case]) -> Record:
    is_cpu = plan.gpu_model == "cpu"
    measure = _cpu_measurements if is_cpu else _gpu_measurements
    return Record(
        id=_id(plan, f"{index:06x}"),
        created_utc=_utc(plan, index),
        duration_s=42.0,
        case_set=plan.case_set,
        seed=index,
        command=["python", "-m", "benchmarks.run"],
        environment=_environment(plan),
        silicon=Silicon(host=HOST, gpu_uuid=None if is_cpu else UUID, missing={"gpu_uuid": "no GPU"} if is_cpu else {}),
        subject=Subject(commit=f"{plan.day:02d}" * 20, dirty=False, source_hash="f" * 64, version="0.1.0"),
        monitor=_monitor(is_cpu),
        cases=[*cases, *([_twin()] if is_cpu else [])],
        controls=[] if is_cpu else _controls(),
        checks=[check for case in cases for check in _checks(case)],
        measurements=[item for case in cases for item in measure(plan, index, case)]
        + (_twin_times() if is_cpu else []),
        peers=[PeerFacts(name=name) for name in plan.others],
    )


def processes_of(records: Sequence[Record]) -> Processes:
    """As pages get them from a store."""
    checks = {record.id: record.checks for record in records}
    return Processes([Process.of(record) for record in records], checks.__getitem__)


@dataclass
class HistoryInMemory(History):
    """Of records that no file holds."""

    whole: dict[str, Record] = field(default_factory=dict)

    def checks(self, id_: str) -> list[Check]:
        return self.whole[id_].checks


def history_of(night: Night, records: Sequence[Record]) -> History:
    """One night."""
    whole = {record.id: record for record in records}
    processes = {record.id: Process.of(record) for record in records}
    return HistoryInMemory(nights={night.id: night}, records=processes, whole=whole)


def _environment(plan: NightPlan) -> Environment:
    common = {"python": "3.11.0", "torch": "0.0-synthetic", "triton": "0.0-synthetic", "harness": "1"}
    if plan.gpu_model == "cpu":
        return Environment(gpu_model="cpu", cpu_model="synthetic CPU", missing={"driver": "no GPU"}, **common)
    return Environment(
        gpu_model=plan.gpu_model,
        gpu_memory_bytes=150_000_000_000,
        compute_capability="9.0",
        driver=plan.driver,
        power_limit_w=700.0,
        missing={"mig": "NVML did not say"},
        **common,
    )


def _monitor(is_cpu: bool) -> MonitorSummary:
    if is_cpu:
        return MonitorSummary(missing={"sm_clock_mhz_max": "no GPU", "power_w_max": "no GPU"})
    return MonitorSummary(
        num_readings=100,
        sm_clock_mhz_min=1950.0,
        sm_clock_mhz_median=1980.0,
        sm_clock_mhz_max=1980.0,
        memory_clock_mhz=3201.0,
        power_w_median=310.0,
        power_w_max=402.0,
        temperature_c_max=41.0,
        throttle_us={"power": 0, "thermal": 1500},
    )


def _controls() -> list[Control]:
    size = 1 << 29
    return [
        Control(name="copy", read_bytes=size, write_bytes=size, median_us=270.0, bytes_per_s=3.98e12),
        Control(name="read", read_bytes=size, write_bytes=0, median_us=125.0, bytes_per_s=4.29e12),
        Control(name="read4_write1", read_bytes=size, write_bytes=size // 4, median_us=162.0, bytes_per_s=4.14e12),
    ]


def _checks(case: Case) -> list[Check]:
    limits = [("verify", "out_error", 1.5e-3, 3e-3), ("commit_state", "state_error", 1e-7, 1e-6)]
    checks = [
        Check(case=case.name, op=op, provider="recoverssm", metric=metric, value=value, limit=limit, passed=True)
        for op, metric, value, limit in limits
    ]
    exact = Check(
        case=case.name, op="commit_state", provider="recoverssm", metric="untouched", value=0, limit=0, passed=True
    )
    return [*checks, exact]


def _gpu_measurements(plan: NightPlan, index: int, case: Case) -> list[Measurement]:
    if case.name == SKIPPED:
        skipped = [
            _measurement(case, "device_us", op, provider, "graph-cold", "us", None, "skipped", SKIP_REASON)
            for op, provider in US_AT_B32
        ]
        return [*skipped, *_memory(case)]
    scale = (case.num_requests * case.num_heads / (32 * 12)) ** 0.9 * (0.7 if case.state_dtype == "bf16" else 1.0)
    scale *= (case.spec_query_len / 8) ** 0.5
    times = [
        _measurement(
            case,
            "device_us",
            op,
            provider,
            "graph-cold",
            "us",
            base * scale * plan.speed(op, provider) * (1 + 0.001 * index),
            roofline_pct=20.0 + 5 * case.num_requests**0.5,
            control_pct=25.0 + 5 * case.num_requests**0.5,
        )
        for (op, provider), base in US_AT_B32.items()
    ]
    host = [_measurement(case, "host_us", op, "recoverssm", "host-dispatch", "us", 21.0) for op in ("verify", "commit")]
    return [*times, *host, *_memory(case)]


def _cpu_measurements(plan: NightPlan, index: int, case: Case) -> list[Measurement]:
    return _memory(case)


def _twin() -> Case:
    return msgspec.structs.replace(_case(8, 2, 8, 3.84, "fp32"), name=TWIN, num_heads=2, num_layers=2)


def _twin_times() -> list[Measurement]:
    times = {"verify": 1600.0, "commit": 680.0}
    return [_measurement(_twin(), "host_us", op, "torch", "cpu-reference", "us", value) for op, value in times.items()]


def _memory(case: Case) -> list[Measurement]:
    state = case.num_heads * 128 * 128 * (4 if case.state_dtype == "fp32" else 2) * case.num_layers * case.num_requests
    full, ours = state * case.spec_query_len, state + state // 8
    values = [
        ("cache_bytes", "state", "full_state", "bytes", float(full)),
        ("cache_bytes", "state", "recoverssm", "bytes", float(ours)),
        ("memory_saved_bytes", "state", "recoverssm", "bytes", float(full - ours)),
        ("memory_saved_pct", "state", "recoverssm", "%", 100 * (full - ours) / full),
        ("capacity_gain_pct", "capacity", "recoverssm", "%", 10.973),
    ]
    return [_measurement(case, m, op, provider, "exact", unit, value) for m, op, provider, unit, value in values]


def _measurement(
    case: Case,
    metric: str,
    op: str,
    provider: str,
    contract: str,
    unit: str,
    value: float | None,
    status: str = "ok",
    reason: str = "",
    roofline_pct: float | None = None,
    control_pct: float | None = None,
) -> Measurement:
    return Measurement(
        metric=metric,
        op=op,
        provider=provider,
        case=case.name,
        contract=contract,
        unit=unit,
        status=status,
        reason=reason,
        value=value,
        roofline_pct=roofline_pct,
        control_pct=control_pct,
        read_bytes=1 << 20 if contract == "graph-cold" else None,
        write_bytes=1 << 18 if contract == "graph-cold" else None,
    )


def golden_verdicts(plan: NightPlan, records: list[Record]) -> list[Verdict]:
    """Unchanged, except verify of the red case; host times are not gated."""
    verdicts = []
    for item in records[0].measurements:
        if item.status != "ok":
            continue
        red = item.case == plan.red_case and (item.op, item.provider) == ("verify", "recoverssm")
        red = red and item.metric == "device_us"
        verdicts.append(
            Verdict(
                metric=item.metric,
                op=item.op,
                provider=item.provider,
                case=item.case,
                contract=item.contract,
                unit=item.unit,
                verdict="regressed" if red else "unchanged",
                reason="slower by 6.0 % (95 % 5.1..6.9), limit 2.0 %" if red else "within the limit",
                gated=item.metric != "host_us",
                value=item.value,
                n_processes=len(records),
                change_pct=6.0 if red else 0.0 if item.contract == "exact" else 0.1,
                change_low_pct=5.1 if red else None if item.contract == "exact" else -0.4,
                change_high_pct=6.9 if red else None if item.contract == "exact" else 0.5,
                limit_pct=0.0 if item.contract == "exact" else 2.0,
            )
        )
    return verdicts


def _utc(plan: NightPlan, minute: int) -> str:
    return f"2026-01-{plan.day:02d}T02:{minute:02d}:00Z"


def _id(plan: NightPlan, tail: str) -> str:
    return f"202601{plan.day:02d}T020000Z-{plan.gpu_model.replace('nvidia-', '')}-{tail}"


def write_history(folder: Path) -> Path:
    """Four H200 nights (a driver change before the third, the last one red), one H100 night and one CPU night."""
    store = Store(folder)
    faster = {("verify", "recoverssm"): 0.95, ("commit", "recoverssm"): 0.9}
    plans = [
        NightPlan(1),
        NightPlan(2, speed=lambda op, provider: faster.get((op, provider), 1.0)),
        NightPlan(3, driver="590.00-synthetic"),
        NightPlan(
            4,
            driver="590.00-synthetic",
            speed=lambda op, provider: 1.06 if (op, provider) == ("verify", "recoverssm") else 1.0,
            exit_code=1,
            red_case=HEADLINE,
            base=3,
        ),
        NightPlan(4, gpu_model="nvidia-h100", processes=2),
        NightPlan(4, gpu_model="cpu", case_set="smoke", processes=1),
    ]
    for plan in plans:
        write_night(store, plan)
    return folder
