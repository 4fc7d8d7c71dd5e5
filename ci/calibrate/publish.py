"""``ci calibrate publish``: from stores of collections to the public A/A set."""

import hashlib
from collections.abc import Sequence, Set
from pathlib import Path

import pyarrow as pa

from benchmarks.harness.errors import StoreError
from benchmarks.harness.record_files import read_record
from benchmarks.harness.records import Measurement, Record
from benchmarks.harness.store import is_url, open_store
from ci.config import load_thresholds
from ci.exits import BrokenEnvironmentError, MissingDataError
from ci.validity import why_unsound

from .dataset import FILES, Dataset, Key, Process, Series, Value, merged, read, write

METRIC, CONTRACT = "device_us", "graph-cold"  # the windows that a delay lengthens


def publish(sources: Sequence[str], out: Path, retired: Sequence[tuple[str, str]] = ()) -> Dataset:
    """Add what the sources hold to the set in ``out``; sources are stores, or folders of another set.

    Doing it again changes nothing. Only records of collections are taken, and of a store none is read that the set has.
    ``retired``: ops with the time (UTC, ISO) from which they are timed as they are now; what older occasions have of
    them goes.

    Raises:
        MissingDataError: a source holds no collection. UsageError: sources contradict each other.
    """
    old = [read(out)] if (out / FILES[0]).exists() else []
    known = {one.process for part in old for one in part.processes}
    found = merged([*(_read_source(source, known) for source in sources), *old])
    for op, before in retired:
        found = found.without(op, before)
    if not found.values:
        raise MissingDataError(
            f"{', '.join(sources)}: no device time under {CONTRACT}: collected without a GPU?",
            "python -m ci calibrate collect, on a GPU",
        )
    write(found, out)
    return found


def _read_source(source: str, known: Set[str]) -> Dataset:
    if (Path(source) / FILES[0]).exists():
        return read(Path(source))
    if not source.startswith("branch:") and not is_url(source) and not Path(source).is_dir():
        raise MissingDataError(f"{source}: no such store", "python -m ci calibrate collect")
    try:
        store = open_store(source, writable=False)
        ids = {model: set(store.ids("records", model)) for model in store.gpu_models("records")}
        new = (store.read_each(read_record, None, own - known, model) for model, own in ids.items())
        records = [record for some in new for record in some if record.calibration is not None]
        if not records and not any(own & known for own in ids.values()):
            raise MissingDataError(f"{source}: holds no record of a collection", "python -m ci calibrate collect")
        return from_records([(record, store.samples(record)) for record in records])
    except StoreError as error:
        raise BrokenEnvironmentError(f"{source}: {error}") from error


def from_records(found: Sequence[tuple[Record, pa.Table]]) -> Dataset:
    """The device times of collected records, with every sample that counts."""
    limit_pct = load_thresholds().statistics.drift_limit_pct
    processes, series, values = list[Process](), set[Series](), dict[tuple[str, Key], Value]()
    for record, table in found:
        processes.append(_process(record, limit_pct))
        batches = {case.name: case.num_requests for case in record.cases}
        samples = _samples(table)
        for item in record.measurements:
            if item.metric != METRIC or item.contract != CONTRACT:
                continue
            series.add(Series(*item.key, item.unit, batches.get(item.case, 0)))
            if item.status == "ok" and item.value is not None:
                values[record.id, item.key] = _value(item, samples.get(item.key, []))
    return Dataset(tuple(processes), tuple(series), values)


def _process(record: Record, limit_pct: float) -> Process:
    assert record.calibration is not None
    environment = record.environment
    return Process(
        process=record.id,
        occasion=record.calibration.collection,
        card=hashlib.sha256((record.silicon.gpu_uuid or "").encode()).hexdigest()[:12],
        gpu_model=environment.gpu_model,
        began_utc=record.created_utc,
        started=record.started,
        seed=record.seed,
        commit=record.subject.commit,
        source_hash=record.subject.source_hash,
        driver=environment.driver,
        torch=environment.torch,
        triton=environment.triton,
        harness=environment.harness,
        delay_pct=record.calibration.delay_pct,
        unsound="; ".join(why_unsound(record, limit_pct)),
    )


def _samples(table: pa.Table) -> dict[Key, list[tuple[float, float | None]]]:
    found: dict[Key, list[tuple[float, float | None]]] = {}
    for row in table.to_pylist():
        if row["accepted"] and row["metric"] == METRIC and row["contract"] == CONTRACT:
            key = (row["metric"], row["op"], row["provider"], row["case"], row["contract"])
            found.setdefault(key, []).append((row["value"], row["block_sm_mhz"]))
    return found


def _value(item: Measurement, samples: list[tuple[float, float | None]]) -> Value:
    assert item.value is not None
    clocks = [mhz for _, mhz in samples if mhz is not None]
    return Value(
        median=item.value,
        delay_pct=item.delay_pct,
        samples=tuple(value for value, _ in samples),
        sm_mhz=tuple(clocks) if len(clocks) == len(samples) else (),
    )
