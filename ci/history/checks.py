"""What must hold inside a record, between it and its samples, and between a night and its records. Reads no files."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from benchmarks.harness.ids import COMMIT_HASH
from benchmarks.harness.records import Measurement, Night, Record
from benchmarks.harness.samples import is_thinned

KEY = ("metric", "op", "provider", "case", "contract")
CLOSE = 1e-9  # of two computations of one median
SHOWN = 3


def record_problems(record: Record, samples: pa.Table) -> list[str]:
    """A commit that is none, series that a record holds twice, and samples that do not belong to its values."""
    twice = [key for key, count in Counter(item.key for item in record.measurements).items() if count > 1]
    problems = [f"the series {_text(key)} is there twice" for key in twice[:SHOWN]]
    names = {case.name for case in record.cases}
    unknown = sorted({item.case for item in record.measurements} - names) if names else []
    problems += [f"measurements of {case}, which is none of its cases" for case in unknown[:SHOWN]]
    commit = record.subject.commit
    if commit is not None and not COMMIT_HASH.fullmatch(commit):
        problems.append(f"commit {commit!r}: expected 7 to 40 hex digits, or null where it is unknown")
    return problems + _samples_problems(record, samples)


def night_problems(night: Night, records: Mapping[str, Record]) -> list[str]:
    """Records that are not there, and values that are not those of the night's records.

    Args:
        records: all that can be read, by id.
    """
    absent = [record_id for record_id in night.all_records if record_id not in records]
    problems = [f"record {record_id} is not in the store, or cannot be read" for record_id in absent]
    if len(set(night.all_records)) < len(night.all_records):
        problems.append("it names a record twice")
    if night.accepted and night.exit_code != 0 and night.acceptance is None:
        problems.append(f"it ended with {night.exit_code} and counts as accepted, by nobody")
    if night.acceptance is not None and not night.accepted:
        problems.append(f"{night.acceptance.owner} accepted it, and it does not count as accepted")
    found = [records[record_id] for record_id in night.all_records if record_id in records]
    strange = [record.id for record in found if record.environment.gpu_model != night.gpu_model]
    problems += [f"record {record_id} is of another GPU model" for record_id in strange]
    if not problems:
        problems += _value_problems(night, found)
    return problems


def _samples_problems(record: Record, samples: pa.Table) -> list[str]:
    found, thinned = _by_series(samples), is_thinned(samples.schema)
    problems = [
        f"{_text(item.key)}: {problem}"
        for item in record.measurements
        if (problem := _series_problem(item, found.pop(item.key, _Taken()), thinned=thinned))
    ]
    problems += [f"samples of {_text(key)}, which the record does not hold" for key in found]
    return problems[:SHOWN] + ([f"and {len(problems) - SHOWN} more of its series"] if len(problems) > SHOWN else [])


def _series_problem(item: Measurement, found: "_Taken", *, thinned: bool) -> str | None:
    kept, dropped = found
    if thinned:  # `ci history prune` left a few of them, whose median is another
        too_many = item.value is not None and (len(kept) > item.n_samples or len(dropped) > item.n_dropped)
        return "more samples in the thinned table than the record says were taken" if too_many else None
    # A series without a value may keep the few samples that were too few.
    want, got = (item.n_samples if item.value is not None else len(kept), item.n_dropped), (len(kept), len(dropped))
    if want != got:
        expected, seen = (f"{n} samples and {d} dropped ones" for n, d in (want, got))
        return f"{expected} according to the record, {seen} in the table"
    if not kept or item.value is None:
        return None
    median = float(np.median(kept))
    if not math.isclose(median, item.value, rel_tol=CLOSE):
        return f"value {item.value}, but the median of its samples is {median}"
    return None


class _Taken(NamedTuple):
    """Samples of one series: those that count and those that do not."""

    kept: Sequence[float] = ()
    dropped: Sequence[float] = ()


def _by_series(samples: pa.Table) -> dict[tuple[str, ...], _Taken]:
    grouped: dict[tuple[str, ...], tuple[list[float], list[float]]] = {}
    columns = [samples.column(name).to_pylist() for name in (*KEY, "value", "accepted")]
    for *key, value, accepted in zip(*columns, strict=True):
        grouped.setdefault(tuple(key), ([], []))[0 if accepted else 1].append(value)
    return {key: _Taken(*taken) for key, taken in grouped.items()}


def _value_problems(night: Night, records: Sequence[Record]) -> list[str]:
    values: dict[tuple[str, ...], list[float]] = {}
    for record in (record for record in records if record.id in night.records):
        for item in record.measurements:
            if item.status == "ok" and item.value is not None:
                values.setdefault(item.key, []).append(item.value)
    checks = {
        ((check.metric, check.op, check.provider, check.case, "exact"), check.value)
        for record in records
        for check in record.checks
    }
    problems = []
    for verdict in night.verdicts:
        if verdict.value is None or (verdict.verdict == "invalid" and (verdict.key, verdict.value) in checks):
            continue
        own = values.get(verdict.key, [])
        if not own:
            problems.append(f"{_text(verdict.key)}: a value of {verdict.value} that no record holds")
        elif not math.isclose(float(np.median(own)), verdict.value, rel_tol=CLOSE):
            median = float(np.median(own))
            problems.append(f"{_text(verdict.key)}: value {verdict.value}, but its records' median is {median}")
    return problems[:SHOWN] + ([f"and {len(problems) - SHOWN} more of its series"] if len(problems) > SHOWN else [])


def _text(key: Sequence[str]) -> str:
    return " / ".join(key)
