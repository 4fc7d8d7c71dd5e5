"""Whether a night's records can be believed at all: checks passed, processes alike, the card itself unchanged."""

import math
import statistics
from collections import Counter
from collections.abc import Sequence

from benchmarks.harness.records import Attempt, Check, Record, Verdict

COUNTS = {
    "untouched": "elements",
    "differing": "elements",
    "non_finite": "elements",
    "bytes_off": "bytes",
    "raised": "errors",
}
"""Units of checks that count what is wrong; all others are relative errors."""

CheckKey = tuple[str, str, str, str]  # case, op, provider, metric


def failed_checks(records: Sequence[Record]) -> dict[CheckKey, list[Check]]:
    """Checks that failed in any process. One that says it passed without a finite value in its limit has failed too."""
    failed: dict[CheckKey, list[Check]] = {}
    for check in (c for r in records for c in r.checks):
        within = check.value is not None and math.isfinite(check.value) and check.value <= check.limit
        if not (check.passed and within):
            failed.setdefault((check.case, check.op, check.provider, check.metric), []).append(check)
    return failed


def check_verdict(checks: Sequence[Check], processes: int) -> Verdict:
    """The failure of one check, as a row that fails the night."""
    check = max(checks, key=lambda c: math.inf if c.value is None else c.value)
    value = "no finite value" if check.value is None else f"{check.value:.3g}"
    detail = f"; {check.detail}" if check.detail else ""
    where = f"in {len(checks)} of {processes} processes"
    return Verdict(
        metric=check.metric,
        op=check.op,
        provider=check.provider,
        case=check.case,
        contract="exact",
        unit=COUNTS.get(check.metric, "relative"),
        verdict="invalid",
        reason=f"correctness check failed {where}: {value}, limit {check.limit:.3g}{detail}",
        gated=True,
        value=check.value,
        n_processes=processes,
    )


def mixtures(records: Sequence[Record]) -> list[str]:
    """Why these records are no repetitions of one measurement; empty when they are."""
    doubts = [f"record {i} counts {n} times" for i, n in Counter(r.id for r in records).items() if n > 1]
    first = records[0]
    for record in records[1:]:
        if record.environment.cut_key(host=True) != first.environment.cut_key(host=True):
            doubts.append(f"records {first.id} and {record.id} were measured in different environments")
        if record.subject.source_hash != first.subject.source_hash:
            doubts.append(f"records {first.id} and {record.id} measured different sources")
    return doubts


def control_doubts(records: Sequence[Record], base: Sequence[Record], limit_pct: float) -> list[str]:
    """Where plain memory streams say that this is not the instrument of the base night; empty when they agree."""
    doubts = []
    tonight, before = _controls(records), _controls(base)
    for name in sorted(tonight | before):
        values = tonight.get(name, [])
        if len(values) < len(records) or not all(math.isfinite(v) and v > 0 for v in values):
            doubts.append(
                f"control {name}: expected a positive time from each of {len(records)} processes, got {values}"
            )
        elif name in before:
            change = 100 * (statistics.median(values) / statistics.median(before[name]) - 1)
            if abs(change) >= limit_pct:
                limit = f"limit {limit_pct:g} %"
                doubts.append(f"control {name}: {change:+.1f} % against the base night ({limit}): the card has changed")
    return doubts


def drift_doubts(records: Sequence[Record], limit_pct: float) -> list[str]:
    """Processes in which the card changed between the controls at the start and those at the end.

    The whole process is in doubt, for nobody knows which of its series came before the change; and with it the night,
    as it would be if the controls differed from the base night's. A night without its slow process would be one chosen
    by its result.
    """
    doubts = []
    has_ends = any(control.when == "end" for record in records for control in record.controls)
    for record in records:
        if has_ends and not any(control.when == "end" for control in record.controls):
            doubts.append(
                f"record {record.id}: no controls at the end of the process: whether the card drifted is unknown"
            )
        for name, change in sorted(record.drift_pct.items()):
            if abs(change) >= limit_pct:
                doubts.append(
                    f"record {record.id}: control {name} took {change:+.1f} % at the end of the process "
                    f"(limit {limit_pct:g} %): the card drifted"
                )
    return doubts


def disturbances(records: Sequence[Record]) -> list[str]:
    """Other processes and throttling that NVML saw, and processes that a record lost: told, not judged."""
    notes = []
    for record in records:
        notes += [f"record {record.id}: {_early_end(attempt)}" for attempt in record.attempts]
        if record.monitor.foreign_processes:
            notes.append(f"record {record.id}: other processes used the GPU: {record.monitor.foreign_processes}")
        throttled = {reason: us for reason, us in sorted(record.monitor.throttle_us.items()) if us > 0}
        if throttled:
            times = ", ".join(f"{reason} {us / 1e3:.1f} ms" for reason, us in throttled.items())
            notes.append(f"record {record.id}: throttled: {times}")
    return notes


def _early_end(attempt: Attempt) -> str:
    text = f"a process before it ended early: {attempt.ended}"
    if attempt.lost:
        text += f" (case {attempt.lost})"
    if attempt.num_parts:  # it had no controls at its end, so ``drift_doubts`` says nothing of them
        text += f"; whether the card drifted in its {attempt.num_parts} cases is unknown"
    return text


def _controls(records: Sequence[Record]) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {}
    for control in (c for r in records for c in r.controls if c.when == "start"):
        times.setdefault(control.name, []).append(control.median_us)
    return times
