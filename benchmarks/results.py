"""What one process found, on its way into a record: measurements, samples and checks, and which of them count."""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from .checks import failure_reason
from .harness.measure import Samples
from .harness.records import Check, Contract, Measurement, Status
from .harness.samples import SampleSeries
from .harness.stats.summary import median, median_interval

UNITS = {
    "device_us": "us",
    "host_us": "us",
    "cache_bytes": "bytes",
    "memory_saved_bytes": "bytes",
    "memory_saved_pct": "%",
    "capacity_gain_pct": "%",
    "u_error": "relative",
    "ulp_off_pct": "%",
    "state_error": "relative",
    "slow_state_error": "relative",
    "state_error_growth": "ratio",
    "slow_state_error_growth": "ratio",
}
METRICS: dict[Contract, str] = {
    "graph-cold": "device_us",
    "nvbench-cold": "device_us",
    "host-dispatch": "host_us",
    "cpu-reference": "host_us",
}


@dataclass(slots=True)
class Results:
    """Collects what a process measured; ``finish`` applies the rule that a red check yields no number."""

    measurements: list[Measurement] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    samples: list[SampleSeries] = field(default_factory=list)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """How many measurements, checks and series of samples there are: a mark to ``cut_back`` to."""
        return len(self.measurements), len(self.checks), len(self.samples)

    def cut_back(self, sizes: tuple[int, int, int]) -> None:
        """Forget what was added since ``sizes`` was read."""
        num_measurements, num_checks, num_samples = sizes
        del self.measurements[num_measurements:]
        del self.checks[num_checks:]
        del self.samples[num_samples:]

    def restore(
        self, measurements: Iterable[Measurement], checks: Iterable[Check], samples: Iterable[SampleSeries]
    ) -> None:
        """Add what an earlier process found."""
        self.measurements += measurements
        self.checks += checks
        self.samples += samples

    def add_exact(self, metric: str, op: str, provider: str, case: str, value: float) -> None:
        """A computed value."""
        self.measurements.append(
            Measurement(
                metric=metric, op=op, provider=provider, case=case, contract="exact", unit=UNITS[metric], value=value
            )
        )

    def add_samples(
        self, op: str, provider: str, case: str, contract: Contract, samples: Samples, **facts: object
    ) -> None:
        """A timed series; ``facts`` are further fields of the measurement."""
        interval = median_interval(samples.values_us)
        measurement = Measurement(
            metric=METRICS[contract],
            op=op,
            provider=provider,
            case=case,
            contract=contract,
            unit="us",
            value=median(samples.values_us),
            low=interval[0] if interval else None,
            high=interval[1] if interval else None,
            n_samples=len(samples.values_us),
            launches_per_sample=samples.launches_per_sample,
            sm_mhz=min((mhz for mhz in samples.sm_mhz if mhz is not None), default=None),
            n_dropped=len(samples.dropped),
            throttle_us=dict(samples.throttle_us),
            delay_pct=samples.delay_pct,
            **({"reason": samples.stop_reason} | facts),  # type: ignore[arg-type]  # names and types are msgspec's to check
        )
        self.measurements.append(measurement)
        self.samples.append(SampleSeries.of(measurement, samples))

    def add_without_value(
        self,
        op: str,
        provider: str,
        case: str,
        contract: Contract,
        status: Status,
        reason: str,
        samples: Samples | None = None,
    ) -> None:
        """A timed series that has no number, and why; ``samples`` are those that were taken and do not count."""
        measurement = Measurement(
            metric=METRICS[contract],
            op=op,
            provider=provider,
            case=case,
            contract=contract,
            unit="us",
            status=status,
            reason=reason,
        )
        if samples is not None:
            measurement = msgspec.structs.replace(
                measurement, n_dropped=len(samples.dropped), throttle_us=dict(samples.throttle_us)
            )
            self.samples.append(SampleSeries.of(measurement, samples))
        self.measurements.append(measurement)

    def finish(self) -> None:
        """Take the number from every series whose provider failed a check on that case; its samples go too."""
        reasons = {key: failure_reason(checks) for key, checks in _by_case_and_provider(self.checks).items()}
        self.measurements = [
            _without_value(item, reasons[item.case, item.provider])
            if item.status == "ok" and reasons.get((item.case, item.provider))
            else item
            for item in self.measurements
        ]
        # Samples of a series without a number stay where they say why: when all were taken under throttle.
        kept = {item.key for item in self.measurements if item.value is not None or item.n_dropped}
        self.samples = [series for series in self.samples if series.key in kept]

    def failures(self, leave_out: Container[str] = ()) -> list[str]:
        """One line for each failed check and each failed or invalid series, but of these providers."""
        lines = [
            f"{check.case}: {check.provider}: {failure_reason([check])} ({check.detail})"
            for check in self.checks
            if not check.passed and check.provider not in leave_out
        ]
        return lines + [
            f"{item.case}: {item.provider} {item.op} {item.contract}: {item.status}: {item.reason}"
            for item in self.measurements
            if item.status in ("failed", "invalid") and item.provider not in leave_out
        ]


def _by_case_and_provider(checks: Iterable[Check]) -> dict[tuple[str, str], Sequence[Check]]:
    groups: dict[tuple[str, str], list[Check]] = {}
    for check in checks:
        groups.setdefault((check.case, check.provider), []).append(check)
    return dict(groups)


def _without_value(item: Measurement, reason: str) -> Measurement:
    return msgspec.structs.replace(
        item,
        status="failed",
        reason=f"correctness: {reason}",
        value=None,
        low=None,
        high=None,
        n_samples=0,
        roofline_pct=None,
        control_pct=None,
        sm_mhz=None,
        n_dropped=0,
        throttle_us={},
    )
