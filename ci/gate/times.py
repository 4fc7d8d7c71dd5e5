"""Judges times: a screen of every series, and fresh blocks for those that it suspects. Pure."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from benchmarks.harness.records import Measurement, Record, VerdictName
from benchmarks.harness.stats.paired import (
    Family,
    PairJudgement,
    PairLimits,
    Screened,
    block_difference,
    confirm,
    judge_unsuspected,
    screen,
)
from ci.config import EXACT_CONTRACTS, Key
from ci.gpus import CPU
from ci.policy import Policy
from ci.validity import failed_checks

from .evidence import Block, Evidence
from .result import GateVerdict, Side, Stage, rounded

IDENTICAL = "the same binaries and launch arguments on both sides: not judged by time, its samples are an A/A pair"
SAME_SOURCES = "the same sources on both sides: not judged by time, its samples are an A/A pair"


class Trouble(NamedTuple):
    """Why there is nothing to judge by time."""

    verdict: VerdictName
    reason: str


@dataclass(slots=True)
class Series:
    """One series over the blocks of a stage: of each block two measurements a side, None where a record lacks it."""

    example: Measurement
    base: list[tuple[Measurement | None, ...]] = field(default_factory=list)
    head: list[tuple[Measurement | None, ...]] = field(default_factory=list)

    def medians(self, side: Side) -> list[float]:
        """Values of all processes of a side that have one."""
        blocks = self.base if side == "base" else self.head
        return [m.value for block in blocks for m in block if m is not None and m.status == "ok" and m.value]

    def trouble(self) -> Trouble | None:
        """What one side lacks; both are looked at, for a fault that the base has too is not the head's."""
        base, head = _lack(self.base), _lack(self.head)
        if base is None and head is None:
            return None
        if base is not None and head is not None:
            return Trouble("inconclusive", f"neither side has numbers: base {base.reason}; head {head.reason}")
        if head is not None:
            return Trouble("missing" if head.is_absent else "invalid", f"the base has it; head {head.reason}")
        assert base is not None
        if base.is_everywhere:
            return Trouble("new", f"nothing to compare with: base {base.reason}")
        return None  # blocks in which the base has no number are left out

    def differences(self) -> list[float]:
        """Of each block in which the base has numbers, head over base; NaN where a value is none."""
        found = []
        for base, head in zip(self.base, self.head, strict=True):
            if all(m is not None and m.status == "ok" for m in base):
                values = [[m.value if m is not None else None for m in side] for side in (base, head)]
                found.append(block_difference(*values))
        return found


class _Lack(NamedTuple):
    reason: str
    is_absent: bool  # not there or skipped, where others crashed or are wrong
    is_everywhere: bool


def _lack(blocks: Sequence[tuple[Measurement | None, ...]]) -> _Lack | None:
    every = [m for block in blocks for m in block]
    bad = [m for m in every if m is None or m.status != "ok"]
    if not bad:
        return None
    worst = next((m for m in bad if m is not None and m.status in ("failed", "invalid")), None)
    known = worst or next((m for m in bad if m is not None), None)
    what = "does not have it" if known is None else f"{known.status}: {known.reason or 'no reason given'}"
    where = f" in {len(bad)} of {len(every)} processes"
    return _Lack(f"{what}{where}", worst is None, len(bad) == len(every))


def gather(blocks: Iterable[Block]) -> dict[Key, Series]:
    """All timed series that either side has, by key."""
    tables = [{side: [_by_key(r) for r in block.of(side)] for side in ("base", "head")} for block in blocks]
    found: dict[Key, Series] = {}
    for block in tables:
        for table in (*block["base"], *block["head"]):
            for key, measurement in table.items():
                found.setdefault(key, Series(measurement))
    for key, series in found.items():
        for block in tables:
            series.base.append(tuple(table.get(key) for table in block["base"]))
            series.head.append(tuple(table.get(key) for table in block["head"]))
    return dict(sorted(found.items()))


