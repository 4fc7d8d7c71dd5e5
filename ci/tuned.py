"""What ``ci tune`` makes of what was measured: choices, rows of the launch table with provenance, and a summary."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from rich.console import Console

from benchmarks.tuning_journal import Begun, Candidate, Findings, Outcome, Point, outcomes_of
from benchmarks.tuning_space import PORTABLE

from .choosing import Choice, Tried, choose
from .exits import Exit, MissingDataError
from .launch_rows import Row, merged, read_rows, retuned, selection


@dataclass(slots=True)
class Result:
    """What came of a tuning.

    Attributes:
        text: of the table with the new rows in it.
        changed: rows of the table that are new.
    """

    begun: Begun
    tried: list[Tried]
    choices: dict[str, Choice]
    warnings: list[str]
    text: str = ""
    changed: list[Row] = field(default_factory=list)

    @property
    def code(self) -> Exit:
        """4 where a point has no right candidate."""
        return Exit.PASS if len(self.choices) == len(self.tried) else Exit.INVALID


def conclude(points: Sequence[Point], found: Findings, table: str, *, any_bits: bool = False) -> Result:
    """Choose from what was found, and put the rows into the text of the table.

    Raises:
        MissingDataError: nothing was measured.
    """
    points = [point for point in points if point.name in found.closed]
    if found.begun is None or not points:
        raise MissingDataError("nothing was measured", "see what the measuring process said")
    tried = [Tried(point, found.opened[point.name].incumbent, outcomes_of(found, point.name)) for point in points]
    result = Result(found.begun, tried, {}, [])
    _, rows = read_rows(table)
    result.text = table
    for state_dtype in dict.fromkeys(point.state_dtype for point in points):
        ours = [row for row in rows if (row.op, row.state_dtype) == (points[0].op, state_dtype)]
        ours = [row for row in ours if row.arch in (0, found.begun.arch)]
        wanted: dict[tuple[int, int], Sequence[Row]] = {}
        for window in dict.fromkeys(point.spec_query_len for point in points):
            family = [
                one for one in tried if (one.point.state_dtype, one.point.spec_query_len) == (state_dtype, window)
            ]
            wanted |= _wanted(found.begun, family, ours, result, any_bits)
        new = retuned(ours, found.begun.arch, wanted)
        result.text = merged(result.text, points[0].op, found.begun.arch, state_dtype, new)
        result.changed += [row for row in new if row.text is None]
    return result


def _wanted(
    begun: Begun, family: Sequence[Tried], rows: Sequence[Row], result: Result, any_bits: bool
) -> Mapping[tuple[int, int], Sequence[Row]]:
    """Rows of each point of one op, state dtype and window: the chosen one; behind another form, the portable one."""
    choices, warning = choose(family, any_bits=any_bits)
    result.choices |= choices
    if warning:
        result.warnings.append(f"{family[0].point.name.rsplit(' ', 1)[0]}: {warning}")
    behind, _ = choose([_portable(one, rows) for one in family], any_bits=any_bits)
    wanted = {}
    for one in family:
        if one.point.name not in choices:
            continue
        chosen = [choices[one.point.name]]
        if chosen[0].chosen.candidate.form != PORTABLE and one.point.name in behind:
            chosen.append(behind[one.point.name])
        wanted[one.point.place] = [_row(begun, one, choice) for choice in chosen]
    return wanted


def _portable(tried: Tried, rows: Sequence[Row]) -> Tried:
    """The same point with the portable form alone."""
    today = next((row for row in selection(rows, tried.point.place) if row.form == PORTABLE), None)
    incumbent = tried.incumbent if today is None else Candidate(PORTABLE, dict(today.constants))
    outcomes = [outcome for outcome in tried.outcomes if outcome.candidate.form == PORTABLE]
    return Tried(tried.point, incumbent, outcomes)


def _row(begun: Begun, tried: Tried, choice: Choice) -> Row:
    point, chosen = tried.point, choice.chosen
    return Row(
        op=point.op,
        arch=begun.arch,
        state_dtype=point.state_dtype,
        form=chosen.candidate.form,
        constants=chosen.candidate.constants,
        source=source(begun, tried, chosen),
    )


def source(begun: Begun, tried: Tried, chosen: Outcome) -> str:
    """Where a row comes from, in one line."""
    point, today = tried.point, tried.timed.get(tried.incumbent.key)
    versions = f"torch {_short(begun.torch)}, Triton {_short(begun.triton)}, {begun.date}"
    line = f"{begun.card}, {versions}, H={point.num_heads}, T={point.spec_query_len}: {times(chosen)} at B="
    line += str(point.num_requests)
    return line if today in (None, chosen) else f"{line}; before {_us(today)}, {today.candidate}"


def times(outcome: Outcome) -> str:
    """Time and interval, "" where there is none."""
    if outcome.us is None:
        return ""
    return f"{_us(outcome)} us ({outcome.low_us:.2f} to {outcome.high_us:.2f})"


def _us(outcome: Outcome) -> str:
    return f"{outcome.us:.2f}"


def _short(version: str) -> str:
    return ".".join(version.split(".")[:2])


def verdict(tried: Tried, choice: Choice | None, outcome: Outcome) -> str:
    """What becomes of a candidate, and why."""
    if outcome.us is None:
        return f"{outcome.status}: {outcome.reason}"
    words = [" today's"] * (outcome.candidate.key == tried.incumbent.key)
    if choice is not None and outcome is choice.chosen:
        words.insert(0, "chosen")
        words += [choice.why] * bool(choice.why)
    elif choice is not None and outcome is choice.best:
        words.insert(0, "quickest")
    elif choice is not None and outcome.bits != choice.chosen.bits:
        words.append("other bits")
    return ", ".join(word.strip() for word in words)


def show(result: Result, console: Console) -> None:
    """Each point with its candidates, quickest first, then the rows that change."""

    def say(line: str) -> None:
        console.print(line.rstrip(), markup=False, highlight=False, soft_wrap=True)

    for one in result.tried:
        say(one.point.name)
        width = max(len(str(outcome.candidate)) for outcome in one.outcomes)
        for outcome in sorted(one.outcomes, key=lambda outcome: (outcome.us is None, outcome.us or 0.0)):
            said = verdict(one, result.choices.get(one.point.name), outcome)
            say(f"  {outcome.candidate!s:<{width}}  {times(outcome):<26}  {said}")
    for warning in result.warnings:
        say(f"warning: {warning}")
    say("" if result.changed else "no row changes")
    for row in result.changed:
        say(row.block())


def as_json(result: Result) -> dict[str, Any]:
    points = []
    for one in result.tried:
        choice = result.choices.get(one.point.name)
        candidates = [
            {**msgspec.to_builtins(outcome), "verdict": verdict(one, choice, outcome)} for outcome in one.outcomes
        ]
        points.append({"point": msgspec.to_builtins(one.point), "candidates": candidates})
    rows = [row.block() for row in result.changed]
    return {"exit_code": int(result.code), "points": points, "rows": rows, "warnings": result.warnings}
