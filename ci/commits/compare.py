"""``ci compare A B``: what changed from A to B, judged as if A were B's base night. Reads stores; measures nothing."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.harness.records import Environment, Night, Record, Verdict
from ci.exits import Exit, MissingDataError, UsageError
from ci.judging import judge
from ci.night import Base, Tonight
from ci.policy import Policy, load_policy
from ci.show import STYLES
from reports.sources import Stored

from .sides import Side, in_one_backfill, resolve

FOLDED = ("unchanged", "new")
ROWS = 60  # shown, strongest evidence first; --json has all


@dataclass(frozen=True, slots=True)
class Filters:
    """Globs that a series must fit."""

    case: str = "*"
    metric: str = "*"
    op: str = "*"
    provider: str = "*"

    def keep(self, record: Record) -> Record:
        """The record with what fits; checks of other cases leave with them."""
        fits = [
            m
            for m in record.measurements
            if fnmatchcase(m.case, self.case)
            and fnmatchcase(m.metric, self.metric)
            and fnmatchcase(m.op, self.op)
            and fnmatchcase(m.provider, self.provider)
        ]
        names = {m.case for m in fits}
        return msgspec.structs.replace(
            record,
            measurements=fits,
            cases=[case for case in record.cases if case.name in names],
            checks=[check for check in record.checks if check.case in names],
        )


@dataclass(slots=True)
class Comparison:
    """B against A. ``differs``: what besides the code is not the same; ``doubts``: why no number should be believed."""

    a: Side
    b: Side
    verdicts: list[Verdict]
    code: Exit
    differs: dict[str, tuple[str, str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    of_b: list[str] = field(default_factory=list)  # what judging says of B's processes, as of a night's
    doubts: list[str] = field(default_factory=list)


def compare(
    history: Stored[Record],
    a: str,
    b: str,
    filters: Filters | None = None,
    *,
    gpu_model: str = "*",
    anyway: bool = False,
) -> Comparison:
    """Judge every series of B against A, by ``ci/thresholds.toml``.

    Two commits that one backfill measured are compared by its records: taken in turn, on one card.

    Raises:
        UsageError: GPU model or environment differ and ``anyway`` is not given; or as ``resolve``.
        MissingDataError: as ``resolve``; or no series fits.
    """
    sides = in_one_backfill(history, a, b, gpu_model) or (
        resolve(history, a, gpu_model),
        resolve(history, b, gpu_model),
    )
    differs = _differences(*(side.records[0].environment for side in sides))
    if differs and not anyway:
        shown = "; ".join(f"{name}: {one} and {other}" for name, (one, other) in differs.items())
        raise UsageError(f"{a} and {b} are not comparable: {shown}", "--anyway compares them all the same")
    return _judged(*sides, filters or Filters(), differs, load_policy())


def _judged(a: Side, b: Side, filters: Filters, differs: dict[str, tuple[str, str]], policy: Policy) -> Comparison:
    before, after = ([filters.keep(policy.aliases.renamed(record)) for record in side.records] for side in (a, b))
    if not any(record.measurements for record in (*before, *after)):
        raise MissingDataError("no series fits --case, --metric, --op and --provider")
    if differs:  # then controls differ as they should, and nothing follows from that
        before = [msgspec.structs.replace(record, controls=[]) for record in before]
    tonight = Tonight(b.case_set, filters.case, sorted({c.name for r in after for c in r.cases}), after)
    found = judge(tonight, Base(a.night or _stand_in(a), before), policy)
    notes = [*a.notes, *b.notes, *_cards(a, b)]
    told = {verdict.key for verdict in found.verdicts}
    if alone := {m.key for record in before for m in record.measurements if m.status == "ok"} - told:
        notes.append(f"{len(alone)} series are in A alone: A measured set {a.case_set}, B {b.case_set}")
    return Comparison(a, b, found.verdicts, found.code, differs, notes, found.notes, found.doubts)


def _stand_in(side: Side) -> Night:
    """For records that no night has: what judging asks of a base night is its name and set."""
    return Night(
        id=side.what,
        created_utc=side.records[0].created_utc,
        case_set=side.case_set,
        gpu_model=side.gpu_model,
        records=[record.id for record in side.records],
        verdicts=[],
        accepted=False,
        exit_code=0,
    )


def _differences(a: Environment, b: Environment) -> dict[str, tuple[str, str]]:
    # CPU and OS kernel are left to judging: they matter to host times alone.
    before, after = dict(a.cut_key(host=False)), dict(b.cut_key(host=False))
    return {name: (str(before[name]), str(after[name])) for name in before if before[name] != after[name]}


def _cards(a: Side, b: Side) -> list[str]:
    cards = [{record.silicon.gpu_uuid for record in side.records} - {None} for side in (a, b)]
    if cards[0] and cards[1] and cards[0] != cards[1]:
        return ["A and B were measured on different cards of one model; margins allow for that (ci/thresholds.toml)"]
    return []


def as_json(found: Comparison) -> dict[str, Any]:
    """Everything, unchanged series too."""
    return {
        "exit_code": int(found.code),
        "a": _side(found.a),
        "b": _side(found.b),
        "differs": {name: {"a": one, "b": other} for name, (one, other) in found.differs.items()},
        "doubts": found.doubts,
        "notes": [*found.notes, *found.of_b],
        "series": [{**msgspec.to_builtins(v), **_ratio(v)} for v in found.verdicts],
    }


def _side(side: Side) -> dict[str, Any]:
    records = [record.id for record in side.records]
    return {"what": side.what, "gpu_model": side.gpu_model, "commits": side.commits, "records": records}


def _ratio(verdict: Verdict) -> dict[str, float | None]:
    # B over A of the medians; the interval is that of the geometric means over processes.
    changes = {
        "ratio": verdict.change_pct,
        "ratio_low": verdict.change_low_pct,
        "ratio_high": verdict.change_high_pct,
    }
    return {name: None if change is None else 1 + change / 100 for name, change in changes.items()}


def show(found: Comparison, console: Console, *, everything: bool = False) -> None:
    """What changed first; what did not is counted, by metric and op."""
    _print(console, f"A: {found.a.what}, {found.a.gpu_model}, {len(found.a.records)} processes")
    _print(console, f"B: {found.b.what}, {found.b.gpu_model}, {len(found.b.records)} processes")
    for name, (one, other) in found.differs.items():
        _print(console, f"differs: {name}: {one} and {other}")
    for doubt in found.doubts:
        _print(console, f"doubt: {doubt}")
    for note in (*found.notes, *(found.of_b if everything else ())):
        _print(console, f"note: {note}")
    listed = [v for v in found.verdicts if everything or (v.gated and v.verdict not in FOLDED)]
    rows = listed if everything else listed[:ROWS]
    _rows(rows, console)
    if len(rows) < len(listed):
        _print(console, f"{len(rows)} of {len(listed)} shown, strongest evidence first; --all shows all")
    for line in [] if everything else _fold(found.verdicts):
        _print(console, line)


def _rows(verdicts: Sequence[Verdict], console: Console) -> None:
    cells = [_cells(verdict) for verdict in verdicts]
    if not console.is_terminal:
        for row in cells:
            _print(console, "  ".join(cell for cell in row if cell))
        return
    table = Table(
        "verdict", "series", "A", "B", "B / A (95 %)", "reason", box=None, header_style="bold", pad_edge=False
    )
    for verdict, row in zip(verdicts, cells, strict=True):
        table.add_row(*map(escape, row), style=STYLES.get(verdict.verdict) if verdict.gated else "dim")
    if cells:
        console.print(table)


def _cells(v: Verdict) -> tuple[str, ...]:
    numbers = _ratio(v)
    ratio, low, high = numbers["ratio"], numbers["ratio_low"], numbers["ratio_high"]
    text = "" if ratio is None else f"{ratio:.4f}"
    text += "" if low is None or high is None else f" ({low:.4f}..{high:.4f})"
    values = ("" if value is None else f"{value:.6g} {v.unit}" for value in (v.base_value, v.value))
    name = v.verdict if v.gated else f"({v.verdict})"
    return name, f"{v.metric}/{v.op}/{v.provider}/{v.case}/{v.contract}", *values, text, v.reason


def _fold(verdicts: Sequence[Verdict]) -> list[str]:
    groups: dict[str, Counter[str]] = {
        "unchanged": Counter(f"{v.metric} {v.op}" for v in verdicts if v.gated and v.verdict == "unchanged"),
        "in B alone": Counter(f"{v.metric} {v.op}" for v in verdicts if v.gated and v.verdict == "new"),
        "not gated": Counter(v.verdict for v in verdicts if not v.gated),
    }
    return [
        f"{sum(group.values())} {what}: {', '.join(f'{count} {one}' for one, count in group.most_common())}"
        for what, group in groups.items()
        if group
    ]


def _print(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
