"""What a backfill found: how long the ops of each commit take, over those of the first commit that was measured."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.harness.record_files import read_record
from benchmarks.harness.records import Record
from benchmarks.harness.store import Store

from .backfill import Result

# Contract and provider, the first that any record has: what a GPU gives, or what a CPU has in its place.
TIMED = (("graph-cold", "recoverssm"), ("cpu-reference", "torch"))
Ratios = dict[str, dict[str, float]]  # commit -> op -> geometric mean over cases of the ratio to the first commit


def ratios(store: Store, result: Result) -> Ratios:
    """Per commit and op, from the medians of processes; ops and cases that the first commit lacks are left out."""
    plan = result.state.plan
    records: dict[str, list[Record]] = {}
    ids = {name for own in result.records.values() for name in own}
    for record in store.read_each(read_record, None, ids):
        if record.backfill == plan.id and record.subject.commit is not None:
            records.setdefault(record.subject.commit, []).append(record)
    ordered = [one.commit for one in plan.measured if one.commit in records]
    if not ordered:
        return {}
    levels = {commit: _medians(records[commit]) for commit in ordered}
    return {commit: _against(levels[commit], levels[ordered[0]]) for commit in ordered}


def _medians(records: Sequence[Record]) -> dict[tuple[str, str], float]:
    """By op and case, under the first contract of ``TIMED`` that there is."""
    for timed in TIMED:
        values: dict[tuple[str, str], list[float]] = {}
        for m in (m for record in records for m in record.measurements):
            if (m.contract, m.provider) == timed and m.status == "ok" and m.value:
                values.setdefault((m.op, m.case), []).append(m.value)
        if values:
            return {key: statistics.median(own) for key, own in values.items()}
    return {}


def _against(own: Mapping[tuple[str, str], float], first: Mapping[tuple[str, str], float]) -> dict[str, float]:
    logs: dict[str, list[float]] = {}
    for (op, case), value in own.items():
        if (op, case) in first:
            logs.setdefault(op, []).append(math.log(value / first[op, case]))
    return {op: math.exp(statistics.fmean(values)) for op, values in sorted(logs.items())}


def as_json(result: Result, found: Ratios) -> dict[str, Any]:
    """Every commit, measured or not, with the reason."""
    plan = result.state.plan
    return {
        "exit_code": int(result.code),
        "id": plan.id,
        "range": plan.range,
        "store": plan.store,
        "program": plan.program or "own",
        "commits": [
            {
                "commit": one.commit,
                "subject": one.subject,
                "source_hash": one.source_hash or None,
                "processes": result.counts.get(one.commit, 0),
                "skipped": one.missing or result.state.skipped.get(one.commit),
                "same_sources_as": plan.same.get(one.commit),
                "ratio_to_first": found.get(one.commit, {}),
            }
            for one in plan.commits
        ],
        "messages": result.messages,
        "next": next_step(result) or None,
    }


def show(result: Result, found: Ratios, console: Console) -> None:
    """One line per commit, oldest first: how many processes, and each op's time over the first commit's."""
    plan = result.state.plan
    ops = sorted({op for own in found.values() for op in own})
    rows = []
    for one in plan.commits:
        why = one.missing or result.state.skipped.get(one.commit)
        same = plan.same.get(one.commit)
        state = f"skipped: {why}" if why else f"same sources as {same[:12]}" if same else ""
        cells = ["" if (value := found.get(one.commit, {}).get(op)) is None else f"{value:.4f}" for op in ops]
        rows.append([one.short, str(result.counts.get(one.commit, 0)), *cells, state or one.subject])
    _print(console, f"backfill {plan.id} of {plan.range}: time over that of the first commit, mean over cases")
    _table(["commit", "processes", *ops, ""], rows, console)
    step = next_step(result)
    for line in (*result.messages, *([f"next: {step}"] if step else [])):
        _print(console, line)


def next_step(result: Result) -> str:
    """The comparison of the first and the last commit that were measured; empty where that is one, or none."""
    plan = result.state.plan
    worked = [one.short for one in plan.measured if result.counts.get(one.commit)]
    if len(worked) < 2:
        return ""
    return f"python -m ci compare {worked[0]} {worked[-1]} --store {plan.store}"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]], console: Console) -> None:
    if not console.is_terminal:
        for row in (headings, *rows):
            _print(console, "\t".join(row))
        return
    table = Table(*headings, box=None, header_style="bold", pad_edge=False)
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table)


def _print(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
