"""What the compiler made of the kernels, architecture by architecture: exact figures, with no card."""

from collections.abc import Iterator, Sequence

from benchmarks.harness.records import Night
from benchmarks.static.series import LAUNCHES, METRICS
from reports import derive, text
from reports.cases import VERDICT_MARKS
from reports.covering import raw_cells
from reports.derive import Processes
from reports.document import Cell, Document, Head, Section, Table, cells, heads
from reports.pages.documents import document_content
from reports.pages.page import Content, Page, Site
from reports.process import Problem

SHORT = {  # of METRICS, for a column's head
    "spill_instructions": "spills",
    "stack_bytes": "stack, B",
    "wide_loads": "16-byte loads",
    "tensor_core_instructions": "tensor core",
    "barriers": "barriers",
    "ctas_per_sm": "CTAs an SM",
    "registers": "registers",
    "shared_bytes": "shared, B",
    "code_bytes": "code, B",
    "code_instructions": "instructions",
    "code_fma": "FMA",
    "code_mufu": "special",
    "code_shuffles": "shuffles",
    "code_global_loads": "global loads",
    "code_global_stores": "global stores",
}


def load(site: Site) -> Content:
    if not site.history.archs():
        how = (
            "make nightly records one on any machine, with or without a GPU (python -m ci nightly compiles what its "
            "cases launch for sm_90, sm_100 and sm_103); python -m ci static prints the same figures of a checkout"
        )
        return Content(missing=f"No night of these stores has compiled kernels: {how}.")
    return document_content(PAGE.name, static_document(site))


PAGE = Page(
    "static",
    "Static",
    "What did the compiler make of the kernels on each architecture, and what changed?",
    load,
    ("document.js",),
    template="document",
)


def static_document(site: Site) -> Document:
    """Changes first, then each op with its architectures below each other."""
    nights = {arch: site.history.of(arch)[-1] for arch in site.history.archs()}
    lead = (
        "Compiled for architectures that need not be here: figures of the code, exact, and judged exactly. They say "
        "what a kernel asks for and holds, not how long it takes. Where alignment makes several kernels of one op, the "
        "worst of each figure counts; cases whose figures are the same share a row."
    )
    return Document((lead,), (_nights(site, nights), _changes(nights), *_ops(site, nights)))


def _nights(site: Site, nights: dict[str, Night]) -> Section:
    rows = []
    for arch, night in nights.items():
        records = site.history.processes(night).records
        counts = ", ".join(
            f"{VERDICT_MARKS[name]} {number} {name}" for name, number in derive.verdict_counts(night.verdicts).items()
        )
        example = records[0] if records else None
        rows.append(
            cells(
                arch,
                text.utc(night.created_utc),
                text.short_commit(example.subject.commit, example.subject.dirty) if example else "no readable record",
                (example.environment.triton or text.MISSING) if example else text.MISSING,
                (example.environment.ptxas or text.MISSING) if example else text.MISSING,
                str(len(example.subject.binaries)) if example else text.MISSING,
                counts or "none",
            )
        )
    table = Table(
        "Newest compilation",
        heads("architecture", "night", "commit", "Triton", "ptxas", "#kernels", "gated verdicts"),
        tuple(rows),
    )
    ids = [id_ for night in nights.values() for id_ in [night.id, *night.records]]
    return Section("nights", "Architectures", (), tables=(table,), links=raw_cells(site.history, ids, raw=site.raw))


def _changes(nights: dict[str, Night]) -> Section:
    rows = [
        cells(
            arch,
            one.case,
            one.op,
            one.provider,
            METRICS[one.metric].what if one.metric in METRICS else one.metric,
            text.number(one.base_value, 0),
            text.number(one.value, 0),
            Cell(f"{VERDICT_MARKS[one.verdict]} {one.verdict}", tone=_tone(one.verdict)),
            one.reason,
        )
        for arch, night in nights.items()
        for one in night.verdicts
        if one.verdict not in ("unchanged", "new")
    ]
    columns = heads("architecture", "case", "op", "provider", "figure", "#base", "#now", "verdict", "~reason")
    table = Table("Changed since the base night", columns, tuple(rows), empty="Nothing changed.")
    return Section("changes", "Changes", tables=(table,))


