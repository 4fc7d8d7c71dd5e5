"""``ci spread``: whether forked measuring processes scatter as fresh ones do, from the records of mixed nights."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console

from benchmarks.harness.errors import StoreError
from benchmarks.harness.record_files import read_record
from benchmarks.harness.records import Record
from benchmarks.harness.stats.spread import MIN_PROCESSES, SpreadComparison, compare_spread
from benchmarks.harness.stats.summary import median
from benchmarks.harness.store import open_store

from .config import load_thresholds
from .exits import BrokenEnvironmentError, MissingDataError
from .validity import tell_sound

TIMED = ("device_us", "host_us")
EQUAL_WITHIN = 1.5
"""Spreads count as equal when the whole interval of their ratio lies between 1/1.5 and 1.5: a night of forked processes
then needs at most 2.25 times as many for the same standard error, and mostly the same."""


def compare_starts(*nights: Sequence[Record]) -> dict[str, dict[str, Any]]:
    """By GPU model and metric: the comparison, and whether it shows equality.

    Each night's values are taken against its own level: else the spread between nights, which is in both groups, would
    make them look equal. Processes whose controls disagree are left out, whatever was known of that on their night:
    ``left_out`` says why, by record.
    """
    limit_pct = load_thresholds().statistics.drift_limit_pct
    found: dict[str, dict[str, Any]] = {}
    for model in sorted({record.environment.gpu_model for night in nights for record in night}):
        here, left_out = list[list[Record]](), dict[str, str]()
        for night in nights:
            sound, unsound = tell_sound([r for r in night if r.environment.gpu_model == model], limit_pct)
            here.append(sound)
            left_out |= unsound
        for metric in TIMED:
            levelled = [_levelled(night, metric) for night in here]
            fresh, forked = (
                [medians for night in levelled for how, medians in night if how == started]
                for started in ("fresh", "forked")
            )
            compared = compare_spread(fresh, forked)
            facts: dict[str, Any] = {"fresh": len(fresh), "forked": len(forked), "verdict": _verdict(compared)}
            facts["left_out"] = left_out
            found[f"{model} {metric}"] = facts | (asdict(compared) if compared else {})
    return found


def read_mixed(store: str, night: str | None) -> list[list[Record]]:
    """Records of one night, or of the recent nights with forked processes; by night, each record once.

    Raises:
        MissingDataError: no such night, or no forked process.
    """
    try:
        opened = open_store(store, writable=False)
        nights = opened.recent_nights() if night is None else opened.nights(ids={night})
        if not nights:
            reason = f"--night {night}: not in {store}" if night else f"no night in {store}"
            raise MissingDataError(reason, "python -m ci nightly --set pr --fork mixed")
        mixed, seen = list[list[Record]](), set[str]()
        for one in reversed(nights):  # a resumed night names the records of the night it went on with
            records = list(opened.read_each(read_record, None, set(one.all_records) - seen, one.gpu_model))
            seen.update(one.all_records)
            if any(record.started == "forked" for record in records):
                mixed.insert(0, records)
    except StoreError as error:
        raise BrokenEnvironmentError(f"--store {store}: {error}") from error
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
    reasons = {name: why for facts in found.values() for name, why in facts["left_out"].items()}
    for name, why in reasons.items():
        console.print(f"record {name}: left out: {why}", markup=False, highlight=False, soft_wrap=True)


def _verdict(compared: SpreadComparison | None) -> str:
    if compared is None:
        return f"too few to say ({MIN_PROCESSES} of each are needed, with a series that all have)"
    if compared.low >= 1 / EQUAL_WITHIN and compared.high <= EQUAL_WITHIN:
        return "equal"
    return "different" if compared.p_value < 0.05 else "not shown to be equal"


def _levelled(night: Iterable[Record], metric: str) -> list[tuple[str, dict[str, float]]]:
    """How each process was started, and its timed series over their medians in this night."""
    processes = [(record.started, medians) for record in night if (medians := _medians(record, metric))]
    values: dict[str, list[float]] = defaultdict(list)
    for _, medians in processes:
        for name, value in medians.items():
            values[name].append(value)
    levels = {name: median(found) for name, found in values.items()}
    return [
        (started, {name: value / levels[name] for name, value in medians.items()}) for started, medians in processes
    ]


def _medians(record: Record, metric: str) -> dict[str, float]:
    """The timed series of one process; those without a number are left out."""
    return {
        "/".join(m.key): m.value
        for m in record.measurements
        if m.metric == metric and m.status == "ok" and m.value is not None and m.value > 0
    }
