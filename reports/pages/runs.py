"""Every night with what surrounded it: what differs from the one before, what does not count and why, and raw files."""

from collections import Counter
from collections.abc import Iterator, Sequence
from urllib.parse import quote

from benchmarks.harness.records import Environment, Night
from reports import derive, details, text
from reports.covering import raw_cells
from reports.document import Cell, Document, Fold, Section, Table, cells, heads
from reports.pages.documents import document_content
from reports.pages.page import Content, Page, Site
from reports.process import Process
from reports.views import EXIT_WORDS, raw_place

DETAILED = 20  # newest nights of a model whose processes are listed; the store holds all
MOST_REASONS = 12


def load(site: Site) -> Content:
    if not site.history.nights:
        return Content(missing="No night is recorded in these stores.")
    return document_content(PAGE.name, runs_document(site))


PAGE = Page(
    "runs",
    "Runs",
    "What surrounded each night, what changed since the one before, and what does not count?",
    load,
    ("document.js",),
    template="document",
)


def runs_document(site: Site) -> Document:
    lead = (
        "A change of the environment cuts a series of times; a change of the code does not. Cards and hosts are "
        "hashed. A process that cannot be believed is left out, and a sample taken while the card was "
        "held back does not count."
    )
    models = [*site.history.gpu_models(), *(["cpu"] if site.history.of("cpu") else []), *site.history.archs()]
    sections = [_section(site, model) for model in models]
    damaged = (
        [Section("damaged", "Files that could not be read", tables=(_lines("File", site.history.damaged),))]
        if site.history.damaged
        else []
    )
    return Document((lead,), (*damaged, *sections))


def _lines(head: str, lines: Sequence[str]) -> Table:
    return Table(head, heads(head.lower()), tuple(cells(line) for line in lines))


def _section(site: Site, model: str) -> Section:
    nights = site.history.of(model)
    shown = list(reversed(nights))[:DETAILED]
    before = {night.id: nights[index - 1] if index else None for index, night in enumerate(nights)}
    folds = tuple(_night(site, night) for night in shown)
    title = "CPU" if model == "cpu" else text.gpu_name(model)
    lead = []
    if len(shown) < len(nights):
        lead.append(
            f"Of {len(nights)} nights the newest {len(shown)} are opened below; the table links the files of all."
        )
    table = _nights(site, list(reversed(nights)), before)
    return Section(text.file_slug(model), title, tuple(lead), tables=(table,), folds=folds)


def _nights(site: Site, nights: Sequence[Night], before: dict[str, Night | None]) -> Table:
    rows = []
    for night in nights:
        raw = raw_cells(site.history, [night.id], raw=site.raw)
        word = EXIT_WORDS.get(night.exit_code, f"exit code {night.exit_code}")
        changes = environment_differences(site, before[night.id], night)
        rows.append(
            cells(
                Cell(text.utc(night.created_utc), raw[0].href if raw else "", night.id),
                Cell(f"{'✕' if night.exit_code else '✓'} {word}", tone="bad" if night.exit_code else "good"),
                night.case_set,
                str(len(night.records)),
                str(len(night.left_out)),
                "yes" if night.accepted else "no",
                _first_commit(site, night),
                "; ".join(changes) or ("first night" if before[night.id] is None else "nothing"),
            )
        )
    columns = heads(
        "night", "result", "set", "#processes", "#left out", "accepted", "commit", "~environment since the night before"
    )
    return Table("Nights, newest first", columns, tuple(rows))


def environment_differences(site: Site, before: Night | None, night: Night) -> list[str]:
    """What differs from the night before of the same GPU model, CPU and OS included; empty where that is not known."""
    first, second = (_environment(site, one) if one else None for one in (before, night))
    if first is None or second is None:
        return []
    host = [
        f"{details.ENVIRONMENT_LABELS[name]} {getattr(first, name)} → {getattr(second, name)}"
        for name in ("cpu_model", "os_kernel")
        if getattr(first, name) != getattr(second, name)
    ]
    return [*derive.environment_changes(first, second), *host]


def _environment(site: Site, night: Night) -> Environment | None:
    records = site.history.processes(night).records
    return records[0].environment if records else None


def _first_commit(site: Site, night: Night) -> str:
    records = site.history.processes(night).records
    return text.short_commit(records[0].subject.commit, records[0].subject.dirty) if records else "no readable record"


def _night(site: Site, night: Night) -> Fold:
    """Processes with raw files, what does not count, the whole environment."""
    records = [site.history.records[id_] for id_ in night.all_records if id_ in site.history.records]
    processes = Table(
        "Processes",
        heads("process", "counts", *details.PROCESS_HEADINGS[1:], "samples"),
        tuple(_process(site, night, record) for record in records),
        empty="No record of this night can be read.",
    )
    excluded = tuple(_excluded(site, night, records))
    left_out = Table("What does not count, and why", heads("what", "~why"), excluded, empty="Everything counts.")
    facts = details.environment_items(records[0].environment) if records else []
    rows = tuple(cells(label, value) for label, value in facts)
    environment = Table("Environment", heads("fact", "value"), rows, empty="Not known.")
    return Fold(f"{text.utc(night.created_utc)}, set {night.case_set}", (processes, left_out, environment))


def _process(site: Site, night: Night, record: Process) -> tuple[Cell, ...]:
    row = details.process_row(record, ())
    links = raw_cells(site.history, [record.id], raw=site.raw)
    path = site.history.paths.get(record.id)
    samples = path.with_suffix(".parquet") if path and site.raw else None
    parquet = Cell("Parquet", quote(str(raw_place(samples)))) if samples and samples.is_file() else Cell()
    counts = Cell("no, left out", tone="bad") if record.id in night.left_out else Cell("yes")
    return (links[0] if links else Cell(record.id), counts, *(Cell(one) for one in row.cells[1:]), parquet)


def _excluded(site: Site, night: Night, records: Sequence[Process]) -> Iterator[tuple[Cell, ...]]:
    for note in night.notes:
        yield cells("night", note)
    for line in night.quarantined:
        yield cells("file", line)
    for id_ in night.all_records:
        if id_ not in site.history.records:
            yield cells(f"record {id_}", "in no store in readable form")
    dropped = {record.id: record.columns.num_dropped for record in records}
    for id_, number in dropped.items():
        if number:
            yield cells(f"{number:,} samples of {id_}", "the card was held back while they were taken")
    reasons = Counter(
        (problem.status, f"{line.provider} {line.op} {line.metric}", problem.reason or "no reason given")
        for record in records
        for line, problem in record.columns.not_ok()
        if line.provider not in record.peer_names  # the league says why
    )
    for (status, series, reason), number in reasons.most_common(MOST_REASONS):
        yield cells(f"{status}: {series}, {number} times", reason)
    if len(reasons) > MOST_REASONS:
        yield cells(f"and {len(reasons) - MOST_REASONS} more kinds", "see the raw files")
    for record in records:
        for attempt in record.attempts:
            lost = f"; without numbers: {attempt.lost}" if attempt.lost else ""
            yield cells(f"first attempt of {record.id}", f"{attempt.ended}{lost}")
