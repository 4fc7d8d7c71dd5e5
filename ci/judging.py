"""From the records of a night and of its base night to verdicts and an exit code. Reads nothing, starts nothing."""

import datetime as dt
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec

from benchmarks.harness.records import SOME_CASES, Check, Night, Record, Verdict, VerdictName, repetitions
from benchmarks.harness.stats.verdict import Judgement, Limits, Series, judge_night

from . import beside
from .config import Statistics, Thresholds
from .exits import Exit
from .night import Base, Tonight
from .policy import KnownRegressions, Policy
from .series import Gathered, gather
from .validity import (
    check_verdict,
    control_doubts,
    disturbances,
    failed_checks,
    failures_left_out,
    mixtures,
    peer_names,
    tell_sound,
)

# Most urgent first: what fails a night, what we cannot tell, what is well.
URGENCY: tuple[VerdictName, ...] = (
    "invalid", "missing", "regressed", "improved", "blind", "inconclusive", "new", "unchanged",
)  # fmt: skip


@dataclass(slots=True)
class Findings:
    """What judging a night brings to light."""

    verdicts: list[Verdict] = field(default_factory=list)  # most urgent and strongest evidence first
    notes: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)  # why the whole night is invalid
    code: Exit = Exit.PASS
    counted: Sequence[Record] = ()  # whose times the verdicts are of
    left_out: list[str] = field(default_factory=list)  # ids of the others; the notes say why
    processes_needed: int = 1  # to be judged, and to be a base for later nights

    @property
    def accepted(self) -> bool:
        """Whether later nights may be judged against this one: nothing regressed, and enough processes to judge by.

        A regression that somebody took on passes, but later nights go on being held against the faster base.
        """
        regressed = any(verdict.gated and verdict.verdict == "regressed" for verdict in self.verdicts)
        return self.code == Exit.PASS and not regressed and repetitions(self.counted) >= self.processes_needed


def judge(tonight: Tonight, base: Base | None, policy: Policy, before: Night | None = None) -> Findings:
    """Verdicts of all series, notes and the exit code. Expects at least one record.

    Args:
        before: the newest earlier night on this card's model; a regression that it had too is confirmed.
    """
    thresholds, statistics = policy.thresholds, policy.thresholds.statistics
    failed, others = failed_checks(tonight.records), peer_names([*tonight.records, *(base.records if base else ())])
    ranked = [
        (check_verdict(checks, len(tonight.records), gated=checks[0].provider not in others), 0.0)
        for checks in failed.values()
    ]
    found = Findings(processes_needed=tonight.processes_needed(statistics.min_processes))
    everything, tonight = tonight.records, _leave_unsound_out(tonight, statistics, found)
    found.notes += _describe(tonight, base, found.processes_needed) + disturbances(everything)
    found.notes += beside.describe(everything, statistics.drift_limit_pct)
    found.doubts += mixtures(tonight.records)
    found.doubts += control_doubts(tonight.records, base.records if base else (), statistics.control_limit_pct)
    ranked += _judge_series(
        tonight, base, thresholds, {(c[0].case, c[0].provider): c[0] for c in failed.values()}, others, found
    )
    ranked = _apply_known(ranked, tonight, policy.known, before, found)
    found.verdicts = [v for v, _ in sorted(ranked, key=lambda pair: (pair[0].provider in others, *_rank(*pair)))]
    found.code = _exit(tonight, found)
    return found


def _leave_unsound_out(tonight: Tonight, statistics: Statistics, found: Findings) -> Tonight:
    """Tonight with the processes that can be believed; with all when none can, and then the night is invalid."""
    found.counted, reasons = tell_sound(tonight.records, statistics.drift_limit_pct)
    if not found.counted:
        found.counted = tonight.records
        found.doubts += [f"record {name}: {why}" for name, why in reasons.items()]
        return tonight
    unsound = [record for record in tonight.records if record.id in reasons]
    found.left_out = [record.id for record in unsound]
    found.notes += [f"record {name}: left out: {why}" for name, why in reasons.items()]
    found.doubts += [failure for record in unsound for failure in failures_left_out(record)]
    if unsound and repetitions(found.counted) < statistics.min_processes:
        few, total = repetitions(found.counted), repetitions(tonight.records)
        found.doubts.append(f"{few} of {total} processes can be believed, {statistics.min_processes} are needed")
    return replace(tonight, records=found.counted)


def _judge_series(
    tonight: Tonight,
    base: Base | None,
    thresholds: Thresholds,
    blocked: dict[tuple[str, str], Check],
    others: frozenset[str],
    found: Findings,
) -> list[tuple[Verdict, float]]:
    # Verdicts with the strength of their evidence; what others leave out is not told case by case.
    num_requests = {
        c.name: c.num_requests for r in (*(base.records if base else ()), *tonight.records) for c in r.cases
    }
    gpu_model = tonight.records[0].environment.gpu_model
    result: list[tuple[Verdict, float]] = []
    judgeable: list[tuple[Gathered, Series]] = []
    skipped: Counter[tuple[str, str]] = Counter()
    for item in gather(tonight, base):
        m = item.example
        limits = thresholds.limits_for(m.key, num_requests=num_requests.get(m.case, 0), gpu_model=gpu_model)
        if m.provider in others:  # not gated, so in a family of its own: what it took moves no verdict of ours
            limits = replace(limits, gated=False)
        if item.skip_reason is not None and item.base is None:
            skipped[m.case, item.skip_reason] += m.provider not in others
        elif trouble := item.trouble(blocked.get((m.case, m.provider))):
            result.append((_verdict(item, Judgement(*trouble), limits), 0.0))
        else:
            judgeable.append((item, Series(item.values, item.base, limits, item.exact)))
    found.notes += [
        f"{case}: {n} series skipped by every process: {why}" for (case, why), n in sorted(skipped.items()) if n
    ]
    judgements = judge_night([series for _, series in judgeable], rate=thresholds.statistics.false_discovery_rate)
    for (item, series), judgement in zip(judgeable, judgements, strict=True):
        result.append((_verdict(item, judgement, series.limits), judgement.strength))
    return result