def _tone(verdict: str) -> str:
    return {"regressed": "bad", "missing": "bad", "invalid": "bad", "improved": "good"}.get(verdict, "")


def _ops(site: Site, nights: dict[str, Night]) -> Iterator[Section]:
    found = {arch: site.history.processes(night) for arch, night in nights.items()}
    ops = dict.fromkeys(
        (line.op, line.provider)
        for processes in found.values()
        for line in processes.lines().values()
        if line.contract == "static"
    )
    ordered = sorted(ops, key=lambda pair: (pair[1] != "recoverssm", pair))
    yield Section("launches", "Launches", tables=(_launches(found, ordered),))
    for op, provider in ordered:
        rows = [row for arch, processes in found.items() for row in _rows(arch, processes, op, provider)]
        shown = [index for index in range(2, 2 + len(METRICS)) if any(row[index].text != text.MISSING for row in rows)]
        columns = (*heads("architecture", "cases"), *(_head(tuple(METRICS)[index - 2]) for index in shown))
        kept = tuple((*row[:2], *(row[index] for index in shown)) for row in rows)
        if shown:
            yield Section(
                f"{provider}-{op}", f"{op}, {provider}", tables=(Table("Figures of the code", columns, kept),)
            )


def _launches(found: dict[str, Processes], ops: Sequence[tuple[str, str]]) -> Table:
    rows = [cells(op, provider, *(_launched(one, op, provider) for one in found.values())) for op, provider in ops]
    return Table(
        "Kernels that one call launches", heads("op", "provider", *(f"#{arch}" for arch in found)), tuple(rows)
    )


def _launched(processes: Processes, op: str, provider: str) -> str:
    """Of several cases the range."""
    items = [figures.get(LAUNCHES) for figures in _figures(processes, op, provider).values()]
    known = sorted({item for item in items if isinstance(item, float)})
    return " to ".join(dict.fromkeys(text.number(value, 0) for value in (known[:1] + known[-1:]))) or text.MISSING


def _head(metric: str) -> Head:
    label, _, unit = SHORT.get(metric, metric).partition(", ")
    return Head(label, unit, METRICS[metric].what, number=True)


def _rows(arch: str, processes: Processes, op: str, provider: str) -> list[tuple[Cell, ...]]:
    """One row for each set of equal figures of METRICS."""
    grouped: dict[tuple[Cell, ...], list[str]] = {}
    for case, figures in _figures(processes, op, provider).items():
        row = tuple(_cell(figures[name]) if name in figures else Cell() for name in METRICS)
        grouped.setdefault(row, []).append(case)
    return [(Cell(arch), _cases(names), *figures) for figures, names in grouped.items()]


def _figures(processes: Processes, op: str, provider: str) -> dict[str, dict[str, float | Problem]]:
    """By case and metric."""
    found: dict[str, dict[str, float | Problem]] = {}
    for columns in (record.columns for record in processes.records):
        for place, (line, value) in enumerate(zip(columns.shape.lines, columns.values, strict=True)):
            if (line.op, line.provider, line.contract) == (op, provider, "static"):
                found.setdefault(line.case, {})[line.metric] = columns.problems.get(place, value)
    return {case: found[case] for case in sorted(found, key=text.natural_key)}


def _cell(figure: float | Problem) -> Cell:
    if isinstance(figure, Problem):
        return Cell(figure.status, hint=figure.reason, tone="bad")
    return Cell(text.number(figure, 0))


def _cases(names: Sequence[str]) -> Cell:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return Cell(f"{names[0]}{more}", hint="\n".join(names))