def _by_key(record: Record) -> dict[Key, Measurement]:
    return {m.key: m for m in record.measurements if m.contract not in EXACT_CONTRACTS}


@dataclass(slots=True)
class Seen:
    """One series after the screen. ``screened`` is None where there was trouble."""

    series: Series
    limits: PairLimits
    screened: Screened | None
    trouble: Trouble | None
    same: str  # why time does not judge it; empty where it does
    gpu_model: str
    decimals: int | None

    @property
    def is_suspect(self) -> bool:
        """Whether it gets fresh blocks. Of one that fails nothing the screen's word is enough."""
        return bool(self.screened and self.screened.suspect and self.limits.gated and not self.same)


def look(evidence: Evidence) -> list[Seen]:
    """The screen's word on every timed series."""
    blocks = evidence.blocks["screen"]
    if not blocks:
        return []
    first = blocks[0].base[0]
    num_requests = {
        case.name: case.num_requests for block in blocks for r in block.head + block.base for case in r.cases
    }
    model, blocked = first.environment.gpu_model, _wrong_on_head(evidence)
    seen = []
    for key, series in gather(blocks).items():
        size = num_requests.get(key[3], 0)
        limits = limits_of(evidence.policy, key, size, model)
        decimals = evidence.policy.thresholds.row_for(key, num_requests=size, gpu_model=model).decimals
        trouble = blocked.get((key[3], key[2])) or series.trouble()
        screened = None if trouble else _screen(series, limits)
        same = _why_same(evidence, series.example, first)
        seen.append(Seen(series, limits, screened, trouble, same, model, decimals))
    return seen


def suspected_cases(evidence: Evidence) -> list[str]:
    """Names of the cases that need fresh blocks, old names of renamed ones among them."""
    suspects = {one.series.example.case for one in look(evidence) if one.is_suspect}
    names = [name for side in ("base", "head") for name in evidence.state.cases_of(side, evidence.plan)]
    return sorted({name for name in names if evidence.policy.aliases.now(name) in suspects})


def judge_times(evidence: Evidence) -> list[GateVerdict]:
    """A verdict on every timed series."""
    seen = look(evidence)
    fresh = gather(evidence.blocks["confirm"])
    suspects = [one for one in seen if one.is_suspect and one.series.example.key in fresh]
    judged = confirm([_family(fresh[one.series.example.key], one.limits) for one in suspects])
    confirmed = {one.series.example.key: judgement for one, judgement in zip(suspects, judged, strict=True)}
    return [_judge(one, confirmed.get(one.series.example.key), fresh) for one in seen if not _is_nobodys(one)]


def limits_of(policy: Policy, key: Key, num_requests: int, gpu_model: str) -> PairLimits:
    """How a gate judges one series."""
    row = policy.thresholds.row_for(key, num_requests=num_requests, gpu_model=gpu_model)
    limit_pct, margin_pct = policy.thresholds.paired_pct_for(row)
    return PairLimits(margin_pct, limit_pct, row.floor_us, row.better.get(key[0], "lower"), row.gated)


def _screen(series: Series, limits: PairLimits) -> Screened:
    base, head = series.medians("base"), series.medians("head")
    return screen(series.differences(), limits, _median(base), base, head)


def _family(series: Series, limits: PairLimits) -> Family:
    base, head = series.medians("base"), series.medians("head")
    return Family(series.differences(), limits, _median(base), base, head)


def _median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else 0.0


