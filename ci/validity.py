"""Whether a night's records can be believed at all: checks passed, processes alike, the card itself unchanged."""

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

from benchmarks.harness.drift import drift_pct
from benchmarks.harness.quiet import ALWAYS_COUNT
from benchmarks.harness.records import Attempt, Check, Control, Record, Verdict

from .gpus import CPU

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


def peer_names(records: Sequence[Record]) -> frozenset[str]:
    """Providers that are other projects' kernels: whatever they do fails no night."""
    return frozenset[str]().union(*(record.peer_names for record in records))


def check_verdict(checks: Sequence[Check], processes: int, *, gated: bool = True) -> Verdict:
    """The failure of one check, as a row that fails the night, or is only shown."""
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
        gated=gated,
        value=check.value,
        n_processes=processes,
    )


def mixtures(records: Sequence[Record]) -> list[str]:
    """Why these records are no repetitions of one measurement; empty when they are."""
    doubts = [f"record {i} counts {n} times" for i, n in Counter(r.id for r in records).items() if n > 1]
    doubts += [f"record {r.id} was taken for calibration, not of the code" for r in records if r.calibration]
    first = records[0]
    for record in records[1:]:
        host = record.shard == first.shard  # shards may run on several hosts, and each case is of one of them
        if record.environment.cut_key(host=host) != first.environment.cut_key(host=host):
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


def why_unsound(record: Record, limit_pct: float) -> list[str]:
    """Why no time of this process counts; empty when every case was measured between two rounds of controls that agree.

    All of them are in doubt, for nobody knows which came before the card changed. Nothing here looks at what the ops
    took, so leaving such a process out does not choose by result. On a CPU, and of what was only compiled, there are no
    controls.
    """
    if record.environment.gpu_model == CPU or record.is_static:
        return []
    starts, ends = ({c.name for c in record.controls if c.when == when} for when in ("start", "end"))
    if not starts:
        return ["no controls at the start of the process"]
    if not ends:
        return ["no controls at the end of the process: whether the card drifted is unknown"]
    bad = [control for control in record.controls if not (math.isfinite(control.median_us) and control.median_us > 0)]
    if bad:
        return [f"control {c.name}: expected a positive time at the {c.when}, got {c.median_us}" for c in bad]
    reasons = [f"no control {name} at the end of the process" for name in sorted(starts - ends)]
    reasons += _drifts(drift_pct(record.controls), "at the end of the process", limit_pct)
    for attempt in record.attempts:
        if attempt.num_parts and starts - attempt.drift_pct.keys():
            reasons.append(
                f"whether the card drifted in {attempt.num_parts} cases of a process that ended early is unknown"
            )
        elif attempt.num_parts:
            when = "when a process went on after one that had ended early"
            reasons += _drifts(attempt.drift_pct, when, limit_pct)
    return reasons


def tell_sound(records: Sequence[Record], limit_pct: float) -> tuple[list[Record], dict[str, str]]:
    """The processes whose times count, and by id why the others' do not. What their night said of them is not asked."""
    unsound = {record.id: "; ".join(why) for record in records if (why := why_unsound(record, limit_pct))}
    return [record for record in records if record.id not in unsound], unsound


def _drifts(change_pct: Mapping[str, float], when: str, limit_pct: float) -> list[str]:
    return [
        f"control {name} took {change:+.1f} % {when} (limit {limit_pct:g} %): the card drifted"
        for name, change in sorted(change_pct.items())
        if not abs(change) < limit_pct
    ]


def failures_left_out(record: Record) -> list[str]:
    """What failed in a process whose times do not count: a wrong result or a crash says something all the same."""
    failed: dict[tuple[str, str], int] = Counter(
        (m.case, m.reason) for m in record.measurements if m.status == "failed" and m.provider not in record.peer_names
    )
    return [
        f"record {record.id}, which is left out: {case}: {count} series failed: {reason or 'no reason given'}"
        for (case, reason), count in failed.items()
    ]


def disturbances(records: Sequence[Record]) -> list[str]:
    """Told, not judged: foreign processes, lost samples, processes that a record lost, controls taken twice."""
    notes = []
    for record in records:
        notes += [f"record {record.id}: {_early_end(attempt)}" for attempt in record.attempts]
        notes += [f"record {record.id}: {note}" for note in _twice_measured(record.controls)]
        if record.monitor.foreign_processes:
            notes.append(f"record {record.id}: other processes used the GPU: {record.monitor.foreign_processes}")
        notes += [f"record {record.id}: {note}" for note in held_back([record])]
    return notes


def held_back(records: Sequence[Record]) -> list[str]:
    """What the card's being held back cost: samples, by op, and heat wherever it was seen; empty where nothing.

    The counters of whole processes say nothing else: "power" runs under any heavy traffic, with nothing dropped for it
    (docs/measuring.md, "A quiet card").
    """
    timed = [m for record in records for m in record.measurements if m.n_samples or m.n_dropped]
    ops = Counter(m.op for m in timed if m.n_dropped)
    heat: Counter[str] = Counter()
    for record in records:
        heat.update({reason: us for reason, us in record.monitor.throttle_us.items() if reason in ALWAYS_COUNT and us})
    notes = []
    if ops:
        shown = ", ".join(f"{op} {count}" for op, count in ops.most_common())
        notes.append(
            f"samples of {ops.total()} of {len(timed)} measured times were dropped: the card was held back ({shown})"
        )
    if heat:
        shown = ", ".join(f"{reason} {us / 1e3:.1f} ms" for reason, us in sorted(heat.items()))
        notes.append(f"heat or the board's limit held the card back: {shown}")
    return notes


def _early_end(attempt: Attempt) -> str:
    return f"a process before it ended early: {attempt.ended}" + (f" (case {attempt.lost})" if attempt.lost else "")


def _twice_measured(controls: Sequence[Control]) -> list[str]:
    start = {control.name: control.median_us for control in controls if control.when == "start"}
    notes = []
    for control in controls:
        if control.when == "end" and control.first_readings_us and start.get(control.name):
            first, second = (
                100 * (took_us / start[control.name] - 1)
                for took_us in (statistics.median(control.first_readings_us), control.median_us)
            )
            notes.append(
                f"control {control.name} took {first:+.1f} % at the end of the process, and {second:+.1f} % once more"
            )
    return notes


def _controls(records: Sequence[Record]) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {}
    for control in (c for r in records for c in r.controls if c.when == "start"):
        times.setdefault(control.name, []).append(control.median_us)
    return times
