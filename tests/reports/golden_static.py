"""Nights that only compiled, with made-up figures."""

from benchmarks.harness.records import (
    Environment,
    Measurement,
    MonitorSummary,
    Night,
    Record,
    Silicon,
    Subject,
    Verdict,
)
from benchmarks.harness.samples import samples_table
from benchmarks.harness.store import Store

FP32, BF16 = "case_b32_fp32", "case_b32_bf16"
FIGURES = {"registers": 128.0, "barriers": 3.0, "code_bytes": 25344.0}


def write_static_night(store: Store, arch: str, day: int, *, registers: float = 128.0, failed: str = "") -> Night:
    """Verify of two cases and the launches of a step; ``failed``: the metric that has no figure."""
    measurements = [
        *(item for case in (FP32, BF16) for item in _verify(case, registers, failed)),
        _measurement(FP32, "step", "launches", 72.0),
    ]
    stamp, id_ = f"2026-01-{day:02d}T03:00:00Z", f"202601{day:02d}T030000Z-{arch}"
    record = Record(
        id=f"{id_}-000001",
        created_utc=stamp,
        duration_s=10.0,
        case_set="nightly",
        seed=0,
        command=["python"],
        environment=Environment(gpu_model=arch, python="3.11", torch="0.0", triton="3.6.0", ptxas="12.8", harness="1"),
        silicon=Silicon(),
        subject=Subject(commit="ab" * 20, source_hash="f" * 64, version="0.1.0", binaries={"verify 1": "hash"}),
        monitor=MonitorSummary(),
        cases=[],
        controls=[],
        checks=[],
        measurements=measurements,
    )
    store.add_record(record, samples_table([]))
    night = Night(
        id=f"{id_}-abc123",
        created_utc=stamp,
        case_set="nightly",
        gpu_model=arch,
        records=[record.id],
        verdicts=[_verdict(item) for item in measurements],
        accepted=True,
        exit_code=0,
    )
    store.add_night(night)
    return night


def _verify(case: str, registers: float, failed: str) -> list[Measurement]:
    figures = FIGURES | {"registers": registers, "launches": 1.0}
    return [_measurement(case, "verify", name, None if name == failed else value) for name, value in figures.items()]


def _measurement(case: str, op: str, metric: str, value: float | None) -> Measurement:
    return Measurement(
        metric=metric,
        op=op,
        provider="recoverssm",
        case=case,
        contract="static",
        unit="",
        status="failed" if value is None else "ok",
        reason="ptxas is missing" if value is None else "",
        value=value,
    )


def _verdict(item: Measurement) -> Verdict:
    grown = item.metric == "registers" and (item.value or 0) > FIGURES["registers"]
    return Verdict(
        metric=item.metric,
        op=item.op,
        provider=item.provider,
        case=item.case,
        contract="static",
        unit="",
        verdict="regressed" if grown else "unchanged",
        reason="more than the base has" if grown else "the same",
        gated=True,
        value=item.value,
        base_value=FIGURES["registers"] if grown else item.value,
    )
