"""Nights that several runs measure, each a shard of the cases: which cases are whose, and all of them as one night."""

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.cases import BenchCase
from benchmarks.harness.errors import BranchError, UnsentError
from benchmarks.harness.record_files import read_record
from benchmarks.harness.records import Night, Record, Shard
from benchmarks.harness.store import Store
from benchmarks.sharding import ShardOf, deal

from . import static_night
from .config import load_nightly
from .exits import WORST_FIRST, Exit, MissingDataError, UsageError
from .judged_night import Bench, judge_night, order_of_models
from .night import Tonight
from .policy import load_policy
from .preview import select_cases

MERGED = 10  # newest nights of a GPU model, among which an earlier merging is looked for
BATCH, MOST = 250, 2500  # records of a GPU model that are looked at together, and in all, for those of a night
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # of a night: it stands in records, on pages and in commands


def take_shard(asked: str | None, night: str | None, cases: list[BenchCase]) -> tuple[Shard | None, list[BenchCase]]:
    """What ``--shard`` and ``--night`` ask for, and the cases of it; without them all cases.

    Raises:
        UsageError: one without the other, no I/N, no plain name. MissingDataError: more shards than cases.
    """
    if (asked is None) != (night is None):
        raise UsageError("--shard and --night: expected both; all shards of a night are told by one name")
    if asked is None or night is None:
        return None, cases
    require_plain_name(night)
    try:
        shard = ShardOf.parse(asked)
    except ValueError as error:
        raise UsageError(f"--shard: {error}") from error
    own = deal(cases, shard)
    if not own:
        raise MissingDataError(f"--shard {shard}: there are {len(cases)} cases", f"--shard I/{len(cases)} at most")
    return Shard(night=night, index=shard.index, count=shard.count), own


def require_plain_name(night: str) -> None:
    """Raises UsageError."""
    if not NAME.fullmatch(night):
        raise UsageError(f"--night: expected letters, digits, '.', '_' and '-' (64 at most), got {night!r}")


def merge(store: Store, name: str, pattern: str, out: Path) -> tuple[list[Night], list[str], Exit]:
    """Judge all records of a night's shards together and store it: a night of each GPU model, messages, exit code.

    Where a stored night says the same of the same records, it is that night, and nothing is stored.

    Raises:
        MissingDataError: no record of that night.
        UsageError: its shards are not of one set, or not of one number of shards; nothing was stored.
    """
    store.check()
    records = _records_of(store, name)
    if not records:
        raise MissingDataError(
            f"no record of a night {name} in {store.folder}", "bring its shards there: ci history import"
        )
    bench = Bench(store, load_nightly(), load_policy(), out)
    models = order_of_models(records, bench.config.static.archs)
    by_model = {model: [record for record in records if record.environment.gpu_model == model] for model in models}
    for model, own in by_model.items():
        sets = {(record.case_set, record.shard.count) for record in own if record.shard}
        if len(sets) > 1:
            raise UsageError(f"night {name} on {model}: expected one set in one number of shards, got {sorted(sets)}")
    out.mkdir(parents=True, exist_ok=True)
    nights, messages, code = [], list[str](), Exit.PASS
    for own in by_model.values():
        night = judge_night(bench, _tonight(bench, own[0].case_set, pattern, own))
        code = min(code, Exit(night.exit_code), key=WORST_FIRST.index)
        if before := _merged_before(store, night):
            nights.append(before)
            messages.append(f"night {before.id}: merged before, and nothing has changed since")
            continue
        nights.append(night)
        try:
            store.add_night(night)
        except (BranchError, UnsentError) as error:  # written, and the message says how to publish it
            messages.append(f"night {night.id}: {error}")
            code = Exit.BROKEN
    return nights, messages, code


def _records_of(store: Store, name: str) -> list[Record]:
    """From the newest records of each GPU model backwards, until after some of that night a batch has none."""
    found: set[str] = set()
    for model in store.gpu_models("records"):
        ids, of_model = store.ids("records", model, newest=MOST), set[str]()
        for end in range(len(ids), 0, -BATCH):
            batch = set(ids[max(0, end - BATCH) : end])
            own = {
                record.id
                for record in store.read_each(read_record, None, batch, model)
                if record.shard and record.shard.night == name
            }
            if of_model and not own:
                break
            of_model |= own
        found |= of_model
    return store.records(found)


def _merged_before(store: Store, night: Night) -> Night | None:
    """The stored night that differs by its name alone."""
    for old in store.nights(night.gpu_model, newest=MERGED):
        if msgspec.structs.replace(night, id=old.id, created_utc=old.created_utc) == old.as_judged:
            return old
    return None


def _tonight(bench: Bench, case_set: str, pattern: str, records: Sequence[Record]) -> Tonight:
    selected = [case.name for case in select_cases(case_set, pattern)[1]]
    if all(record.is_static for record in records):  # the first shard compiled for all
        return static_night.tonight(case_set, pattern, bench.config.static, selected, records)
    shards = [record.shard for record in records if record.shard]
    absent = sorted(set(range(1, shards[0].count + 1)) - {shard.index for shard in shards})
    lacks = [f"{index}/{shards[0].count}" for index in absent]
    return Tonight(case_set, pattern, selected, records, lacks=lacks)
