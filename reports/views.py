"""What the page shows of each GPU model, ready for the templates: no numbers are computed in a template."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from benchmarks.harness.records import Environment, Night
from reports import derive, details, text
from reports.cases import (
    CPU_COLUMNS,
    GPU_COLUMNS,
    REFERENCE_COLUMNS,
    STATIC_COLUMNS,
    VERDICT_MARKS,
    Column,
    Row,
    rows_of,
)
from reports.derive import Processes
from reports.details import Link, ProcessRow
from reports.sources import CPU, History
from reports.tiles import Past, Tile, tiles_of

HEADLINE_CASE = "kimi_k3_tp8_b32_t8_a3.84_fp32"
EXIT_WORDS = {
    0: "passed",
    1: "regressed",
    2: "usage error",
    3: "missing data",
    4: "invalid measurement",
    5: "broken environment",
    130: "interrupted",
}
MAX_NIGHTS_LISTED = 30
MAX_REASONS = 6


@dataclass(frozen=True, slots=True)
class NightLine:
    """One night in a list: when, what, how it ended."""

    id: str
    when: str
    utc: str
    case_set: str
    commit: str
    word: str
    red: bool
    accepted: bool
    num_processes: int
    counts: tuple[tuple[str, str, int], ...]  # mark, verdict, how many gated series
    reasons: tuple[str, ...]  # of the gated verdicts that failed it, the first few
    raw: str  # link to its JSON, or empty


@dataclass(frozen=True, slots=True)
class ModelView:
    """Everything of one GPU model; ``slug`` names its data folder and its anchor."""

    model: str
    slug: str
    name: str
    is_cpu: bool
    night: NightLine  # the one whose figures are shown
    newest: NightLine
    nights: tuple[NightLine, ...]  # newest first
    selected: str  # case of the tiles as the page is delivered; empty when the night has no case
    tiles: tuple[Tile, ...]
    columns: tuple[Column, ...]
    groups: tuple[tuple[str, int], ...]  # neighbouring columns of one group: name and how many
    group_starts: frozenset[int]  # columns that begin a group
    rows: tuple[Row, ...]
    reference_columns: tuple[Column, ...]
    reference_rows: tuple[Row, ...]  # tiny cases of the torch reference, on a CPU night
    prefix: str  # that all case names share, up to an underscore; narrow windows leave it out
    verdict_names: tuple[str, ...]  # that occur in rows, worst first
    environment: tuple[tuple[str, str], ...]
    environment_notes: tuple[str, ...]  # where processes of the night differ in it
    subject: tuple[tuple[str, str], ...]
    process_headings: tuple[str, ...]
    processes: tuple[ProcessRow, ...]
    set_aside: tuple[str, ...]
    notes: tuple[str, ...]
    reproduce: str
    ungated: int  # verdicts shown and not gated


def model_view(history: History, model: str, *, raw: bool) -> ModelView:
    """The view of one GPU model that has at least one night. ``raw``: link the raw files."""
    nights, past = shown_past(history, model)
    night, processes = nights[-1], past.processes[-1]
    is_cpu = model == CPU
    columns = CPU_COLUMNS if is_cpu else STATIC_COLUMNS if night.is_static else GPU_COLUMNS
    rows = rows_of(night, processes, columns)
    reference = _reference_rows(night, processes, rows) if is_cpu else []
    rows = [row for row in rows if row.name not in {item.name for item in reference}]
    selected = _selected([row.name for row in rows if not row.skipped] or [row.name for row in rows])
    lines = {item.id: _night_line(history, item, raw=raw) for item in history.of(model)}
    records = processes.records
    return ModelView(
        model=model,
        slug=text.file_slug(model),
        name="CPU" if is_cpu else f"{model}, compiled" if night.is_static else text.gpu_name(model),
        is_cpu=is_cpu,
        night=lines[night.id],
        newest=list(lines.values())[-1],
        nights=tuple(reversed(lines.values()))[:MAX_NIGHTS_LISTED],
        selected=selected,
        tiles=tuple(tiles_of(selected, past)) if selected and columns is GPU_COLUMNS else (),
        columns=columns,
        groups=_groups(columns),
        group_starts=frozenset(i for i, column in enumerate(columns) if i == 0 or columns[i - 1].group != column.group),
        rows=tuple(rows),
        reference_columns=REFERENCE_COLUMNS,
        reference_rows=tuple(reference),
        prefix=common_prefix([row.name for row in rows]),
        verdict_names=tuple(name for name in derive.VERDICT_ORDER if any(row.verdict == name for row in rows)),
        environment=tuple(details.environment_items(records[0].environment)) if records else (),
        environment_notes=tuple(_differences(processes)),
        subject=tuple(details.subject_items(records)) if records else (),
        process_headings=details.PROCESS_HEADINGS,
        processes=tuple(details.process_row(item, raw_links(history, item.id, raw=raw)) for item in records),
        set_aside=(*night.quarantined, *(f"record {id_} is not in any store" for id_ in history.absent_records(night))),
        notes=tuple(night.notes),
        reproduce=f"python -m ci nightly --set {night.case_set} --case '{selected}'",
        ungated=sum(not verdict.gated for verdict in night.verdicts),
    )


def _reference_rows(night: Night, processes: Processes, rows: Sequence[Row]) -> list[Row]:
    """Cases that were only timed with the torch reference: they have no exact figure."""
    bare = {row.name for row in rows if all(cell.sort is None for cell in row.cells)}
    timed = rows_of(night, processes, REFERENCE_COLUMNS)
    return [row for row in timed if row.name in bare and row.cells[0].sort is not None]


def shown_past(history: History, model: str) -> tuple[list[Night], Past]:
    """The nights up to the one shown, oldest first, each with what the environment changed before it."""
    everything = history.of(model)
    night = derive.shown_night(everything)
    assert night is not None, "a model is listed only where it has a night"
    nights = everything[: everything.index(night) + 1]
    measured = [history.processes(item) for item in nights]
    cuts: list[tuple[str, ...]] = []
    before: Environment | None = None
    for processes in measured:
        now = processes.records[0].environment if processes.records else None
        cuts.append(tuple(derive.environment_changes(before, now)) if before is not None and now is not None else ())
        before = now or before
    return nights, Past([_commit(processes) for processes in measured], measured, cuts)


def _selected(names: Sequence[str]) -> str:
    return HEADLINE_CASE if HEADLINE_CASE in names else next(iter(names), "")


def common_prefix(names: Sequence[str]) -> str:
    """What all names begin with, up to and including an underscore; empty for a single name."""
    if len(names) < 2:
        return ""
    first, last = min(names), max(names)  # all others lie between these in order, so share what these share
    length = next((i for i, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), len(first))
    return first[: first.rfind("_", 0, length) + 1]


def _commit(processes: Processes) -> str:
    subjects = [record.subject for record in processes.records]
    return f"commit {text.short_commit(subjects[0].commit, subjects[0].dirty)}" if subjects else "no readable record"


def _night_line(history: History, night: Night, *, raw: bool) -> NightLine:
    processes = history.processes(night)
    failing = [item for item in night.verdicts if item.fails]
    reasons = [f"{item.op} {item.provider} {item.metric}, {item.case}: {item.reason}" for item in failing[:MAX_REASONS]]
    if len(failing) > MAX_REASONS:
        reasons.append(f"and {len(failing) - MAX_REASONS} more series")
    reasons += night.alarms[:MAX_REASONS]
    if by := night.acceptance:
        reasons.append(f"accepted by {by.owner}, {text.utc(by.at_utc)}: {by.reason}")
    counts = derive.verdict_counts(night.verdicts)
    links = raw_links(history, night.id, raw=raw)
    return NightLine(
        id=night.id,
        when=text.utc(night.created_utc),
        utc=night.created_utc,
        case_set=night.case_set,
        commit=_commit(processes),
        word=EXIT_WORDS.get(night.exit_code, f"exit code {night.exit_code}"),
        red=night.exit_code != 0,
        accepted=night.accepted,
        num_processes=len(processes.records),
        counts=tuple((VERDICT_MARKS[name], name, number) for name, number in counts.items()),
        reasons=tuple(reasons),
        raw=links[0].href if links else "",
    )


def raw_place(path: Path) -> PurePosixPath:
    """Where a store's file lies in the site: raw/records/<gpu_model>/<name>."""
    return PurePosixPath("raw", path.parent.parent.name, path.parent.name, path.name)


def raw_links(history: History, id_: str, *, raw: bool) -> list[Link]:
    """To a record's or night's JSON and, where there is one, to its samples."""
    path = history.paths.get(id_)
    if not raw or path is None:
        return []
    links = [Link("JSON", quote(str(raw_place(path))))]
    samples = path.with_suffix(".parquet")
    return [*links, Link("Parquet", quote(str(raw_place(samples))))] if samples.is_file() else links


def _groups(columns: Sequence[Column]) -> tuple[tuple[str, int], ...]:
    groups: list[tuple[str, int]] = []
    for column in columns:
        if groups and groups[-1][0] == column.group:
            groups[-1] = (column.group, groups[-1][1] + 1)
        else:
            groups.append((column.group, 1))
    return tuple(groups)


def _differences(processes: Processes) -> list[str]:
    notes = []
    for record in processes.records[1:]:
        changes = derive.environment_changes(processes.records[0].environment, record.environment)
        if changes:
            notes.append(f"process {record.id} differs from the first: {', '.join(changes)}")
    return notes
