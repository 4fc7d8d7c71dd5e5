"""The pages in short, as Markdown: for the page of a GitHub job, a mail, an issue."""

from collections.abc import Sequence

from reports import text
from reports.document import Cell, Document, Section, Table, cells, heads, markdown
from reports.pages.page import Site
from reports.pages.registry import PAGES
from reports.views import ModelView


class UnknownPageError(ValueError):
    """A page that is not made of tables and figures, or none at all."""


def summary_markdown(site: Site, names: Sequence[str] = ()) -> str:
    """What the newest nights say, then the pages of these names whole.

    Raises:
        UnknownPageError: names those that there are.
    """
    known = {page.name: page for page in PAGES if page.template == "document"}
    if unknown := [name for name in names if name not in known]:
        raise UnknownPageError(f"expected some of {', '.join(known)}, got {', '.join(unknown)}")
    parts = [markdown("RecoverSSM nights", summary_document(site))]
    for page in dict.fromkeys(known[name] for name in names):
        content = page.load(site)
        document = content.view or Document((), (Section(page.name, page.title, missing=content.missing),))
        parts.append(markdown(page.title, document))
    return "\n".join(parts)


def summary_document(site: Site) -> Document:
    """Headlines and verdicts of the newest night of each GPU model, the CPU and each architecture; open regressions."""
    if not site.models:
        return Document((), (Section("nights", "Nights", missing="No night is recorded in these stores."),))
    damaged = tuple(cells(line) for line in site.history.damaged)
    left_out = Section("damaged", "Left out", tables=(Table("Files that could not be read", heads("~file"), damaged),))
    sections = [_regressions(site), *(_model(view) for view in site.models), *([left_out] if damaged else [])]
    return Document((f"Built {text.utc(site.now.isoformat())}.",), tuple(sections))


def _regressions(site: Site) -> Section:
    rows = [
        cells(
            f"{row.mark} {row.state}",
            row.gpu,
            row.size,
            str(len(row.series)),
            row.since,
            row.age,
            row.commits,
            row.owner,
        )
        for row in site.events
        if row.is_open
    ]
    columns = heads("state", "GPU", "largest change", "#series", "since", "age", "commits", "owner")
    return Section("regressions", "Regressions", tables=(Table("Open", columns, tuple(rows), empty="None is open."),))


def _model(view: ModelView) -> Section:
    newest = view.newest
    state = f"{'✕' if newest.red else '✓'} {newest.word}"
    lead = f"{state}: night of {newest.when}, set {newest.case_set}, {newest.commit}."
    counts = ", ".join(f"{mark} {number} {name}" for mark, name, number in newest.counts) or "none"
    tiles = tuple(cells(tile.label, tile.value, tile.word, tile.detail, tile.note) for tile in view.tiles)
    figures = Table(
        f"Headlines of {view.selected}, night of {view.night.when}",
        heads("figure", "#value", "~meaning", "range", "~made of"),
        tiles,
    )
    reasons = tuple(cells(Cell(reason)) for reason in newest.reasons)
    failures = Table("Why it is red", heads("~reason"), reasons)
    tables = [*([failures] if reasons else []), *([figures] if tiles else [])]
    return Section(view.slug, view.name, (lead, f"Gated series: {counts}."), tables=tuple(tables))
