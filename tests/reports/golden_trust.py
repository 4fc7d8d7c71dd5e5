"""A trust record whose every figure was made up."""

from pathlib import Path

from ci.calibrate import trust
from ci.calibrate.trust import (
    DisjointGates,
    IdenticalPairs,
    Occasion,
    Power,
    ResampledGates,
    SeriesTrust,
    Target,
    TrustRecord,
)

QUIET, LOUD, UNKNOWN = "case_b32_quiet", "case_b1_loud", "case_b8_unknown"


def golden_trust(gpu_model: str = "nvidia-h200", newest_utc: str = "2026-01-04T02:00:00Z") -> TrustRecord:
    """Two of three series blind to 3 %; one promise kept, one missed, one that cannot be told."""
    series = [
        golden_series(UNKNOWN, None, found_pct={}),
        golden_series(LOUD, 4.5, found_pct={"2": 20.0, "5": 90.0}),
        golden_series(QUIET, 1.25, found_pct={"2": 99.0, "5": 100.0}),
    ]
    return TrustRecord(
        gpu_model=gpu_model,
        data_sha256="d" * 64,
        policy_sha256="e" * 64,
        newest_utc=newest_utc,
        seed=1,
        num_screen_blocks=6,
        num_confirm_blocks=12,
        rate=0.05,
        occasions=[
            Occasion(
                id="first-occasion",
                card="c" * 12,
                commit="ab" * 20,
                source_hash="f" * 64,
                began_utc="2026-01-03T02:00:00Z",
                num_plain=24,
                num_delayed={"2": 6, "5": 6},
                num_unsound=1,
            )
        ],
        disjoint=DisjointGates(num_gates=300, num_with_suspects=9, num_with_alarm=0, num_unsettled=0, upper_pct=0.994),
        resampled=ResampledGates(
            num_gates=2000,
            num_with_suspects=700,
            num_with_alarm=4,
            rate_pct=0.2,
            by_occasion_pct={"first-occasion": 0.2},
        ),
        identical=IdenticalPairs(
            gates=["aaa..bbb"], num_series=12, num_suspects=1, num_gates_with_suspects=1, upper_pct=95.0
        ),
        power=[golden_power(2.0, 59.5, 61.0), golden_power(5.0, 95.0, 94.0)],
        blind_pct={2.0: 66.7, 3.0: 66.7},
        series=series,
        targets=[
            Target(name="false alarms", wanted="at most 1 %", found="0 of 300", met=True),
            Target(name="series blind to 3 %", wanted="at most 5 %", found="66.7 %", met=False),
            Target(name="delays of 3 %", wanted="at least 95 %", found="not collected", met=None),
        ],
    )


def golden_series(case: str, detectable_pct: float | None, found_pct: dict[str, float]) -> SeriesTrust:
    return SeriesTrust(
        metric="device_us",
        op="verify",
        provider="recoverssm",
        case=case,
        contract="graph-cold",
        gated=True,
        median_us=12.5,
        process_sd_pct=None if detectable_pct is None else detectable_pct / 2,
        limit_pct=2.0,
        detectable_pct=detectable_pct,
        noise_detectable_pct=detectable_pct,
        found_pct=found_pct,
    )


def golden_power(delay_pct: float, real_pct: float, synthetic_pct: float) -> Power:
    return Power(
        delay_pct=delay_pct,
        realised_pct=delay_pct - 0.05,
        apart_pct=delay_pct + 0.05,
        real_pct=real_pct,
        synthetic_pct=synthetic_pct,
        num_series=3,
        num_gates=200,
    )


def write_trust(folder: Path, *records: TrustRecord) -> Path:
    """A folder of trust records; the golden one when none is given."""
    folder.mkdir(parents=True, exist_ok=True)
    for record in records or (golden_trust(),):
        (folder / trust.file_name(record)).write_bytes(trust.encode(record))
    return folder
