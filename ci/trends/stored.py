"""The nights that trends are made of, read from stores."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from benchmarks.harness.record_files import read_record
from benchmarks.harness.records import Night
from benchmarks.harness.store import Store
from ci.config import load_nightly
from ci.gpus import CPU
from ci.history.layout import open_existing
from ci.policy import load_policy

from .examine import Trends, examine
from .series import Measured

BASELINE_NIGHTS = 20  # up to the pinned night, of which some may be of other sets or invalid
MAX_NIGHTS = 120  # the newest ones: five records each


def read_nights(store: Store, nights: Sequence[Night], pinned: str | None) -> list[Measured]:
    """The newest ``MAX_NIGHTS`` of these and those of the pinned one, with their records, in the same order.

    The nights are of one GPU model. What cannot be read is left out; samples are not looked at. Of nights with records
    in common, as of a night whose shards were merged before all had come, the last one counts, or the pinned one.
    """
    nights = _without_earlier_mergings(nights, pinned)
    place = next((at for at, night in enumerate(nights) if night.id == pinned), -1)
    wanted = {night.id for night in (*nights[max(0, place + 1 - BASELINE_NIGHTS) : place + 1], *nights[-MAX_NIGHTS:])}
    newest = [night for night in nights if night.id in wanted]
    wanted = {name for night in newest for name in night.records}
    model = newest[0].gpu_model if newest else "*"
    records = {record.id: record for record in store.read_each(read_record, None, wanted, model)}
    return [Measured(night, [records[name] for name in night.records if name in records]) for night in newest]


def _without_earlier_mergings(nights: Sequence[Night], pinned: str | None) -> list[Night]:
    seen, kept = set[str](), set[str]()
    for night in (*(night for night in nights if night.id == pinned), *reversed(nights)):
        if seen.isdisjoint(night.all_records):
            kept.add(night.id)
            seen |= set(night.all_records)
    return [night for night in nights if night.id in kept]


def examine_store(spec: str, gpu_model: str = "*") -> list[tuple[Trends, str]]:
    """The newest night of each GPU model that fits the glob, with its set; neither CPUs nor what was only compiled."""
    config, policy, store = load_nightly(), load_policy(), open_existing(spec)
    found = []
    for model in store.gpu_models():
        if model == CPU or not fnmatchcase(model, gpu_model):
            continue
        pinned = config.pinned_night(model)
        recent = store.recent_nights(model, newest=MAX_NIGHTS, pinned=pinned)
        own = sorted((n for n in recent if not n.is_static), key=lambda n: (n.created_utc, n.id))
        if measured := read_nights(store, own, pinned):
            found.append((examine(measured, policy, pinned), measured[-1].night.case_set))
    return found