def _apply_known(
    ranked: Sequence[tuple[Verdict, float]],
    tonight: Tonight,
    known: KnownRegressions,
    before: Night | None,
    found: Findings,
) -> list[tuple[Verdict, float]]:
    # The same verdicts, each with what is known of it; entries that should go are noted.
    gpu_model = tonight.records[0].environment.gpu_model
    today = dt.date.fromisoformat(max(record.created_utc for record in tonight.records)[:10])
    seen = {verdict.key for verdict in before.verdicts if verdict.verdict == "regressed"} if before else set()
    said = []
    for verdict, strength in ranked:
        says = known.say(
            verdict.key, gpu_model, verdict.verdict, verdict.change_pct, today=today, seen_before=verdict.key in seen
        )
        said.append((msgspec.structs.replace(verdict, known=says.state, known_reason=says.reason), strength))
    found.notes += known.stale(((verdict.key, gpu_model, verdict.known) for verdict, _ in said), today)
    return said


def _verdict(item: Gathered, judgement: Judgement, limits: Limits) -> Verdict:
    m, tonight, base, evidence = item.example, judgement.tonight, judgement.base, judgement.evidence
    return Verdict(
        metric=m.metric,
        op=m.op,
        provider=m.provider,
        case=m.case,
        contract=m.contract,
        unit=m.unit,
        verdict=judgement.verdict,
        reason=_reason(item, judgement),
        gated=limits.gated,
        value=tonight.value if tonight else None,
        low=tonight.low if tonight else None,
        high=tonight.high if tonight else None,
        n_processes=tonight.n if tonight else 0,
        process_sd_pct=tonight.sd_pct if tonight else None,
        base_value=base.value if base else None,
        change_pct=judgement.change_pct,
        change_low_pct=judgement.change_pct if item.exact else evidence.low_pct if evidence else None,
        change_high_pct=judgement.change_pct if item.exact else evidence.high_pct if evidence else None,
        limit_pct=limits.band_pct if item.exact else limits.limit_of(base),
        detectable_pct=judgement.detectable_pct,
    )


def _reason(item: Gathered, judgement: Judgement) -> str:
    if judgement.verdict == "new":
        return f"{item.base_reason}; {judgement.reason}"
    # Of a compiled figure the measurement says which source line it comes from.
    place = item.example.reason if item.example.contract == "static" and judgement.verdict == "regressed" else ""
    return f"{judgement.reason}; {place}" if place else judgement.reason


def _rank(verdict: Verdict, strength: float) -> tuple[object, ...]:
    # What fails before what is only shown or known, then the stronger evidence, then the larger change.
    is_known = verdict.known == "acknowledged"
    return (
        URGENCY.index(verdict.verdict),
        not verdict.gated,
        is_known,
        strength,
        -abs(verdict.change_pct or 0.0),
        verdict.key,
    )


def _describe(tonight: Tonight, base: Base | None, min_processes: int) -> list[str]:
    notes = [f"process without a record: {failure}" for failure in tonight.failures]
    notes += [f"shard {shard}: no record of it" for shard in tonight.lacks]
    notes += tonight.gone
    count = repetitions(tonight.records)
    if count < min_processes:
        notes.append(f"{count} processes: {min_processes} are needed to be judged and to be a base for later nights")
    if tonight.pattern != "*":
        notes.append(f"{SOME_CASES} {tonight.pattern!r}")
    neighbours, before = (
        max((r.neighbours for r in some), default=0) for some in (tonight.records, base.records if base else ())
    )
    if neighbours or before:
        told = f"measured while up to {neighbours} other GPUs of the host were measured too"
        notes.append(told + (f"; the base night {base.night.id} with up to {before}" if base else ""))
    absent = {peer.name: peer.missing for record in tonight.records for peer in record.peers if peer.missing}
    notes += [f"provider {name} was not measured: {why}" for name, why in absent.items()]
    if base and base.night.case_set != tonight.case_set:
        notes.append(f"the base night {base.night.id} is of set {base.night.case_set}")
    return notes


def _exit(tonight: Tonight, found: Findings) -> Exit:
    failing = Counter(v.verdict for v in found.verdicts if v.fails)
    if failing["invalid"] or found.doubts or tonight.quarantined or tonight.failures:
        return Exit.INVALID
    if (
        failing["missing"]
        or tonight.lacks
        or tonight.gone
        or not any(m.status != "skipped" for r in tonight.records for m in r.measurements)
    ):
        return Exit.MISSING
    return Exit.REGRESSED if failing["regressed"] else Exit.PASS
