"""Raw samples of one night, case by case, for the strip below a series. Older nights have their Parquet files."""

import hashlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from benchmarks.harness.records import Night
from benchmarks.harness.samples import read_samples
from reports.sources import History

SHOWN_NIGHTS = 10  # the newest of each GPU model; a night of 40 cases takes about a MB
KEY = ("metric", "op", "provider", "contract")

Samples = dict[str, dict[int, dict[str, Any]]]  # by series, then by the place of the process in its night


def night_samples(history: History, night: Night) -> dict[str, dict[str, Any]]:
    """By case: every sample of every process of the night, and why a process has none.

    ``dropped`` are places among ``values`` that do not count: the card was held back when they were taken.
    """
    processes = history.processes(night)
    found: dict[str, Samples] = {case: {} for case in processes.cases()}
    unreadable: dict[int, str] = {}
    for place, record in enumerate(processes.records):
        try:
            table = read_samples(_beside(history, record.id))
        except (OSError, ValueError, pa.ArrowException) as error:
            unreadable[place] = type(error).__name__  # its text may name the machine's folders
            continue
        for old, series, values, accepted in _runs(table):
            case = history.aliases.now(old)
            own = found.setdefault(case, {}).setdefault(series, {}).setdefault(place, {"values": [], "dropped": []})
            own["dropped"] += [len(own["values"]) + int(index) for index in np.flatnonzero(~accepted)]
            own["values"] += [round(float(value), 4) for value in values]
    return {case: {"series": series, "unreadable": unreadable} for case, series in found.items()}


def samples_hash(history: History, night: Night) -> bytes:
    """SHA-256 of all that ``night_samples`` is made of: tables and records of the night, and names of cases."""
    told = hashlib.sha256(msgspec.json.encode(history.aliases))
    for record in history.processes(night).records:
        told.update(record.source)
        try:
            told.update(hashlib.sha256(_beside(history, record.id).read_bytes()).digest())
        except OSError:
            told.update(b"absent")
    return told.digest()


def _beside(history: History, record_id: str) -> Path:
    return history.paths[record_id].with_suffix(".parquet")


def _runs(table: pa.Table) -> Iterator[tuple[str, str, np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Neighbouring rows of one series: its case, its key, their values and whether they count."""
    table = table.combine_chunks().unify_dictionaries()
    names = ("case", *KEY)
    columns = [table.column(name).combine_chunks() for name in names]
    codes = np.stack([column.indices.to_numpy(zero_copy_only=False) for column in columns])
    labels = [column.dictionary.to_pylist() for column in columns]
    values, accepted = (table.column(name).to_numpy() for name in ("value", "accepted"))
    bounds = [0, *(np.flatnonzero((codes[:, 1:] != codes[:, :-1]).any(axis=0)) + 1), table.num_rows]
    for start, end in itertools.pairwise(bounds):
        if start < end:
            case, *key = (own[codes[row, start]] for row, own in enumerate(labels))
            yield case, "/".join(key), values[start:end], accepted[start:end].astype(bool)
