"""Other projects' kernels beside ours: where one is faster first, then all of them, op by op."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from benchmarks.harness.records import Case, PeerFacts
from reports import text
from reports.covering import raw_cells
from reports.document import Cell, Document, Fold, Head, Section, Table, cells, heads
from reports.league import OPS, Defeat, Entry, League, errors_text, leagues_of
from reports.pages.documents import document_content
from reports.pages.page import Content, Page, Site
from reports.sources import CPU

OP_TITLES = {
    "verify": "Verify of one layer",
    "commit": "Commit of all layers",
    "step": "Step: verify of all layers, then the commit",
    "conv": "Conv windows of all layers",
}
SCHEMES = {
    "recoverssm": "one state and records",
    "full_state": "a state after every token",
    "last_state": "the last state alone",
    "": text.MISSING,
}
PART = "†"
LIMITS = {"out": ("out",), "u": ("correction",), "state": ("state_fp32", "state_bf16")}


def load(site: Site) -> Content:
    models = [*site.history.gpu_models(), *([CPU] if site.history.of(CPU) else [])]
    leagues = [league for model in models for league in leagues_of(site.history, model)]
    if not leagues:
        command = "python -m ci nightly --set league --providers all"
        return Content(missing=f"No night has measured other projects' kernels: {command} (docs/peers.md).")
    return document_content(PAGE.name, league_document(site, leagues))


PAGE = Page(
    "league",
    "League",
    "How do other projects' kernels for the same job do beside ours, and where is one faster?",
    load,
    ("document.js",),
    template="document",
)


def league_document(site: Site, leagues: Sequence[League]) -> Document:
    lead = (
        "Every kernel here was checked against float64 on the inputs that ours gets, then timed in the same process "
        "and under the same contract; × is its time over ours, taken inside each process. Rules: docs/measuring.md."
    )
    return Document((lead,), tuple(section for league in leagues for section in _sections(site, league)))


def _sections(site: Site, league: League) -> Iterator[Section]:
    model = league.night.gpu_model
    slug, title = text.file_slug(model), "CPU" if league.on_cpu else text.gpu_name(model)
    if league.night.case_set != "league":
        slug, title = f"{slug}-{league.night.case_set}", f"{title}, set {league.night.case_set}"
    processes = len(league.processes.records)
    when = f"Night {league.night.id}, set {league.night.case_set}, {processes} processes, {league.extent}."
    doubt = (
        ["Times of a CPU: an adapter's proof, no more. Kernels under Triton's interpreter."] if league.on_cpu else []
    )
    doubt += ["This night was judged invalid: nobody should believe its times."] if league.is_invalid else []
    links = raw_cells(site.history, [league.night.id], raw=site.raw)
    first, every = _defeats(league)
    folds = (Fold("Case by case", (every,)),) if every.rows else ()
    yield Section(slug, title, (when, *doubt), tables=(first,), links=links, folds=folds)
    for (num_heads, window), found in groupby(league.cases, key=lambda case: (case.num_heads, case.spec_query_len)):
        yield _window(league, slug, f"{title}: {window} tokens a window, {num_heads} heads", list(found))
    sources = Fold("What each covers, licences and sources", (_sources(league),))
    yield Section(f"{slug}-kernels", f"{title}: kernels", tables=(_kernels(league),), folds=(sources,))


def _defeats(league: League) -> tuple[Table, Table]:
    """A line for each kernel and op, at the case where it is clearest; then each case."""
    groups: dict[tuple[str, str], list[Defeat]] = {}
    for one in league.defeats():
        groups.setdefault((one.entry.name, one.standing.op), []).append(one)
    first = []
    for (_, op), (clearest, *others) in groups.items():
        kernel, keeps, _, *rest = _defeat(clearest)
        found = f"{1 + len(others)} of {league.num_compared(clearest.entry, op)}"
        first.append(cells(kernel, keeps, op, found, *rest))
    title, numbers = "Where another kernel is faster than ours", ("#theirs, µs", "#ours, µs", "#theirs, × ours")
    columns = heads("~kernel", "keeps", "op", "#cases", "clearest in", *numbers)
    every = tuple(cells(*_defeat(one)) for one in league.defeats())
    return (
        Table(title, columns, tuple(first), empty="Nowhere in this night."),
        Table(f"{title}, case by case", heads("~kernel", "keeps", "op", "case", *numbers), every),
    )


def _defeat(one: Defeat) -> tuple[str, ...]:
    standing, facts = one.standing, one.entry.facts
    times = (text.micros(standing.figure.median), text.micros(standing.ours.median))
    return (one.entry.title, SCHEMES[facts.scheme], standing.op, one.case.name, *times, _ratio(standing.ratio.median))


def _kernels(league: League) -> Table:
    rows = []
    for entry in league.entries:
        reasons = [f"{why} ({count} case{'s' if count > 1 else ''})" for why, count in league.untimed(entry).items()]
        said = Cell("; ".join(reasons), tone="warn") if reasons else Cell("measured")
        rows.append(_kernel(entry.title, said, entry.facts, errors_text(league.errors(entry))))
    for facts in league.missing:
        said = Cell(f"not measured: {facts.missing}", tone="warn")
        rows.append(_kernel(facts.title or facts.name, said, facts, text.MISSING))
    return Table("Kernels", heads("kernel", "keeps", "~in this night", "largest errors", "its tolerance"), tuple(rows))


def _kernel(title: str, said: Cell, facts: PeerFacts, errors: str) -> tuple[Cell, ...]:
    limits = [
        f"{name} {' or '.join(f'{facts.tolerance[key]:g}' for key in keys)}"
        for name, keys in LIMITS.items()
        if all(key in facts.tolerance for key in keys)
    ]
    tolerance = Cell(", ".join(limits) or text.MISSING, hint=facts.tolerance_reason)
    return cells(title, SCHEMES[facts.scheme], said, errors, tolerance)


def _sources(league: League) -> Table:
    known = [(entry.title, entry.facts) for entry in league.entries if not entry.is_own]
    known += [(facts.title or facts.name, facts) for facts in league.missing]
    rows = [
        cells(title, *(one or text.MISSING for one in (facts.covers, facts.licence, facts.source)))
        for title, facts in known
    ]
    return Table("Sources", heads("kernel", "~covers", "licence", "~source"), tuple(rows))


def _window(league: League, slug: str, title: str, cases: Sequence[Case]) -> Section:
    """A table for each op at each acceptance that it was timed at; those but of the usual one are folded."""
    by_accepted = {accepted: list(found) for accepted, found in groupby(cases, key=lambda case: case.mean_accepted)}
    usual = max(by_accepted, key=lambda accepted: _num_times(league, by_accepted[accepted]))
    tables = [_table(league, op, accepted, found) for accepted, found in by_accepted.items() for op in OPS]
    shown = tuple(table for table in tables if table.rows and table.title.endswith(_accepted(usual)))
    rest = tuple(table for table in tables if table.rows and not table.title.endswith(_accepted(usual)))
    folds = (Fold("Other acceptances", rest),) if rest else ()
    key = f"{slug}-t{cases[0].spec_query_len}-h{cases[0].num_heads}"
    return Section(key, title, tables=shown, folds=folds)


def _num_times(league: League, cases: Sequence[Case]) -> int:
    return sum(league.standing(e, op, case.name).figure.n for e in league.entries for op in OPS for case in cases)


def _accepted(accepted: float) -> str:
    return f"{accepted:g} accepted"


def _table(league: League, op: str, accepted: float, cases: Sequence[Case]) -> Table:
    """A line for each kernel that has the op, a column for each batch and dtype; its errors where there are any."""
    columns = [
        Head("kernel"),
        *(Head(f"B = {case.num_requests}, {case.state_dtype}", "µs", case.name, number=True) for case in cases),
    ]
    timed = [e for e in league.entries if any(league.standing(e, op, case.name).figure.n for case in cases)]
    rows = [[_name(league, entry, op), *(_time(league, entry, op, case) for case in cases)] for entry in timed]
    errors = [errors_text(league.errors(entry, op, cases)) for entry in timed]
    if any(one != text.MISSING for one in errors):
        columns.append(Head("largest errors"))
        rows = [[*row, Cell(one)] for row, one in zip(rows, errors, strict=True)]
    note = f"{PART}: without all parts of a commit; a state alone is held against ours alone." if op == "commit" else ""
    has_parts = any(league.is_partial(entry, op) for entry in league.entries)
    found = tuple(map(tuple, rows))
    return Table(f"{OP_TITLES[op]}, {_accepted(accepted)}", tuple(columns), found, note if has_parts else "")


def _name(league: League, entry: Entry, op: str) -> Cell:
    return Cell(f"{entry.title} {PART}" if league.is_partial(entry, op) else entry.title, hint=entry.facts.covers)


def _time(league: League, entry: Entry, op: str, case: Case) -> Cell:
    standing = league.standing(entry, op, case.name)
    if not standing.figure.n:
        return Cell(hint=standing.figure.reason)
    ratio = standing.ratio.median
    tone = "warn" if ratio is not None and ratio < 1 else ""
    shown = text.micros(standing.figure.median) + (f" ({_ratio(ratio)})" if ratio is not None else "")
    return Cell(shown, hint=text.span(standing.figure, "us"), tone=tone)


def _ratio(value: float | None) -> str:
    return text.MISSING if value is None else f"{value:.2f} ×"
