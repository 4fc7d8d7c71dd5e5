"""Text that a command writes into a document, between two marks that name it."""

from pathlib import Path

from .exits import UsageError


def marks(name: str) -> tuple[str, str]:
    """What stands before and after the text of this name."""
    return f"<!-- {name}:start -->", f"<!-- {name}:end -->"


def write_between_marks(path: Path, name: str, text: str) -> None:
    """Replace what lies between the marks of this name. UsageError without document or marks."""
    start, end = marks(name)
    if not path.is_file():
        raise UsageError(f"{path}: no such document")
    before, found, rest = path.read_text(encoding="utf-8").partition(start)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise UsageError(f"{path}: expected {start} and {end}, each once")
    path.write_text(f"{before}{start}\n\n{text}\n\n{end}{after}", encoding="utf-8")
