"""Thins the raw samples of old nights, and never a value: records and nights stay as they are for good.

A thinned file has the columns of any other and says in its metadata that rows were left out (``samples.thin``).
"""

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.harness.record_files import samples_path
from benchmarks.harness.records import Night
from benchmarks.harness.samples import is_thinned_to, read_samples, thin
from benchmarks.harness.store import Store
from ci.config import load_nightly
from ci.exits import CommandError, Exit, UsageError

from .layout import list_files

BATCH = 100  # records rewritten under one hold of the store's lock, and sent together
MOST_DAYS = 36_500  # more lead out of the calendar
DEFAULT_SAMPLES = 8  # of each series: enough to see two modes, too few for a spread


class DamagedStoreError(CommandError):
    """What cannot be read could be what cites others."""

    code = Exit.INVALID


@dataclass(frozen=True, slots=True)
class Keep:
    """What keeps its samples: the newest nights of each GPU model, those of the last days; either may be left out.

    Attributes:
        samples: of each series, that older nights keep; 0 leaves none.
    """

    nights: int | None = None
    days: float | None = None
    samples: int = DEFAULT_SAMPLES

    def __post_init__(self) -> None:
        if self.nights is None and self.days is None:
            raise UsageError("say which nights keep all samples: --keep-nights N, --keep-days D, or both")


@dataclass(slots=True)
class Pruned:
    """Ids; with ``dry_run`` what would be thinned. ``cited`` are old nights that keep all samples, each with why."""

    nights: list[str] = field(default_factory=list)
    records: list[str] = field(default_factory=list)
    cited: dict[str, str] = field(default_factory=dict)
    left_alone: list[str] = field(default_factory=list)  # files that cannot be read
    kept_nights: int = 0
    freed_bytes: int = 0


def prune(store: Store, keep: Keep, *, now: datetime | None = None, dry_run: bool = False) -> Pruned:
    """Thin the samples of nights that ``keep`` does not cover and nothing cites. Doing it again changes nothing.

    Cited are: pinned nights (ci/nightly.toml); the nights at which a regression began, was last seen and ended, and the
    one it was held against; nights that an alarm or a change point names; nights that an owner accepted; the newest
    accepted night of every GPU model and set, which the next ones are held against.

    Raises:
        DamagedStoreError: a night cannot be read, and might cite others; nothing was thinned.
    """
    nights = store.nights()
    if store.quarantined:
        raise DamagedStoreError(
            "nothing was thinned, for not all nights can be read:\n" + "\n".join(store.quarantined),
            f"python -m ci history verify --store {store.name}",
        )
    covered = _covered(nights, keep, now or datetime.now(UTC))
    cited = cited_nights(store, nights)
    result = Pruned(cited={name: why for name, why in sorted(cited.items()) if name not in covered})
    old = [night for night in nights if night.id not in covered and night.id not in cited]
    result.kept_nights = len(nights) - len(old)
    for some in _batches(old):
        store.fetch([name for night in some for name in night.all_records], kinds=("records",))
        paths = {path.stem: samples_path(path) for path in list_files(store.folder).records}
        thinned = dict(_thinned(some, paths, keep.samples, result))
        if thinned and not dry_run:
            store.rewrite(thinned.items(), f"thin the samples of {len(thinned)} records")
    if result.records and not dry_run:
        store.publish()
    result.left_alone += store.quarantined
    return result


def cited_nights(store: Store, nights: list[Night]) -> dict[str, str]:
    """Nights whose samples somebody may want to see again, each with the first reason found."""
    from reports.events import find_events

    ids, cited = {night.id for night in nights}, dict[str, str]()

    def cite(found: Iterable[str | None], why: str) -> None:
        for name in found:
            if name in ids:
                cited.setdefault(str(name), why)

    cite((one.night for one in load_nightly().pinned), "pinned in ci/nightly.toml")
    cite((night.id for night in nights if night.acceptance is not None), "an owner accepted it")
    newest = {(night.gpu_model, night.case_set): night.id for night in nights if night.accepted}
    cite(newest.values(), "the next night of its set may be held against it")
    for model in sorted({night.gpu_model for night in nights}):
        own = [night for night in nights if night.gpu_model == model]
        for event in find_events(own, lambda _: None):
            for spell in event.spells:
                ended = None if spell.ended is None else spell.ended.id
                why = f"a regression of {spell.verdict.op} {spell.verdict.case} has it at an end or as its base"
                cite((spell.first.id, spell.first.base_night, spell.last.id, ended), why)
    alarms = " ".join(alarm for night in nights for alarm in night.alarms)
    words = {word.strip("(),:;") for word in alarms.split()}
    cite(sorted(words & ids), "an alarm names it")
    cite(_change_points(store, nights), "a step of a series lies at it")
    return cited


def _change_points(store: Store, nights: list[Night]) -> Iterator[str]:
    """Nights at both sides of each step that ``ci trends`` finds; it looks at the newest nights of a model."""
    from ci.gpus import CPU
    from ci.policy import load_policy
    from ci.trends.examine import examine
    from ci.trends.stored import read_nights

    policy, config = load_policy(), load_nightly()
    for model in sorted({night.gpu_model for night in nights if not night.is_static} - {CPU}):
        own = sorted((n for n in nights if n.gpu_model == model), key=lambda n: (n.created_utc, n.id))
        pinned = config.pinned_night(model)
        if measured := read_nights(store, own, pinned):
            for change in examine(measured, policy, pinned).changes:
                yield from (change.before.night, change.after.night)


def _covered(nights: list[Night], keep: Keep, now: datetime) -> set[str]:
    covered: set[str] = set()
    if keep.days is not None:
        since = f"{now - timedelta(days=min(keep.days, MOST_DAYS)):%Y-%m-%dT%H:%M:%SZ}"
        covered |= {night.id for night in nights if night.created_utc >= since}
    if keep.nights is not None:
        for model in {night.gpu_model for night in nights}:
            own = sorted((n for n in nights if n.gpu_model == model), key=lambda n: (n.created_utc, n.id))
            covered |= {night.id for night in own[-keep.nights :]}
    return covered


def _batches(nights: list[Night]) -> Iterator[list[Night]]:
    some: list[Night] = []
    for night in nights:
        some.append(night)
        if sum(len(one.all_records) for one in some) >= BATCH:
            yield some
            some = []
    if some:
        yield some


def _thinned(nights: list[Night], paths: dict[str, Path], most: int, result: Pruned) -> Iterator[tuple[Path, bytes]]:
    """New contents of the files that have more samples than they are to keep."""
    for night in nights:
        before = len(result.records)
        for name in night.all_records:
            path = paths.get(name)
            try:
                if path is None or is_thinned_to(pq.read_schema(path), most):
                    continue
                table = read_samples(path)
            except (OSError, ValueError, pa.ArrowException) as error:
                result.left_alone.append(f"{path}: {error}")
                continue
            if (thinned := thin(table, most)).num_rows == table.num_rows:
                continue
            buffer = io.BytesIO()
            pq.write_table(thinned, buffer, compression="zstd", write_page_checksum=True)
            result.records.append(name)
            result.freed_bytes += path.stat().st_size - len(buffer.getvalue())
            yield path, buffer.getvalue()
        if len(result.records) > before:
            result.nights.append(night.id)
