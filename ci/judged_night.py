"""From the records of tonight, on one GPU model, to the night that is stored: verdicts, trends, exit code."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from benchmarks.harness.ids import new_id, utc_now
from benchmarks.harness.records import Night, Record
from benchmarks.harness.store import Store

from .config import NightlyConfig
from .exits import WORST_FIRST, Exit
from .judging import judge
from .night import Tonight, choose_base, night_before
from .policy import Policy
from .trends.examine import examine
from .trends.report import write as write_trends
from .trends.series import Measured
from .trends.stored import read_nights


@dataclass(frozen=True, slots=True)
class Bench:
    """Where nights are judged: against those of ``store``, by limits, with files left in ``out``."""

    store: Store
    config: NightlyConfig
    policy: Policy
    out: Path


def order_of_models(records: Sequence[Record], archs: Sequence[str]) -> list[str]:
    """GPU models of these records; what was compiled comes behind what was measured, in the order of the table."""
    models = dict.fromkeys(r.environment.gpu_model for r in records)
    return sorted(models, key=lambda model: archs.index(model) if model in archs else -1)


def judge_night(bench: Bench, tonight: Tonight) -> Night:
    """The night of these records, not stored yet."""
    store, first = bench.store, tonight.records[0]
    model = first.environment.gpu_model
    nights = store.recent_nights(model, pinned=bench.config.pinned_night(model))
    min_processes = bench.policy.thresholds.statistics.min_processes
    base = choose_base(nights, store.records, tonight, min_processes, bench.policy.aliases)
    # Reading the base night may have set files aside too.
    quarantined = [*tonight.quarantined, *store.quarantined]
    found = judge(replace(tonight, quarantined=quarantined), base, bench.policy, night_before(nights, tonight))
    night = Night(
        id=new_id(first.subject.commit),
        created_utc=utc_now(),
        case_set=tonight.case_set,
        gpu_model=model,
        records=[r.id for r in found.counted],
        left_out=found.left_out,
        lacks=list(tonight.lacks),
        quarantined=quarantined,
        base_night=base.night.id if base else None,
        verdicts=found.verdicts,
        accepted=found.accepted,
        exit_code=found.code,
        notes=[*found.doubts, *found.notes],
    )
    return night if night.is_static else _with_trends(night, found.counted, nights, bench)


def _with_trends(night: Night, records: Sequence[Record], earlier: Sequence[Night], bench: Bench) -> Night:
    """The night with what it says together with those before it, which also goes into a file of ``--out``."""
    own = set(night.all_records)
    before = [one for one in earlier if one.created_utc <= night.created_utc and own.isdisjoint(one.all_records)]
    pinned = bench.config.pinned_night(night.gpu_model)
    trends = examine([*read_nights(bench.store, before, pinned), Measured(night, records)], bench.policy, pinned)
    write_trends(trends, night.case_set, bench.out)
    return msgspec.structs.replace(
        night,
        notes=[*night.notes, *trends.notes],
        alarms=trends.alarms,
        exit_code=min(Exit(night.exit_code), trends.code, key=WORST_FIRST.index),
        accepted=night.accepted and trends.code == Exit.PASS,
    )
