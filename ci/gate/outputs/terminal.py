"""A gate on a terminal: totals, what somebody should read, how to measure it again. A table there, lines elsewhere."""

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ci.foreign_text import plain
from ci.gate.result import GateResult, GateVerdict
from ci.show import STYLES

from . import wording

ROWS = 40


def show(result: GateResult, console: Console, *, rows: int = ROWS) -> None:
    """Totals and findings, then the verdicts that matter, each alarm with the command that measures it again."""
    _say(console, "gate ", wording.headline(result))
    _say(console, "", wording.sides(result))
    _say(console, "", wording.setting(result))
    _say(console, "", f"{len(result.verdicts)} series: {wording.totals(result)}")
    for finding in result.findings:
        fails = finding.exit_code and not finding.cleared_by
        _say(console, "failed: " if fails else "note: ", wording.finding_of(finding))
        if finding.next_step:
            _say(console, "  next: ", finding.next_step)
    listed = wording.notable(result, rows)
    if listed.shown and console.is_terminal:
        console.print(_table(listed.shown, result.gpu_model))
    for verdict in listed.shown:
        if not console.is_terminal:
            _say(console, f"{wording.name_of(verdict):<12} ", _line(verdict, result.gpu_model))
    alarms = dict.fromkeys(v.reproduce for v in listed.shown if v.fails and v.reproduce)
    for command in alarms:
        _say(console, "again: ", command)
    if listed.left_out:
        _say(console, "", listed.left_out)
    _say(console, "all of it again: ", result.reproduce)


def _table(verdicts: Sequence[GateVerdict], gpu_model: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("verdict", "series", "base", "head", "change (95 %)", "reason"):
        table.add_column(name, overflow="fold", no_wrap=name in ("verdict", "base", "head"))
    for v in verdicts:
        cells = (*_cells(v, gpu_model), wording.reason_of(v))
        style = STYLES.get(v.verdict) if v.gated and v.known != "acknowledged" else "dim"
        table.add_row(*(escape(plain(cell)) for cell in cells), style=style)
    return table


def _line(v: GateVerdict, gpu_model: str) -> str:
    _, series, base, head, change = _cells(v, gpu_model)
    numbers = " ".join(part for part in (f"{base} -> {head}" if base and head else base or head, change) if part)
    return f"{series} {numbers}: {wording.reason_of(v)}"


def _cells(v: GateVerdict, gpu_model: str) -> tuple[str, str, str, str, str]:
    base, head = (wording.value_of(value, v) for value in (v.base_value, v.head_value))
    return wording.name_of(v), wording.series_of(v, gpu_model), base, head, wording.change_of(v)


def _say(console: Console, start: str, foreign: str) -> None:
    console.print(start + plain(foreign, longest=2000), markup=False, highlight=False, soft_wrap=True)
