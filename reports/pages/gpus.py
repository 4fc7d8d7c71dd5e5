"""The same cases on different GPU models, each against its own streams; and on different cards of one model."""

import statistics
from collections.abc import Iterator, Sequence

from benchmarks.harness.records import Head
from reports import derive, text
from reports.covering import Covered, covering, raw_cells
from reports.derive import Figure
from reports.document import Cell, Document, Section, Table, cells, heads
from reports.drawing import Chart, Line, Point
from reports.pages.documents import document_content
from reports.pages.page import Content, Page, Site

SERIES = {
    "verify": derive.VERIFY,
    "full-state verify": derive.FULL_VERIFY,
    "commit": derive.COMMIT,
    "step": derive.STEP,
    "full-state step": derive.FULL_STEP,
}
TERA = 1e12


def load(site: Site) -> Content:
    if not site.history.gpu_models():
        return Content(missing="No night of a GPU is recorded in these stores.")
    return document_content(PAGE.name, gpus_document(site))


PAGE = Page(
    "gpus",
    "GPU × GPU",
    "How do the same cases run on other GPU models, and do cards of one model agree?",
    load,
    ("document.js",),
    template="document",
)


def gpus_document(site: Site) -> Document:
    lead = (
        "Times of different GPU models are never one series. Beside each time stands its share of what that GPU's own "
        "streams reached, so that a kernel can be compared without the memory it runs on."
    )
    return Document((lead,), (_models(site), *(_cards(site, model) for model in site.history.gpu_models())))


# ---- models


def _models(site: Site) -> Section:
    models = site.history.gpu_models()
    nights = {model: covering(site.history, model) for model in models}
    if len(models) < 2:
        only = text.gpu_name(models[0])
        return Section(
            "models",
            "Models",
            missing=f"Only {only} is recorded; nights of another GPU model will stand beside it here.",
        )
    cases = [_cases(found) for found in nights.values()]
    shared = sorted(set(cases[0]).intersection(*cases[1:]), key=text.natural_key)
    rows = [row for case in shared for row in _rows(case, models, nights)]
    first = text.gpu_name(models[0])
    columns = heads(
        "case",
        "op",
        *(
            head
            for model in models
            for head in (f"#{text.gpu_name(model)}, µs", f"#of its roofline, {text.gpu_name(model)}")
        ),
        *(f"#{text.gpu_name(model)}, × {first}" for model in models[1:]),
    )
    ids = [covered.night.id for found in nights.values() for covered in found]
    table = Table("Cases that all models have", columns, tuple(rows), empty="No case was measured on every model.")
    return Section(
        "models", "Models", (), (_chart(shared, models, nights),), (table,), raw_cells(site.history, ids, raw=site.raw)
    )


def _cases(nights: Sequence[Covered]) -> dict[str, Covered]:
    return {case.name: covered for covered in nights for case in covered.cases}


def _rows(case: str, models: Sequence[str], nights: dict[str, list[Covered]]) -> Iterator[tuple[Cell, ...]]:
    for name, series in SERIES.items():
        processes = [_cases(nights[model])[case].processes for model in models]
        times = [one.figure(series, case) for one in processes]
        if not any(time.n for time in times):
            continue
        shares = [one.roofline_pct(series, case) for one in processes]
        pairs = [
            item
            for time, share in zip(times, shares, strict=True)
            for item in (
                Cell(text.micros(time.median), hint=text.span(time, "us") or time.reason),
                Cell(text.percent(share.median), hint=share.reason),
            )
        ]
        yield cells(case, name, *pairs, *(_ratio(time, times[0]) for time in times[1:]))


def _ratio(time: Figure, base: Figure) -> Cell:
    if time.median is None or not base.median:
        return Cell(hint=time.reason or base.reason)
    return Cell(f"{time.median / base.median:.2f}")


def _chart(cases: Sequence[str], models: Sequence[str], nights: dict[str, list[Covered]]) -> Chart:
    lines = []
    for model in models:
        found = []
        for case in cases:
            covered = _cases(nights[model])[case]
            time = covered.processes.figure(derive.VERIFY, case).median
            share = covered.processes.roofline_pct(derive.VERIFY, case).median
            if time is not None and share is not None:
                found.append(Point(time, share, f"{case}: {text.micros(time)} µs, {share:.1f} %"))
        lines.append(Line(text.gpu_name(model), tuple(sorted(found, key=lambda point: point.x)), joined=False))
    return Chart(
        "verify",
        "Verify: share of each GPU's own roofline",
        "device time, µs (log scale)",
        "% of the best stream of that GPU (higher is better)",
        tuple(lines),
        x_log=True,
    )


# ---- cards of one model


def _cards(site: Site, model: str) -> Section:
    """Per card over all its nights: streams and clocks, and verify and commit against the median of all cards."""
    slug, title = text.file_slug(model), f"Cards of {text.gpu_name(model)}"
    by_card: dict[str, list[Head]] = {}
    for night in site.history.of(model):
        for record in site.history.processes(night).records:
            by_card.setdefault(text.short_hash(record.silicon.gpu_uuid), []).append(record)
    if not by_card:
        return Section(slug, title, missing="No record of its nights can be read.")
    rows = [_card(card, records) for card, records in sorted(by_card.items())]
    columns = heads(
        "card",
        "host",
        "#processes",
        "newest, UTC",
        "#copy stream, TB/s",
        "#read stream, TB/s",
        "#SM clock, median MHz",
        "#power, median W",
        "#hottest, °C",
        "#held back, ms a process",
    )
    note = "Medians over a card's processes, of all sets and commits. What the card was doing besides is in the runs."
    return Section(slug, title, tables=(Table("Card by card", columns, tuple(rows), note),))


def _card(card: str, records: Sequence[Head]) -> tuple[Cell, ...]:
    monitors = [record.monitor for record in records]
    hosts = dict.fromkeys(text.short_hash(record.silicon.host) for record in records)
    held = [sum(one.throttle_us.values()) / 1000 for one in monitors if one.num_readings]
    return cells(
        card,
        ", ".join(hosts),
        str(len(records)),
        text.utc(max(record.created_utc for record in records)),
        *(_stream(records, name) for name in ("copy", "read")),
        _median([one.sm_clock_mhz_median for one in monitors], 0),
        _median([one.power_w_median for one in monitors], 0),
        text.number(
            max((one.temperature_c_max for one in monitors if one.temperature_c_max is not None), default=None), 0
        ),
        _median(held, 0),
    )


def _stream(records: Sequence[Head], name: str) -> Cell:
    found = [
        one.bytes_per_s / TERA
        for record in records
        for one in record.controls
        if (one.name, one.when) == (name, "start")
    ]
    return Cell(_median(found, 3), hint=f"{min(found):.3f} to {max(found):.3f}" if found else "not measured")


def _median(values: Sequence[float | None], digits: int) -> str:
    known = [value for value in values if value is not None]
    return text.number(statistics.median(known) if known else None, digits)
