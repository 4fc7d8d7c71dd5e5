"""What ``ci tune`` makes of what was measured: choices, rows of the launch table with provenance, and a summary."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from rich.console import Console

from benchmarks.tuning_journal import Begun, Findings, Outcome, Point, outcomes_of

from .choosing import Choice, Tried, choose, choose_form
from .exits import Exit, MissingDataError
from .launch_rows import Row, merged, read_rows, retuned


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
    text: str
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
    arch, _, rows = found.begun.arch, *read_rows(table)
    result = Result(found.begun, [], {}, [], table)
    for state_dtype in dict.fromkeys(point.state_dtype for point in points):
        opened = [found.opened[point.name] for point in points if point.state_dtype == state_dtype]
        tried = [Tried(one.point, one.incumbent, outcomes_of(found, one.point.name)) for one in opened]
        result.tried += tried
        key = (points[0].op, arch, state_dtype)
        own = [row for row in rows if (row.op, row.arch, row.state_dtype) == key]
        form = choose_form(tried, _allowed(opened[0].forms, own))
        if form is None:
            result.warnings.append(f"{points[0].op} {state_dtype}: no form is right at every point: nothing changes")
            continue
        choices = _choose(tried, form, result, any_bits)
        if all(choice.chosen.candidate.key == one.incumbent.key for one, choice in choices):
            continue
        new = retuned(own, form, {one.point.place: _row(found.begun, one, choice) for one, choice in choices})
        result.text = merged(result.text, *key, new)
        result.changed += [row for row in new if row.text is None]
    return result


def _allowed(forms: Sequence[str], own: Sequence[Row]) -> Sequence[str]:
    """Forms whose rows would be asked: none behind the first that has rows for this arch already."""
    first = next((number for number, form in enumerate(forms) if any(row.form == form for row in own)), len(forms))
    return forms[: first + 1]


def _choose(tried: Sequence[Tried], form: str, result: Result, any_bits: bool) -> list[tuple[Tried, Choice]]:
    """Every point that has a choice with it, window by window."""
    for window in dict.fromkeys(one.point.spec_query_len for one in tried):
        family = [one.only([form]) for one in tried if one.point.spec_query_len == window]
        choices, warning = choose(family, any_bits=any_bits)
        result.choices |= choices
        if warning:
            result.warnings.append(f"{family[0].point.name.rsplit(' ', 1)[0]}: {warning}")
    return [(one, result.choices[one.point.name]) for one in tried if one.point.name in result.choices]


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
    words = ["today's"] * (outcome.candidate.key == tried.incumbent.key)
    if choice is None:
        return ", ".join(words)
    chosen = choice.chosen
    if outcome.candidate.key == chosen.candidate.key:
        return ", ".join(["chosen", *words, *([choice.why] if choice.why else [])])
    if outcome.us == min(one.us for one in tried.timed.values() if one.us is not None):
        words.insert(0, "quickest")
    if outcome.candidate.form != chosen.candidate.form:
        words.append("other form")
    elif outcome.bits != chosen.bits:
        words.append("other bits")
    return ", ".join(words)


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
