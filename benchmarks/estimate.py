"""How long a measuring process would take, from nights that were measured before."""

import statistics
from dataclasses import dataclass

from .harness.record_files import decode_record
from .harness.records import Night
from .harness.store import Store


@dataclass(frozen=True, slots=True)
class Estimate:
    """Of one process on one GPU model."""

    process_s: float
    from_night: str


def estimate_process(store: Store, case_set: str, num_cases: int) -> dict[str, Estimate]:
    """Seconds by GPU model, from the newest night of this set that measured; a model without one is left out."""
    nights = [night for night in store.recent_nights() if night.case_set == case_set and not night.is_static]
    newest: dict[str, Night] = {night.gpu_model: night for night in nights}
    found = {}
    for model, night in newest.items():
        records = list(store.read_each(decode_record, None, set(night.records), model))
        if records:
            # A night may have measured a part of the set, so count by case.
            per_case_s = statistics.median(record.duration_s / max(len(record.cases), 1) for record in records)
            found[model] = Estimate(per_case_s * num_cases, night.id)
    return found
