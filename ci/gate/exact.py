"""Judges what has no noise, before any time: bytes, launches, modelled traffic, figures of compiled kernels. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.harness.records import Contract, Measurement, Record
from benchmarks.harness.stats.verdict import Judgement, Series, judge_night
from benchmarks.static.series import LAUNCHES, METRICS, Compiled, changed_place, compiled_ops
from ci.config import Key

from .evidence import Evidence
from .result import GateVerdict, rounded

ANY = "any"  # card or architecture: what is computed does not depend on it
MODELLED = ("read_bytes", "write_bytes")


@dataclass(slots=True)
class Exact:
    """Verdicts; ``num_alike`` counts static figures that are the same on both sides, which are not listed."""

    verdicts: list[GateVerdict] = field(default_factory=list)
    num_alike: int = 0
    notes: list[str] = field(default_factory=list)


def judge_exact(evidence: Evidence) -> Exact:
    """Everything exact that either side has."""
    found = Exact(list(_of_records(evidence)))
    reports = evidence.reports
    if "base" in reports and "head" in reports:
        found.verdicts += _modelled(evidence, reports["base"], reports["head"])
        _of_reports(evidence, reports["base"], reports["head"], found)
    return found


def _of_records(evidence: Evidence) -> Iterator[GateVerdict]:
    records = [evidence.records_of(side) for side in ("base", "head")]
    if not all(records):  # nothing was measured, and that is told
        return
    base, head = map(_values, records)
    examples = {key: found[0] for table in (head, base) for key, found in table.items()}
    for _, m in sorted(examples.items()):
        judged = _judge(evidence, m.key, ANY, _numbers(base.get(m.key)), _numbers(head.get(m.key)))
        yield _verdict(evidence, m.key, m.unit, ANY, judged)


def _values(records: Sequence[Record]) -> dict[Key, list[Measurement]]:
    table: dict[Key, list[Measurement]] = {}
    for m in (m for record in records for m in record.measurements if m.contract == "exact"):
        table.setdefault(m.key, []).append(m)
    return table


def _numbers(found: Sequence[Measurement] | None) -> list[float | None] | None:
    return None if found is None else [m.value for m in found]


def _modelled(evidence: Evidence, base: Mapping[str, Any], head: Mapping[str, Any]) -> Iterator[GateVerdict]:
    """Compulsory traffic of a call, by the cost model. It is the same on every architecture."""
    before, after = (_first_arch(report) for report in (base, head))
    for series in sorted(before.keys() & after.keys()):
        for case in sorted(before[series].keys() & after[series].keys()):
            provider, op = series.split("/")
            for metric in MODELLED:
                key: Key = (metric, op, provider, case, "exact")
                old, new = (float(ops[series][case][metric]) for ops in (before, after))
                yield _verdict(evidence, key, "bytes", ANY, _judge(evidence, key, ANY, [old], [new]))


def _first_arch(report: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    return next(iter(report.get("ops", {}).values()), {})


def _of_reports(evidence: Evidence, base: Mapping[str, Any], head: Mapping[str, Any], found: Exact) -> None:
    before, after = compiled_ops(base), compiled_ops(head)
    for place in sorted(before.keys() | after.keys()):
        old, new = before.get(place), after.get(place)
        if old is not None:
            for metric, judged in _figures(evidence, place, old, new):
                if judged.verdict == "unchanged":
                    found.num_alike += 1
                else:
                    unit = "launches" if metric == LAUNCHES else METRICS[metric].unit
                    found.verdicts.append(_verdict(evidence, _key(place, metric), unit, place[0], judged))
    unread = [problem for report in (base, head) for problem in report["problems"]]
    found.notes += [f"static figures: {problem}" for problem in dict.fromkeys(unread)]


def _figures(
    evidence: Evidence, place: tuple[str, str, str], old: Compiled, new: Compiled | None
) -> Iterator[tuple[str, Judgement]]:
    if new is None:
        yield LAUNCHES, Judgement("missing", "the base compiles this op, the head has none")
        return
    if new.failure and not old.failure:
        yield LAUNCHES, Judgement("invalid", f"the head's kernel does not compile: {new.failure}")
        return
    yield LAUNCHES, _judge(evidence, _key(place, LAUNCHES), place[0], [float(old.launches)], [float(new.launches)])
    if not (old.kernels and new.kernels) or old.failure or new.failure:
        return
    for metric in METRICS:
        was, now = old.value(metric), new.value(metric)
        if was is not None and now is not None:
            judged = _judge(evidence, _key(place, metric), place[0], [float(was)], [float(now)])
            if judged.verdict == "regressed":
                judged = _placed(judged, changed_place(metric, old, new, more=now > was))
            yield metric, judged


def _placed(judged: Judgement, place: str) -> Judgement:
    return Judgement(judged.verdict, f"{judged.reason}; {place}", judged.tonight, judged.base)


def _key(place: tuple[str, str, str], metric: str) -> Key:
    provider, op = place[1].split("/")
    return (metric, op, provider, place[2], "static")


def _judge(
    evidence: Evidence,
    key: Key,
    gpu_model: str,
    base: Sequence[float | None] | None,
    head: Sequence[float | None] | None,
) -> Judgement:
    limits = evidence.policy.thresholds.limits_for(key, gpu_model=gpu_model)
    (judged,) = judge_night([Series(list(head or ()), base, limits, exact=True)])
    return judged


def _verdict(evidence: Evidence, key: Key, unit: str, gpu_model: str, judged: Judgement) -> GateVerdict:
    metric, op, provider, case, contract = key
    limits = evidence.policy.thresholds.limits_for(key, gpu_model=gpu_model)
    row = evidence.policy.thresholds.row_for(key, gpu_model=gpu_model)
    change = rounded(judged.change_pct)
    named: Contract = "static" if contract == "static" else "exact"
    return GateVerdict(
        metric=metric,
        op=op,
        provider=provider,
        case=case,
        contract=named,
        gpu_model=gpu_model,
        unit=unit,
        decimals=row.decimals,
        verdict=judged.verdict,
        reason=judged.reason.replace("the base night", "the base").replace("tonight", "the head"),
        stage="exact",
        gated=limits.gated,
        base_value=judged.base.value if judged.base else None,
        head_value=judged.tonight.value if judged.tonight else None,
        change_pct=change,
        low_pct=change,
        high_pct=change,
        limit_pct=limits.band_pct,
        detectable_pct=limits.band_pct,
    )
