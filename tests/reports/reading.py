"""How tests read pages made of tables and figures."""

from typing import TYPE_CHECKING

from reports.document import Document, Table

if TYPE_CHECKING:
    from playwright.sync_api import Page

NBSP = "\N{NO-BREAK SPACE}"


def table(document: Document, title: str, section: str = "") -> Table:
    """The only table of this title, in the section with this key."""
    sections = [one for one in document.sections if section in ("", one.key)]
    tables = [one for section in sections for one in section.tables]
    tables += [one for section in sections for fold in section.folds for one in fold.tables]
    (found,) = [one for one in tables if one.title == title]
    return found


def texts(found: Table) -> list[list[str]]:
    return [[cell.text.replace(NBSP, " ") for cell in row] for row in found.rows]


def column(found: Table, label: str) -> list[str]:
    """Texts below the column whose label, or label and unit, this is."""
    index = [head.label if not head.unit else f"{head.label}, {head.unit}" for head in found.heads].index(label)
    return [row[index] for row in texts(found)]


def shown_rows(page: "Page", title: str) -> list[list[str]]:
    """Texts of a table's body in the browser."""
    rows = page.locator(f"[role=region][aria-label$={title!r}] tbody tr").all()
    return [[text.replace(NBSP, " ") for text in row.locator("th, td").all_text_contents()] for row in rows]


def unfold(page: "Page") -> None:
    page.evaluate("document.querySelectorAll('details').forEach((element) => { element.open = true; })")