def _judge(one: Seen, confirmed: PairJudgement | None, fresh: dict[Key, Series]) -> GateVerdict:
    if one.trouble is not None:
        return _verdict(one, one.series, PairJudgement(one.trouble.verdict, one.trouble.reason, 0), "none")
    assert one.screened is not None
    series, example = one.series, one.series.example
    if one.same:
        return _same_verdict(one)
    if confirmed is not None:
        fresh_series = fresh[example.key]
        if trouble := fresh_series.trouble():
            return _verdict(one, fresh_series, PairJudgement(trouble.verdict, trouble.reason, 0), "none")
        return _verdict(one, fresh_series, confirmed, "confirm")
    judgement = judge_unsuspected(one.screened)
    if one.screened.suspect and judgement.verdict != "invalid":
        why = "fresh blocks would decide" if one.limits.gated else "it fails nothing, so it was not measured again"
        judgement = _with(judgement, "inconclusive", f"{judgement.reason}; suspected by the screen: {why}")
    return _verdict(one, series, judgement, "screen")


def _same_verdict(one: Seen) -> GateVerdict:
    assert one.screened is not None
    judgement = judge_unsuspected(one.screened)
    return _verdict(one, one.series, _with(judgement, "unchanged", one.same), "exact", identical=True)


def _with(judgement: PairJudgement, verdict: VerdictName, reason: str) -> PairJudgement:
    return replace(judgement, verdict=verdict, reason=reason)


def _verdict(
    one: Seen, series: Series, judgement: PairJudgement, stage: Stage, *, identical: bool = False
) -> GateVerdict:
    m, base, head = series.example, series.medians("base"), series.medians("head")
    return GateVerdict(
        metric=m.metric,
        op=m.op,
        provider=m.provider,
        case=m.case,
        contract=m.contract,
        gpu_model=one.gpu_model,
        unit=m.unit,
        decimals=one.decimals,
        verdict=judgement.verdict,
        reason=judgement.reason,
        stage=stage,
        gated=one.limits.gated,
        base_value=rounded(_median(base)) if base else None,
        head_value=rounded(_median(head)) if head else None,
        change_pct=rounded(judgement.estimate_pct),
        low_pct=rounded(judgement.low_pct),
        high_pct=rounded(judgement.high_pct),
        limit_pct=rounded(one.screened.limits.limit_pct if one.screened else one.limits.limit_pct),
        detectable_pct=rounded(judgement.detectable_pct),
        p=rounded(judgement.p),
        q=rounded(judgement.q),
        sign_flip_p=rounded(judgement.sign_flip_p),
        n_blocks=judgement.n_blocks,
        suspected=bool(one.screened and one.screened.suspect),
        identical=identical,
    )


def _is_nobodys(one: Seen) -> bool:
    """Skipped by every process of both sides, as what does not fit the card: nobody could measure it."""
    every = [m for block in (*one.series.base, *one.series.head) for m in block]
    return all(m is not None and m.status == "skipped" for m in every)


def _wrong_on_head(evidence: Evidence) -> dict[tuple[str, str], Trouble]:
    """By case and provider: results of the head that are wrong where those of the base are right."""
    base = {(c[0].case, c[0].provider) for c in failed_checks(evidence.records_of("base")).values()}
    found = {}
    for (case, op, provider, metric), checks in failed_checks(evidence.records_of("head")).items():
        if (case, provider) not in base:
            reason = f"its correctness check failed ({op} {metric}) in {len(checks)} processes, so no time counts"
            found[case, provider] = Trouble("invalid", reason)
    return found


def _why_same(evidence: Evidence, m: Measurement, record: Record) -> str:
    plan = evidence.plan
    if plan.base.source_hash == plan.head.source_hash and plan.base.program_hash == plan.head.program_hash:
        return SAME_SOURCES
    capability = record.environment.compute_capability
    if record.environment.gpu_model == CPU or capability is None or plan.harness == "own":
        return ""  # each side's own program may launch it otherwise
    arch = f"sm_{capability.replace('.', '')}"
    prints = [
        evidence.reports.get(side, {}).get("ops", {}).get(arch, {}).get(f"{m.provider}/{m.op}", {}).get(m.case, {})
        for side in ("base", "head")
    ]
    base, head = (facts.get("fingerprint") for facts in prints)
    return IDENTICAL if base is not None and base == head else ""
