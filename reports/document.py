"""What a page of tables and figures consists of: built by one pure function a page, written as HTML or as Markdown.

Every text is finished here, with its unit; writers only escape and place it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from reports import text
from reports.drawing import Chart, Drawing, draw


@dataclass(frozen=True, slots=True)
class Head:
    """A column; ``unit`` says direction too, where there is one, and ``hint`` what is counted."""

    label: str
    unit: str = ""
    hint: str = ""
    number: bool = False
    wide: bool = False  # holds sentences, which may take several lines


@dataclass(frozen=True, slots=True)
class Cell:
    """``tone`` ("good", "bad", "warn" or nothing) repeats by colour what ``text`` says."""

    text: str = text.MISSING
    href: str = ""
    hint: str = ""
    tone: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """``empty`` stands in place of a table without rows; ``folded`` ones are opened by the reader."""

    title: str
    heads: tuple[Head, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    empty: str = "Nothing is recorded."
    folded: bool = False


@dataclass(frozen=True, slots=True)
class Fold:
    """Tables that the reader opens together."""

    title: str
    tables: tuple[Table, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """``key`` is its anchor; ``missing`` says why it shows nothing."""

    key: str
    title: str
    lead: tuple[str, ...] = ()
    charts: tuple[Chart, ...] = ()
    tables: tuple[Table, ...] = ()
    links: tuple[Cell, ...] = ()  # raw files
    folds: tuple[Fold, ...] = ()
    missing: str = ""

    @property
    def drawings(self) -> list[Drawing]:
        """Of the charts that have a point."""
        return [drawing for chart in self.charts if (drawing := draw(chart)) is not None]


@dataclass(frozen=True, slots=True)
class Document:
    lead: tuple[str, ...]
    sections: tuple[Section, ...]

    @property
    def drawings(self) -> list[Drawing]:
        return [drawing for section in self.sections for drawing in section.drawings]


def heads(*labels: str) -> tuple[Head, ...]:
    """Columns as ``label`` or ``label, unit``; those that begin with # hold numbers, with ~ sentences."""
    found = []
    for label in labels:
        name, _, unit = label.lstrip("#~").partition(", ")
        found.append(Head(name, unit, number=label.startswith("#"), wide=label.startswith("~")))
    return tuple(found)


def cells(*texts: str | Cell) -> tuple[Cell, ...]:
    """A row; bare texts become cells."""
    return tuple(item if isinstance(item, Cell) else Cell(item) for item in texts)


def markdown(title: str, document: Document) -> str:
    """The page's tables in GitHub's Markdown; figures are left out, for their numbers are in the tables."""
    parts = [f"# {escaped(title)}", *map(escaped, document.lead)]
    for section in document.sections:
        parts += [f"## {escaped(section.title)}", *map(escaped, section.lead)]
        parts += [escaped(section.missing)] if section.missing else []
        for table in section.tables:
            body = _markdown_table(table)
            parts.append(_folded(table.title, body) if table.folded else f"### {escaped(table.title)}\n\n{body}")
        for fold in section.folds:
            inner = "\n\n".join(f"**{escaped(table.title)}**\n\n{_markdown_table(table)}" for table in fold.tables)
            parts.append(_folded(fold.title, inner))
    return "\n\n".join(part for part in parts if part) + "\n"


def _markdown_table(table: Table) -> str:
    if not table.rows:
        return escaped(table.empty)
    labels = [", ".join(part for part in (head.label, head.unit) if part) for head in table.heads]
    lines = [
        _line(labels),
        _line(["---:" if head.number else "---" for head in table.heads], plain=False),
        *(_line([cell.text for cell in row]) for row in table.rows),
    ]
    note = f"\n\n{escaped(table.note)}" if table.note else ""
    return "\n".join(lines) + note


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{escaped(title)}</summary>\n\n{body}\n\n</details>"


def _line(texts: Sequence[str], *, plain: bool = True) -> str:
    return f"| {' | '.join(escaped(one) if plain else one for one in texts)} |"


MARKED = str.maketrans({mark: f"\\{mark}" for mark in "\\`*_[]<>|~#"} | {"\n": " ", "\r": " ", "@": "&#64;"})
"""What Markdown or GitHub would read as more than text: marks, tags, columns, mentions of people."""


def escaped(words: str) -> str:
    return words.translate(MARKED)
