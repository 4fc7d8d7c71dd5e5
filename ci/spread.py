"""``ci spread``: whether forked measuring processes scatter as fresh ones do, from the records of mixed nights."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console

from benchmarks.harness.errors import StoreError
from benchmarks.harness.records import Record
from benchmarks.harness.stats.spread import MIN_PROCESSES, SpreadComparison, compare_spread
from benchmarks.harness.store import open_store

from .exits import BrokenEnvironmentError, MissingDataError

TIMED = ("device_us", "host_us")
EQUAL_WITHIN = 1.5
"""Spreads count as equal when the whole interval of their ratio lies between 1/1.5 and 1.5: a night of forked processes
then needs at most 2.25 times as many for the same standard error, and mostly the same."""


def compare_starts(records: Sequence[Record]) -> dict[str, dict[str, Any]]:
    """By GPU model and metric: the comparison, and whether it shows equality."""
    found: dict[str, dict[str, Any]] = {}
    for model in sorted({record.environment.gpu_model for record in records}):
        here = [record for record in records if record.environment.gpu_model == model]
        for metric in TIMED:
            fresh, forked = (_medians(here, started, metric) for started in ("fresh", "forked"))
            compared = compare_spread(fresh, forked)
            facts: dict[str, Any] = {"fresh": len(fresh), "forked": len(forked), "verdict": _verdict(compared)}
            found[f"{model} {metric}"] = facts | (asdict(compared) if compared else {})
    return found


def read_mixed(store: str, night: str | None) -> list[Record]:
    """Records of one night, or of all nights with forked processes.

    Raises:
        MissingDataError: no such night, or no forked process.
    """
    try:
        opened = open_store(store, writable=False)
        nights = [one for one in opened.nights() if night in (None, one.id)]
        if not nights:
            raise MissingDataError(f"--night {night}: not in {store}" if night else f"no night in {store}")
        by_night = [list(opened.records(one.records)) for one in nights]
    except StoreError as error:
        raise BrokenEnvironmentError(f"--store {store}: {error}") from error
    mixed = [record for records in by_night if any(r.started == "forked" for r in records) for record in records]
    if not mixed:
        raise MissingDataError(f"no forked process in {store}", "python -m ci nightly --set pr --fork mixed")
    return mixed


def show(found: dict[str, dict[str, Any]], console: Console) -> None:
    """One line per GPU model and metric."""
    for name, facts in found.items():
        line = f"{name}: {facts['fresh']} fresh and {facts['forked']} forked processes: {facts['verdict']}"
        if "ratio" in facts:
            line += (
                f"; spread forked/fresh {facts['ratio']:.2f} (95 % {facts['low']:.2f}..{facts['high']:.2f}), "
                f"Brown-Forsythe p = {facts['p_value']:.3f} over processes, {100 * facts['share_rejected']:.0f} % of "
                f"{facts['num_series']} series below 5 % alone, level {facts['shift_pct']:+.2f} %"
            )
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _verdict(compared: SpreadComparison | None) -> str:
    if compared is None:
        return f"too few to say ({MIN_PROCESSES} of each are needed, with a series that all have)"
    if compared.low >= 1 / EQUAL_WITHIN and compared.high <= EQUAL_WITHIN:
        return "equal"
    return "different" if compared.p_value < 0.05 else "not shown to be equal"


def _medians(records: Iterable[Record], started: str, metric: str) -> list[dict[str, float]]:
    """Of each process the timed series; ones without a number are left out."""
    found: dict[str, dict[str, float]] = defaultdict(dict)
    for record in records:
        if record.started != started:
            continue
        for m in record.measurements:
            if m.metric == metric and m.status == "ok" and m.value is not None and m.value > 0:
                found[record.id]["/".join(m.key)] = m.value
    return list(found.values())
