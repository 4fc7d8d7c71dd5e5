"""Nights of several runners: bring in what each left, say who left nothing, and whose last night is too old."""

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

from benchmarks.harness.store import Store
from ci.exits import CommandError, Exit
from ci.foreign_text import plain
from ci.history.importing import import_from

ARCHIVE = "night.tar.gz"
SPARE_NIGHTS = 5  # of each GPU model: one would do, were it sure that it can be read
LONGEST_REASON = 2000  # 20 files
CLOCKS_H = 1.0  # by which hosts' clocks may differ


@dataclass(slots=True)
class Leg:
    """What came of one runner. PASS: its night is in the store, whatever it says; else why it is not."""

    name: str
    code: Exit
    said: str
    nights: list[str] = field(default_factory=list)


def collect(folder: Path, names: Sequence[str], store: Store) -> list[Leg]:
    """Import ``folder/RUN/night-NAME/night.tar.gz`` of each leg. Nothing in it is trusted; no leg spoils another.

    The newest run, the one of the highest number, says whether a leg is there. Earlier ones are told where they bring
    something: a runner may have come to its leg long after the page was built. Without runs ``folder`` is the only one.

    Raises:
        StoreError, OSError: the store cannot be written.
    """
    numbers = sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal())
    *earlier, newest = [folder / str(number) for number in numbers] or [folder]
    late = [_late(run, name, store) for run in earlier for name in names]
    return [*filter(None, late), *(_collect(_archive(newest, name), name, store) for name in names)]


def _archive(run: Path, name: str) -> Path:
    return run / f"night-{name}" / ARCHIVE


def _late(run: Path, name: str, store: Store) -> Leg | None:
    """What an earlier run brings after all; None where that is nothing. It was missing then, and fails nothing now."""
    if not (archive := _archive(run, name)).is_file():
        return None
    leg = _collect(archive, f"{name} of run {run.name}", store)
    return None if leg.code == Exit.PASS and not leg.nights else replace(leg, code=Exit.PASS)


def _collect(archive: Path, name: str, store: Store) -> Leg:
    if not archive.is_file():
        return Leg(name, Exit.MISSING, "missing: no runner took it, or it ended before it had measured")
    try:
        done = import_from(archive, store)
    except CommandError as error:
        said = f"not taken in: {plain(str(error), LONGEST_REASON)}"  # of the archive, and told in a log of GitHub's
        return Leg(name, Exit.MISSING if error.code == Exit.MISSING else Exit.INVALID, said)
    if not done.nights and not done.already_there:
        return Leg(name, Exit.MISSING, f"missing: {len(done.records)} records, but no night was judged")
    return Leg(name, Exit.PASS, f"{len(done.records)} records, {done.already_there} files were there", done.nights)


def overdue(store: Store, models: Sequence[str], hours: float, now: dt.datetime | None = None) -> list[str]:
    """Of each glob of GPU models without a night in so many hours: what to tell; empty when all have one.

    A night that says it is yet to come, of a clock that ran ahead, is none: it would silence this until then.
    """
    now = now or dt.datetime.now(dt.UTC)
    latest = f"{now + dt.timedelta(hours=CLOCKS_H):%Y%m%dT%H%M%SZ}~"  # ids begin with their time
    told = []
    for model in models:
        names = [name for name in store.gpu_models() if fnmatchcase(name, model)]
        own = [night.created_utc for name in names for night in store.nights(name, newest=SPARE_NIGHTS, before=latest)]
        age_h = (now - dt.datetime.fromisoformat(max(own))).total_seconds() / 3600 if own else None
        if age_h is None:
            told.append(f"{model}: the store has no night")
        elif not age_h <= hours:
            told.append(f"{model}: the last night is {age_h:.0f} hours old ({max(own)}), limit {hours:g}")
    return told
