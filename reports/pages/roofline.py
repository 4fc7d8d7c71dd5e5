"""How near memory's speed the kernels are, and what states take: bytes per second, bytes, tokens of a budget."""

from collections.abc import Iterator, Sequence

from reports import derive, text
from reports.capacity import CAPACITY_FILE, capacity_section
from reports.covering import Covered, covering, night_cell, raw_cells
from reports.derive import Series
from reports.document import Cell, Document, Head, Section, Table, cells, heads
from reports.drawing import Chart, Line, Point
from reports.pages.documents import document_content
from reports.pages.page import Content, Page, Site

TERA = 1e12
SHOWN = {  # name: series
    "verify": derive.VERIFY,
    "full-state verify": derive.FULL_VERIFY,
    "commit, state of all layers": derive.COMMIT_STATE,
    "commit, conv of all layers": derive.CONV,
}


def load(site: Site) -> Content:
    return document_content(PAGE.name, roofline_document(site), [("files/capacity.json", CAPACITY_FILE.read_bytes())])


PAGE = Page(
    "roofline",
    "Roofline and memory",
    "How near the memory's speed are the kernels, and how much memory do the states take?",
    load,
    ("document.js",),
    template="document",
)


def roofline_document(site: Site) -> Document:
    """Per GPU model what was achieved; then bytes and capacity, which are computed and the same everywhere."""
    sections = [_achieved(site, model) for model in site.history.gpu_models()]
    if not sections:
        sections.append(Section("achieved", "Achieved bandwidth", missing="No night of a GPU is recorded."))
    lead = (
        "Compulsory bytes of one call over its time, median over processes; the roofline is the best stream that the "
        "same process reached, the control a stream of the same bytes, mix and grid. Higher is better; above 100 % of "
        "the control is possible, above the roofline is not."
    )
    return Document((lead,), (*sections, *_memory(site), capacity_section()))


def _achieved(site: Site, model: str) -> Section:
    nights = covering(site.history, model)
    slug, title = text.file_slug(model), text.gpu_name(model)
    if not nights:
        return Section(slug, title, missing="No record of its nights can be read.")
    rows = [row for covered in nights for row in _rates(site, covered)]
    return Section(
        slug,
        title,
        (),
        (_rate_chart(slug, nights),),
        (_streams(nights), _rate_table(rows)),
        raw_cells(site.history, [covered.night.id for covered in nights], raw=site.raw),
    )


def _streams(nights: Sequence[Covered]) -> Table:
    """Of the shown night: every control, at the start of its processes and at their end."""
    records = nights[0].processes.records
    names = dict.fromkeys(control.name for record in records for control in record.controls if control.read_bytes)
    rows = []
    for name in names:
        found = [
            [
                one.bytes_per_s / TERA
                for record in records
                for one in record.controls
                if (one.name, one.when) == (name, when)
            ]
            for when in ("start", "end")
        ]
        example = next(one for record in records for one in record.controls if one.name == name)
        moved = f"{text.size(example.read_bytes)} read, {text.size(example.write_bytes)} written"
        rows.append(cells(name, moved, *(_spread(values) for values in found)))
    columns = heads("stream", "bytes of a launch", "#start of the process, TB/s", "#its end, TB/s")
    return Table("Streams of our own", columns, tuple(rows), "Median, and smallest to largest process.")


def _spread(values: Sequence[float]) -> Cell:
    figure = derive.Figure(tuple(values))
    if figure.median is None:
        return Cell(hint="not measured")
    return Cell(f"{figure.median:.3f} ({figure.low:.3f} to {figure.high:.3f})")


def _rates(site: Site, covered: Covered) -> Iterator[tuple[Cell, ...]]:
    for case in sorted(covered.cases, key=lambda case: text.natural_key(case.name)):
        for name, series in SHOWN.items():
            processes = covered.processes
            time, rate = processes.figure(series, case.name), processes.bandwidth(series, case.name)
            if not time.n and time.reason == "not measured":
                continue
            yield cells(
                case.name,
                name,
                text.size(processes.moved_bytes(series, case.name)),
                Cell(text.micros(time.median), hint=text.span(time, "us") or time.reason),
                Cell(text.number(rate.median and rate.median / TERA, 2), hint=rate.reason),
                text.percent(processes.roofline_pct(series, case.name).median),
                text.percent(processes.control_pct(series, case.name).median),
                night_cell(site.history, covered.night, raw=site.raw),
            )


