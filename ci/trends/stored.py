"""The nights that trends are made of, read from stores."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from benchmarks.harness.records import Night
from benchmarks.harness.store import Store
from ci.config import load_nightly
from ci.gpus import CPU
from ci.history.layout import open_existing
from ci.policy import load_policy

from .examine import Trends, examine
from .series import Measured

BASELINE_NIGHTS = 20  # up to the pinned night, of which some may be of other sets or invalid
MAX_NIGHTS = 120  # the newest ones: five records each, 2 ms a record


def read_nights(store: Store, nights: Sequence[Night], pinned: str | None) -> list[Measured]:
    """The newest ``MAX_NIGHTS`` of these and those of the pinned one, with their records, in the same order.

    What cannot be read is left out.
    """
    place = next((at for at, night in enumerate(nights) if night.id == pinned), -1)
    wanted = {night.id for night in (*nights[max(0, place + 1 - BASELINE_NIGHTS) : place + 1], *nights[-MAX_NIGHTS:])}
    newest = [night for night in nights if night.id in wanted]
    found = store.records([name for night in newest for name in night.records], thorough=False)
    records = {record.id: record for record in found}
    return [Measured(night, [records[name] for name in night.records if name in records]) for night in newest]


def examine_store(spec: str, gpu_model: str = "*") -> list[tuple[Trends, str]]:
    """The newest night of each GPU model that fits the glob, with its set; neither CPUs nor what was only compiled."""
    config, policy, store = load_nightly(), load_policy(), open_existing(spec)
    nights = [night for night in store.nights() if not night.is_static and night.gpu_model != CPU]
    found = []
    for model in sorted({night.gpu_model for night in nights if fnmatchcase(night.gpu_model, gpu_model)}):
        own = sorted((n for n in nights if n.gpu_model == model), key=lambda n: (n.created_utc, n.id))
        pinned = config.pinned_night(model)
        measured = read_nights(store, own, pinned)
        trends = examine(measured, policy, pinned)
        found.append((trends, measured[-1].night.case_set))
    return found
