"""The text of an issue for a confirmed regression of a night: what, how sure, since when, how to measure it again."""

import shlex
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.harness.record_files import read_record
from benchmarks.harness.records import Night, Record, Verdict
from benchmarks.harness.store import Store
from ci.foreign_text import code, fenced, markdown
from ci.show import again

ROWS = 30
COMMANDS = 10
SHORT_HASH = 10


class Issue(NamedTuple):
    """A title, and a body in GitHub's Markdown."""

    title: str
    body: str

    def as_file(self) -> str:
        """The title, an empty line, the body."""
        return f"{self.title}\n\n{self.body}"


def confirmed(night: Night) -> list[Verdict]:
    """Regressions that fail the night and that other processes than tonight's have shown too."""
    return [v for v in night.verdicts if v.fails and v.verdict == "regressed" and v.known == "confirmed"]


def issue(night: Night, records: Sequence[Record], base_records: Sequence[Record]) -> Issue:
    """Of a night with a confirmed regression: one night alone is a suspicion.

    Args:
        records, base_records: of the night and of its base night, for their commits; may be empty.
    """
    found = confirmed(night)
    worst = max(found, key=lambda v: abs(v.change_pct or 0.0))
    more = f" and {len(found) - 1} more series" if found[1:] else ""
    title = f"Regression on {night.gpu_model}: {worst.op} {worst.provider} {_change(worst)}{more}"
    parts = [
        f"Night {code(night.id)} on {code(night.gpu_model)} is worse than its base night "
        f"{code(night.base_night or 'unknown')} in {len(found)} gated series, and so were other processes before it.",
        _suspects(_commit(base_records), _commit(records)),
        _table(found),
        "Measure it again, and find the commit:",
        fenced(*_commands(night, found, _commit(base_records), _commit(records))),
        "Who takes it on for a time says so, with a reason:",
        fenced(f"python -m ci accept regression {night.id} --op {worst.op} --owner NAME --reason 'WHY'"),
    ]
    return Issue(title, "\n\n".join(parts) + "\n")


def records_of(stores: Sequence[Store], gpu_model: str, night: str | None) -> list[Record]:
    """Of a night, from the first store that has it; none of a night that no store has."""
    for store in stores if night else ():
        for found in store.nights(gpu_model, ids={str(night)}):
            return list(store.read_each(read_record, None, set(found.records), gpu_model))
    return []


def _suspects(good: str | None, bad: str | None) -> str:
    if good is None or bad is None:
        return "The commits are not known: the records name none."
    if good == bad:
        return f"Both nights measured commit {code(good)}: no commit brought this; look at the card and its versions."
    return f"Not slower at {code(good)}, slower at {code(bad)}: what brought it lies after the first, up to the second."


def _table(found: Sequence[Verdict]) -> str:
    lines = ["| series | base → now | change (95 %) | limit |", "|---|--:|--:|--:|"]
    for v in found[:ROWS]:
        limit = "" if v.limit_pct is None else f"{v.limit_pct:.3g} %"
        rest = [part for part in (v.metric, v.contract) if part not in ("device_us", "graph-cold")]
        name = f"{markdown(' '.join((v.op, v.provider, *rest)))}<br>{code(v.case)}"
        cells = (f"{_value(v.base_value, v.unit)} → {_value(v.value, v.unit)}", _change(v), limit)
        lines.append(f"| {name} | {' | '.join(map(markdown, cells))} |")
    if len(found) > ROWS:
        lines += ["", f"{ROWS} of {len(found)} shown, strongest evidence first; the night's file has all"]
    return "\n".join(lines)


def _commands(night: Night, found: Sequence[Verdict], good: str | None, bad: str | None) -> list[str]:
    case = found[0].case if len({v.case for v in found}) == 1 else "*"
    commands = [again(night, v) for v in found[:COMMANDS]]
    if good and bad and good != bad and not night.is_static:
        commands.append(f"python -m ci bisect {good} {bad} --set {night.case_set} --case {shlex.quote(case)}")
    return commands


def _commit(records: Sequence[Record]) -> str | None:
    commits = {record.subject.commit for record in records} - {None}
    return str(commits.pop())[:SHORT_HASH] if len(commits) == 1 else None


def _value(value: float | None, unit: str) -> str:
    return "" if value is None else f"{value:,.6g}" + ("" if unit == "none" else f" {unit}")


def _change(v: Verdict) -> str:
    if v.change_pct is None:
        return ""
    change = f"{v.change_pct:+.1f} %"
    if v.change_low_pct is None or v.change_high_pct is None or v.change_low_pct == v.change_high_pct:
        return change
    return f"{change} ({v.change_low_pct:+.1f}..{v.change_high_pct:+.1f})"
