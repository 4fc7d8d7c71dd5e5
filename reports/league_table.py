"""The league in the README: a line for each kernel, at a few cases."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from benchmarks.harness.records import Case
from reports import text
from reports.document import escaped
from reports.league import Entry, League, errors_text

SHOWN = ("verify", "commit", "step")
PART = "†"


def league_table(league: League, patterns: Sequence[str]) -> str | None:
    """Markdown, what is lost first; None where the league has no such case."""
    cases = [case for case in league.cases if any(fnmatchcase(case.name, pattern) for pattern in patterns)]
    if not cases:
        return None
    heads = ["µs", *(f"B = {case.num_requests}, {case.state_dtype}" for case in cases), "largest errors"]
    rows = [
        [_title(league, entry), *(_cell(league, entry, case) for case in cases), errors_text(league.errors(entry))]
        for entry in league.entries
        if any(league.standing(entry, op, case.name).figure.n for op in SHOWN for case in cases)
    ]
    lines = [heads, ["---", *["---:"] * len(cases), "---"], *rows]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return "\n\n".join([_defeats(league, cases), table, _caption(league, cases, has_parts=PART in table)])


def _title(league: League, entry: Entry) -> str:
    if entry.name == league.ours:
        return f"**{entry.title}**"
    return escaped(entry.title) + (" (keeps the last state alone)" if entry.facts.scheme == "last_state" else "")


def _cell(league: League, entry: Entry, case: Case) -> str:
    shown = []
    for op in SHOWN:
        median = league.standing(entry, op, case.name).figure.median
        mark = PART if median is not None and league.is_partial(entry, op) else ""
        shown.append(text.micros(median) + mark)
    return f"{text.NBSP}/{text.NBSP}".join(shown)


def _defeats(league: League, cases: Sequence[Case]) -> str:
    names = {case.name for case in cases}
    lost = [one for one in league.defeats() if one.case.name in names and one.is_rivals]
    if not lost:
        nothing = "No kernel that can take tokens back is faster than ours"
        return f"**{nothing}** in these cases, all timed in the same processes:"
    said = [
        f"{one.standing.op} of {escaped(one.entry.title)} at B = {one.case.num_requests}, {one.case.state_dtype} "
        f"({text.micros(one.standing.figure.median)} against {text.micros(one.standing.ours.median)}{text.NBSP}µs)"
        for one in lost
    ]
    rest = "No other kernel that can take tokens back is, in any of its ops. All were timed in the same processes:"
    return f"**Faster than ours in these cases**: {'; '.join(said)}. {rest}"


def _caption(league: League, cases: Sequence[Case], *, has_parts: bool) -> str:
    example, num_processes = cases[0], len(league.processes.records)
    said = [
        f"Verify of one layer / commit of {example.num_layers} layers / step, with {example.num_heads} heads, "
        f"{example.spec_query_len} tokens a window and {example.mean_accepted:g} accepted; `graph-cold`, "
        f"{num_processes} process{'' if num_processes == 1 else 'es'}, errors against float64.",
        f"{PART}: without all parts of a commit." if has_parts else "",
        f"Not measured: {'; '.join(escaped(facts.title or facts.name) for facts in league.missing)}."
        if league.missing
        else "",
        "**The night was judged invalid: nobody should believe its times.**" if league.is_invalid else "",
        "Reasons, sources, all batches, windows and acceptances: the page *League*. "
        "Rules: [docs/measuring.md](docs/measuring.md#beside-other-projects-kernels). "
        f"From night `{league.night.id}`, {league.extent}.",
    ]
    return " ".join(part for part in said if part)
