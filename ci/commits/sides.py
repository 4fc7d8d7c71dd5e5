"""What a name on the command line stands for in a store: a night, a record, or all that was measured of a commit."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TypeVar

from benchmarks.harness.ids import COMMIT_DIGITS, COMMIT_HASH, commit_of
from benchmarks.harness.records import Night, Record
from ci.config import load_thresholds
from ci.exits import MissingDataError, UsageError
from ci.gpus import CPU
from ci.validity import tell_sound
from reports.sources import Stored

SHOWN_NIGHTS = 5  # named when nothing fits
T = TypeVar("T")
LATEST = re.compile(r"latest(?:~(\d+))?")


@dataclass(frozen=True, slots=True)
class Side:
    """Records that repeat one measurement: of one GPU model and, but for broken nights, of one code."""

    what: str  # "night 2026...", "record 2026...", "commit 1234abcd (night 2026...)", for people
    case_set: str
    records: Sequence[Record]
    night: Night | None = None  # the one they are of
    notes: Sequence[str] = ()

    @property
    def gpu_model(self) -> str:
        return self.records[0].environment.gpu_model

    @property
    def commits(self) -> list[str]:
        return sorted({record.subject.commit or "unknown" for record in self.records})


def resolve(history: Stored[Record], name: str, gpu_model: str = "*") -> Side:
    """The records that ``name`` stands for: a night's or record's id or its end, a commit, ``latest`` or ``latest~N``.

    Of a commit they are those of its newest night, else of its newest backfill. A process whose controls disagree
    never counts.

    Raises:
        MissingDataError: nothing in the store fits; the newest nights are named.
        UsageError: the name fits more than one, or a commit was measured on several GPU models.
    """
    nights = _nights(history, gpu_model)
    if LATEST.fullmatch(name):
        for night in latest(history, name, gpu_model):
            return _of_night(history, night)
        num = sum(not night.is_static for night in nights)
        raise MissingDataError(f"{name}: the store has {num} nights", "--store, --gpu-model")
    if own := [night for night in nights if is_named(name, night.id)]:
        return _of_night(history, _only(name, own, [night.id for night in own]))
    records = [record for record in history.records.values() if fnmatchcase(record.environment.gpu_model, gpu_model)]
    if single := [record for record in records if is_named(name, record.id)]:
        record = _only(name, single, [record.id for record in single])
        return Side(f"record {record.id}", record.case_set, [record])
    if COMMIT_HASH.fullmatch(name):
        of_commit = [record for record in records if (record.subject.commit or "").startswith(name.lower())]
        if of_commit:
            return _of_commit(history, name, nights, of_commit)
    known = "; ".join(f"{n.id} ({n.case_set}, {n.gpu_model})" for n in nights[: -SHOWN_NIGHTS - 1 : -1]) or "none"
    raise MissingDataError(f"{name}: no night, record or commit of the store; newest nights: {known}", "--store S")


def in_one_backfill(history: Stored[Record], a: str, b: str, gpu_model: str = "*") -> tuple[Side, Side] | None:
    """Both commits as one backfill measured them, in turn on one card: the newest that has both; None without one."""
    if not (COMMIT_HASH.fullmatch(a) and COMMIT_HASH.fullmatch(b)):
        return None
    groups: dict[str, list[Record]] = {}
    for record in history.records.values():
        if record.backfill is not None and fnmatchcase(record.environment.gpu_model, gpu_model):
            groups.setdefault(record.backfill, []).append(record)
    for backfill in sorted(groups, reverse=True):
        own = groups[backfill]
        sides = [[r for r in own if (r.subject.commit or "").startswith(name.lower())] for name in (a, b)]
        if all(sides):
            first, second = (_sound(f"commit {n} (backfill {backfill})", s) for n, s in zip((a, b), sides, strict=True))
            return first, second
    return None


def latest(history: Stored[Record], name: str, gpu_model: str = "*") -> list[Night]:
    """The night that ``latest`` or ``latest~N`` stands for; none for another name, or where there are too few."""
    found = LATEST.fullmatch(name)
    measured = [night for night in _nights(history, gpu_model) if not night.is_static]
    return measured[::-1][int(found[1] or 0) :][:1] if found else []


def is_named(name: str, id_: str) -> bool:
    """By its id, or the end of it from a dash on: ``1ca701`` of ``20261129T211947Z-e609486e-1ca701``."""
    return name == id_ or id_.endswith(f"-{name}")


def is_of_commit(name: str, id_: str) -> bool:
    """Whether a commit may be that of a night or record, by its id, which has but the first digits."""
    return bool(COMMIT_HASH.fullmatch(name)) and commit_of(id_).startswith(name[:COMMIT_DIGITS].lower())


def _nights(history: Stored[Record], gpu_model: str) -> list[Night]:
    """In order of time."""
    nights = [night for night in history.nights.values() if fnmatchcase(night.gpu_model, gpu_model)]
    return sorted(nights, key=lambda night: (night.created_utc, night.id))


def _only(name: str, found: Sequence[T], ids: Sequence[str]) -> T:
    if len(found) > 1:
        raise UsageError(f"{name}: fits {', '.join(ids)}: give one of them")
    return found[0]


def _of_night(history: Stored[Record], night: Night, what: str = "") -> Side:
    records = [history.records[name] for name in night.records if name in history.records]
    if not records:
        raise MissingDataError(f"night {night.id}: none of its {len(night.records)} records is in the store")
    notes = [f"night {night.id}: record {name} is not in the store" for name in history.absent_records(night)]
    return Side(what or f"night {night.id}", night.case_set, records, night, notes)


def _of_commit(history: Stored[Record], name: str, nights: Sequence[Night], records: Sequence[Record]) -> Side:
    # Compiled figures and the CPU's stand beside those of cards under the same commit; cards are what is asked about.
    models = sorted({record.environment.gpu_model for record in records})
    cards = [m for m in models if m != CPU and not all(r.is_static for r in records if r.environment.gpu_model == m)]
    model = (cards or models)[0]
    if len(cards or models) > 1:
        raise UsageError(f"commit {name}: measured on {', '.join(cards or models)}: choose one with --gpu-model")
    ids = {record.id for record in records}
    for night in reversed(nights):
        if night.gpu_model == model and ids & set(night.records):
            return _of_night(history, night, f"commit {name} (night {night.id})")
    own = [record for record in records if record.environment.gpu_model == model and record.backfill is not None]
    if not own:
        raise MissingDataError(f"commit {name}: its records belong to no night and no backfill", "give a record's id")
    newest = max(record.backfill or "" for record in own)
    return _sound(f"commit {name} (backfill {newest})", [record for record in own if record.backfill == newest])


def _sound(what: str, records: Sequence[Record]) -> Side:
    sound, unsound = tell_sound(records, load_thresholds().statistics.drift_limit_pct)
    notes = [f"record {name}: left out: {why}" for name, why in unsound.items()]
    if not sound:
        raise MissingDataError(f"{what}: no process that can be believed: {'; '.join(notes)}")
    return Side(what, sound[0].case_set, sound, None, notes)
