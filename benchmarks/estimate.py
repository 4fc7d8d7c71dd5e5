"""How long a measuring process would take, from nights that were measured before."""

import statistics
from dataclasses import dataclass

from .harness.record_files import read_record
from .harness.store import Store


@dataclass(frozen=True, slots=True)
class Estimate:
    """Of one process on one GPU model."""

    process_s: float
    from_night: str


def estimate_process(store: Store, case_set: str, num_cases: int) -> dict[str, Estimate]:
    """Seconds by GPU model, from the newest night that measured this set; a model without one is left out.

    From one of some of its cases only where there is no other, as cases take from one to five seconds.
    """
    found = {}
    for model in store.gpu_models():
        night = None
        for one in store.newest_first(model):
            if one.case_set != case_set and not one.is_static:
                continue
            night = night or one
            if not one.is_part:
                night = one
                break
        if night is None or night.is_static:  # a model that is compiled for is never measured
            continue
        records = list(store.read_each(read_record, None, set(night.records), model))
        if records:
            # A night may have measured a part of the set, so count by case.
            per_case_s = statistics.median(record.duration_s / max(len(record.cases), 1) for record in records)
            found[model] = Estimate(per_case_s * num_cases, night.id)
    return found
