"""Nights of several runners: bring in what each left, say who left nothing, and whose last night is too old."""

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from benchmarks.harness.store import Store
from ci.exits import CommandError, Exit
from ci.history.importing import import_from

ARCHIVE = "night.tar.gz"
SPARE_NIGHTS = 5  # of each GPU model: one would do, were it sure that it can be read


@dataclass(slots=True)
class Leg:
    """What came of one runner. PASS: its night is in the store, whatever it says; else why it is not."""

    name: str
    code: Exit
    said: str
    nights: list[str] = field(default_factory=list)


def collect(folder: Path, names: Sequence[str], store: Store) -> list[Leg]:
    """Import ``folder/night-NAME/night.tar.gz`` of each leg. Nothing in it is trusted; no leg spoils another.

    Raises:
        StoreError, OSError: the store cannot be written.
    """
    return [_collect(folder / f"night-{name}" / ARCHIVE, name, store) for name in names]


def _collect(archive: Path, name: str, store: Store) -> Leg:
    if not archive.is_file():
        return Leg(name, Exit.MISSING, "missing: no runner took it, or it ended before it had measured")
    try:
        done = import_from(archive, store)
    except CommandError as error:
        return Leg(name, Exit.MISSING if error.code == Exit.MISSING else Exit.INVALID, f"not taken in: {error}")
    if not done.nights and not done.already_there:
        return Leg(name, Exit.MISSING, f"missing: {len(done.records)} records, but no night was judged")
    return Leg(name, Exit.PASS, f"{len(done.records)} records, {done.already_there} files were there", done.nights)


def overdue(store: Store, models: Sequence[str], hours: float, now: dt.datetime | None = None) -> list[str]:
    """Of each glob of GPU models without a night in so many hours: what to tell; empty when all have one."""
    now = now or dt.datetime.now(dt.UTC)
    nights = store.recent_nights(newest=SPARE_NIGHTS)
    told = []
    for model in models:
        own = [night.created_utc for night in nights if fnmatchcase(night.gpu_model, model)]
        age_h = (now - dt.datetime.fromisoformat(max(own))).total_seconds() / 3600 if own else None
        if age_h is None:
            told.append(f"{model}: there has never been a night")
        elif age_h > hours:
            told.append(f"{model}: the last night is {age_h:.0f} hours old ({max(own)}), limit {hours:g}")
    return told
