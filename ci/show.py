"""Prints a night: totals, the verdicts that matter most, what to do next. A table on a terminal, lines elsewhere."""

import shlex
from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.harness.records import Night, Verdict

from .exits import Exit
from .judging import URGENCY

ROWS = 40  # of the strongest evidence; the night's file holds all
QUIET = ("new", "unchanged")  # counted, not listed: nothing about them needs a reader
STYLES = {
    "regressed": "bold red",
    "invalid": "bold red",
    "missing": "bold red",
    "improved": "green",
    "unchanged": "dim",
}


def show_night(night: Night, console: Console, *, rows: int = ROWS) -> None:
    """Totals, then the gated verdicts somebody should read, in the night's order: strongest evidence first."""
    gated, shown_only = (_totals([v for v in night.verdicts if v.gated == is_gated]) for is_gated in (True, False))
    _print(
        console,
        f"night {night.id} on {night.gpu_model}: {len(night.verdicts)} series: {gated}; not gated: {shown_only}",
    )
    _print(
        console,
        f"base: {night.base_night or 'none'}; records: {len(night.records)}"
        + (f" and {len(night.left_out)} left out" if night.left_out else "")
        + f"; accepted: {_yes(night.accepted)}",
    )
    for alarm in night.alarms:
        _print(console, f"alarm: {alarm}")
    for note in night.notes:
        _print(console, f"note: {note}")
    for name in night.quarantined:
        _print(console, f"set aside: {name}")
    notable = [v for v in night.verdicts if v.gated and v.verdict not in QUIET]
    shown = notable[:rows]
    if shown and console.is_terminal:
        console.print(_table(shown))
    for verdict in shown:
        if not console.is_terminal:
            _print(console, _line(verdict))
        if verdict.fails:
            _print(console, f"  again: {again(night, verdict)}")
    if len(notable) > len(shown):
        _print(console, f"{len(shown)} of {len(notable)} shown, strongest evidence first; the night's file has all")


def _totals(verdicts: Sequence[Verdict]) -> str:
    counts = Counter(verdict.verdict for verdict in verdicts)
    return ", ".join(f"{counts[name]} {name}" for name in URGENCY if counts[name]) or "none"


def again(night: Night, verdict: Verdict) -> str:
    """The command that tells how this verdict is measured again; --run does it."""
    series = ("--case", verdict.case, "--op", verdict.op, "--metric", verdict.metric)
    return shlex.join(("python", "-m", "ci", "reproduce", night.id, *series))


def next_step(night: Night, store: str) -> str | None:
    """What a reader should do about this night; None when there is nothing to do."""
    worst = next((v for v in night.verdicts if v.gated), None)
    chosen = f"--set {night.case_set}" + (f" --case '{worst.case}'" if worst else "")
    match Exit(night.exit_code):
        case Exit.REGRESSED | Exit.INVALID if night.is_static:
            return f"see the kernels: python -m ci static {chosen} --arch {night.gpu_model}"
        case Exit.REGRESSED if not any(v.fails for v in night.verdicts):
            return f"see what the nights say together, and between which commits: python -m ci trends --store {store}"
        case Exit.REGRESSED:
            return f"measure again, with more processes: python -m ci nightly {chosen} --processes 12 --store {store}"
        case Exit.MISSING if night.lacks:
            come_in = f"python -m ci history import SRC --store {store}"
            return f"bring shard {', '.join(night.lacks)} in: {come_in}; or measure it; then merge again"
        case Exit.MISSING if not any(v.verdict == "missing" for v in night.verdicts):
            accept = f"python -m ci accept night {night.id} --owner NAME --reason WHY --store {store}"
            return f"the notes above say what is missing; if it is to stay away: {accept}"
        case Exit.MISSING:
            return f"find out why it is gone: python -m ci nightly --set {night.case_set} --list"
        case Exit.INVALID if worst and worst.verdict == "invalid":
            return f"see it fail: python -m benchmarks.run {chosen} --out out/again.json"
        case Exit.INVALID:
            return "the notes above say what is wrong with this night; then run it again"
        case _:
            return None


def _table(verdicts: list[Verdict]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("verdict", "series", "value", "change", "reason"):
        table.add_column(name, overflow="fold", no_wrap=name in ("verdict", "change"))
    for v in verdicts:
        table.add_row(*(escape(cell) for cell in _cells(v)), style=_style(v))
    return table


def _style(verdict: Verdict) -> str | None:
    return STYLES.get(verdict.verdict) if verdict.gated and verdict.known != "acknowledged" else "dim"


def _line(verdict: Verdict) -> str:
    name, series, value, change, reason = _cells(verdict)
    numbers = " ".join(part for part in (value, change) if part)
    return f"{name:<12} {series} {numbers}: {reason}" if numbers else f"{name:<12} {series}: {reason}"


def _cells(v: Verdict) -> tuple[str, str, str, str, str]:
    name = "acknowledged" if v.known == "acknowledged" else v.verdict if v.gated else f"({v.verdict})"
    value = "" if v.value is None else f"{v.value:,.0f} {v.unit}" if v.unit == "bytes" else f"{v.value:.6g} {v.unit}"
    change = "" if v.change_pct is None else f"{v.change_pct:+.2f} %"
    return (
        name,
        f"{v.metric}/{v.op}/{v.provider}/{v.case}/{v.contract}",
        value,
        change,
        "; ".join(filter(None, (v.reason, v.known_reason))),
    )


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _print(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