def _rate_table(rows: Sequence[tuple[Cell, ...]]) -> Table:
    columns = (
        *heads("case", "op", "#bytes moved", "#time, µs"),
        Head("achieved", "TB/s, higher is better", number=True),
        Head("roofline", "% of the best stream", number=True),
        Head("control", "% of the matching stream", number=True),
        Head("night", "UTC"),
    )
    return Table("Achieved, case by case", columns, tuple(rows), folded=True)


def _rate_chart(slug: str, nights: Sequence[Covered]) -> Chart:
    lines = []
    for name, series in SHOWN.items():
        points = sorted(_points(nights, series), key=lambda point: point.x)
        lines.append(Line(name, tuple(points), joined=False))
    best = _best_stream(nights)
    moved = [point.x for line in lines for point in line.points]
    if best and moved:
        ends = tuple(Point(x, best, f"{best:.2f} TB/s") for x in (min(moved), max(moved)))
        lines.append(Line("best stream", ends))
    return Chart(
        f"{slug}-bandwidth",
        "Achieved bandwidth against bytes moved",
        "compulsory bytes of one call, MB (log scale)",
        "achieved, TB/s (higher is better)",
        tuple(line for line in lines if line.points),
        x_log=True,
        note="One dot per case; the small ones are bounded by launch and latency, not by bandwidth.",
    )


def _points(nights: Sequence[Covered], series: Series) -> Iterator[Point]:
    for covered in nights:
        for case in covered.cases:
            moved = covered.processes.moved_bytes(series, case.name)
            rate = covered.processes.bandwidth(series, case.name).median
            if moved and rate:
                yield Point(moved / 1e6, rate / TERA, f"{case.name}, {text.size(moved)}, {rate / TERA:.2f} TB/s")


def _best_stream(nights: Sequence[Covered]) -> float | None:
    """TB/s: median over processes of the best control of each."""
    best = [
        max((one.bytes_per_s for one in record.controls if one.read_bytes), default=0.0)
        for record in nights[0].processes.records
    ]
    median = derive.Figure(tuple(rate for rate in best if rate)).median
    return None if median is None else median / TERA


# ---- memory, which is computed


def _memory(site: Site) -> list[Section]:
    """Cache bytes of every case that a night knows: exact, so that no night is better than another."""
    rows: dict[str, tuple[Cell, ...]] = {}
    for model in [*site.history.gpu_models(), "cpu"]:
        for covered in covering(site.history, model):
            for case in covered.cases:
                if case.name not in rows and (row := _bytes_row(site, covered, case.name)):
                    rows[case.name] = row
    title = "Bytes of the states"
    if not rows:
        return []
    columns = heads(
        "case",
        "#full state",
        "#RecoverSSM",
        "#saved",
        "#saved, % of full state",
        "#capacity gain, % more tokens",
        "night, UTC",
    )
    table = Table(
        "Case by case", columns, tuple(rows[name] for name in sorted(rows, key=text.natural_key)), folded=True
    )
    return [Section("memory", title, ("All layers of one rank; exact, not measured.",), tables=(table,))]


def _bytes_row(site: Site, covered: Covered, case: str) -> tuple[Cell, ...] | None:
    exact = [
        covered.processes.exact(series, case)
        for series in (derive.FULL_CACHE, derive.CACHE, derive.SAVED_BYTES, derive.SAVED_PCT, derive.CAPACITY_GAIN)
    ]
    if not any(figure.n for figure in exact):
        return None
    full, ours, saved, share, gain = exact
    return cells(
        case,
        Cell(text.size(full.median), hint=full.reason),
        Cell(text.size(ours.median), hint=ours.reason),
        Cell(text.size(saved.median), hint=saved.reason),
        Cell(text.percent(share.median), hint=share.reason),
        Cell(text.percent(gain.median, signed=True, digits=2), hint=gain.reason),
        night_cell(site.history, covered.night, raw=site.raw),
    )
