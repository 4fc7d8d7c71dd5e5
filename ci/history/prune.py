"""Takes old nights out of a store, and nothing that a later night could be judged against."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from benchmarks.harness.records import Night, Record, samples_path
from benchmarks.harness.store import Store
from ci.exits import CommandError, Exit, UsageError

from .layout import list_files


class DamagedStoreError(CommandError):
    """What cannot be read could be what others need."""

    code = Exit.INVALID


@dataclass(frozen=True, slots=True)
class Keep:
    """How much stays: the newest nights of each GPU model, and those of the last days; either may be left out."""

    nights: int | None = None
    days: float | None = None

    def __post_init__(self) -> None:
        if self.nights is None and self.days is None:
            raise UsageError("say what stays: --keep-nights N, --keep-days D, or both")


@dataclass(slots=True)
class Pruned:
    """Ids; with ``dry_run`` what would go. ``needed`` are old nights that stay because others need them."""

    nights: list[str] = field(default_factory=list)
    records: list[str] = field(default_factory=list)
    needed: dict[str, str] = field(default_factory=dict)  # id -> why
    kept_nights: int = 0
    freed_bytes: int = 0


def prune(store: Store, keep: Keep, *, now: datetime | None = None, dry_run: bool = False) -> Pruned:
    """Remove what ``keep`` does not cover, night first, so that a crash leaves records without a night, never more.

    Besides, these stay: the base night of every night that stays; of each environment the newest accepted night of
    every set of cases, which is what later nights are judged against; and the newest accepted night of every series.
    Records of no night go when they are older than all nights that stay.

    Raises:
        DamagedStoreError: a file cannot be read; nothing was removed.
    """
    nights, records = store.nights(), {record.id: record for record in store.records()}
    if store.quarantined:
        raise DamagedStoreError(
            "nothing was removed, for not all can be read:\n" + "\n".join(store.quarantined),
            f"python -m ci history verify --store {store.name}",
        )
    staying = _covered(nights, keep, now or datetime.now(UTC))
    result = Pruned(needed=_needed(nights, records, staying))
    staying |= set(result.needed)
    result.kept_nights = len(staying)
    result.nights = [night.id for night in nights if night.id not in staying]
    result.records = _unneeded_records(nights, records, staying)
    paths = _paths(store, result)
    result.freed_bytes = sum(path.stat().st_size for path in paths)
    if paths and not dry_run:
        store.remove(paths, f"prune {len(result.nights)} nights, {len(result.records)} records")
        store.publish()
    return result


def _covered(nights: list[Night], keep: Keep, now: datetime) -> set[str]:
    covered: set[str] = set()
    if keep.days is not None:
        since = f"{now - timedelta(days=keep.days):%Y-%m-%dT%H:%M:%SZ}"
        covered |= {night.id for night in nights if night.created_utc >= since}
    if keep.nights is not None:
        for model in {night.gpu_model for night in nights}:
            own = [night.id for night in _newest_first(nights) if night.gpu_model == model]
            covered |= set(own[: keep.nights])
    return covered


def _needed(nights: list[Night], records: dict[str, Record], staying: set[str]) -> dict[str, str]:
    needed: dict[str, str] = {}
    seen: set[Hashable] = set()
    for night in _newest_first(nights):
        found = [records[record_id] for record_id in night.records if record_id in records]
        if not night.accepted or not found:
            continue
        place = (night.gpu_model, found[0].environment.cut_key(host=False))
        # A night that lost records serves as a base only where no whole one is.
        cases = (frozenset(verdict.case for verdict in night.verdicts), len(found) == len(night.records))
        series = {(*place, verdict.key) for verdict in night.verdicts if verdict.value is not None}
        if (*place, cases) not in seen:
            needed.setdefault(night.id, "later nights of its cases and environment are judged against it")
        elif not series <= seen:
            needed.setdefault(night.id, "it has the newest accepted value of a series")
        seen |= {(*place, cases), *series}
    by_id = {night.id: night for night in nights}
    for night_id in (*staying, *needed):
        base = by_id[night_id].base_night
        if base in by_id:
            needed.setdefault(str(base), f"night {night_id}, which stays, was judged against it")
    return {night_id: why for night_id, why in sorted(needed.items()) if night_id not in staying}


def _unneeded_records(nights: list[Night], records: dict[str, Record], staying: set[str]) -> list[str]:
    used = {record_id for night in nights if night.id in staying for record_id in night.all_records}
    of_nights = {record_id for night in nights for record_id in night.all_records}
    oldest: dict[str, str] = {}
    for night in _newest_first(nights):
        if night.id in staying:
            oldest[night.gpu_model] = night.created_utc
    return [
        record_id
        for record_id, record in records.items()
        if record_id not in used
        and (record_id in of_nights or record.created_utc < oldest.get(record.environment.gpu_model, ""))
    ]


def _paths(store: Store, result: Pruned) -> list[Path]:
    files = list_files(store.folder)
    gone = [path for path in files.nights if path.stem in set(result.nights)]
    for path in files.records:
        if path.stem in set(result.records):
            gone += [path, samples_path(path)]
    return gone


def _newest_first(nights: list[Night]) -> list[Night]:
    return sorted(nights, key=lambda night: (night.created_utc, night.id), reverse=True)
