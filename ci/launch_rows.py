"""Edits ``recoverssm/launch_table.toml``: replaces rows of one op, arch and state dtype; the rest stays byte for byte.

The file is a header and blocks of one ``[[row]]`` each, so it is cut at these lines and put together again; each block
is read by tomllib, and what is written is read once more before it replaces anything (docs/decisions/0019).
"""

import json
import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from recoverssm.launch import load_table

from .exits import BrokenEnvironmentError, UsageError

ROW = "[[row]]"


@dataclass(frozen=True, slots=True)
class Row:
    """One row as the file has it; ``text`` is its block, None for a new one."""

    op: str
    arch: int
    state_dtype: str
    form: str
    constants: Mapping[str, Any]
    source: str
    min_heads: int = 0
    min_tokens: int = 1
    text: str | None = field(default=None, compare=False)

    @property
    def place(self) -> tuple[int, int]:
        """From where it applies: min_tokens, then min_heads; later places come before earlier ones."""
        return self.min_tokens, self.min_heads

    def launches_as(self, other: "Row") -> bool:
        """Whether both mean the same launch."""
        return (self.form, dict(self.constants)) == (other.form, dict(other.constants))

    def block(self) -> str:
        """As it stands in the file, ending in an empty line."""
        if self.text is not None:
            return self.text
        lines = [ROW, f"op = {_toml(self.op)}", f"arch = {self.arch}", f"state_dtype = {_toml(self.state_dtype)}"]
        lines += [f"min_heads = {self.min_heads}"] * (self.min_heads > 0)
        lines += [f"min_tokens = {self.min_tokens}"] * (self.min_tokens > 1)
        constants = ", ".join(f"{name} = {_toml(value)}" for name, value in self.constants.items())
        lines += [f"form = {_toml(self.form)}", f"constants = {{ {constants} }}", f"source = {_toml(self.source)}"]
        return "\n".join(lines) + "\n\n"


def read_rows(text: str) -> tuple[str, list[Row]]:
    """What comes before the first row, and the rows.

    Raises:
        UsageError: a block cannot be read as one row.
    """
    header, *bodies = ("\n" + text).split(f"\n{ROW}\n")
    return header[1:] + "\n" * bool(bodies), [_read_row(f"{ROW}\n{body}\n") for body in bodies]


def _read_row(block: str) -> Row:
    try:
        (entry,) = tomllib.loads(block)["row"]
        return Row(**entry, text=block.rstrip("\n") + "\n\n")
    except (tomllib.TOMLDecodeError, TypeError, ValueError) as error:
        raise UsageError(f"launch table: cannot be read: {error}, in\n{block}") from error


Place = tuple[int, int]


def retuned(rows: Sequence[Row], form: str, wanted: Mapping[Place, Row]) -> list[Row]:
    """The rows of one op, arch and state dtype after one form was tuned; those of other forms stay.

    Args:
        wanted: what places get. They hold up to the next place that has a row of the form or gets one; places that are
            not named keep what they had.
    A row is written only where something changes, and stays as it is, with its source, where it means what it meant.
    """
    before = [row for row in rows if row.form == form]
    if all((row := applying(before, place)) and row.launches_as(here) for place, here in wanted.items()):
        return list(rows)
    known = [*(row.place for row in before), *wanted]
    windows, heads = (sorted({place[axis] for place in known}) for axis in (0, 1))
    made: list[Row] = []
    for place in product(windows, heads):
        here, there = wanted.get(place) or applying(before, place), applying(made, place)
        if here is not None and (there is None or not there.launches_as(here)):
            made.append(_placed(here, place, before))
    others = [row for row in rows if row.form != form]
    at = next((number for number, row in enumerate(rows) if row.form == form), len(rows))
    return [*others[:at], *made, *others[at:]]


def applying(rows: Iterable[Row], place: Place) -> Row | None:
    """Of rows of one form, that which applies at a place: for the longest window, then for the largest grid."""
    window, heads = place
    found = [row for row in rows if row.min_tokens <= window and row.min_heads <= heads]
    return max(found, key=lambda row: row.place, default=None)


def _placed(row: Row, place: Place, before: Sequence[Row]) -> Row:
    """The row at its new place; as it was written before where it stood there already."""
    for old in before:
        if old.place == place and old.launches_as(row):
            return old
    min_tokens, min_heads = place
    return replace(row, min_tokens=min_tokens, min_heads=min_heads, text=None)


def merged(text: str, op: str, arch: int, state_dtype: str, new: Sequence[Row]) -> str:
    """The file with the rows of one op, arch and state dtype replaced, where the first of them stood.

    Where there are none yet, the new ones come behind the op's last row of this arch or an older one.
    """
    header, rows = read_rows(text)
    key = (op, arch, state_dtype)
    keys = [(row.op, row.arch, row.state_dtype) for row in rows]
    if key in keys:
        at = keys.index(key)
    else:
        of_op = [number for number, row in enumerate(rows) if row.op == op and row.arch <= arch]
        at = of_op[-1] + 1 if of_op else len(rows)
    if [row for row, one in zip(rows, keys, strict=True) if one == key] == list(new):
        return text
    kept = [row for row, one in zip(rows, keys, strict=True) if one != key]
    at -= sum(one == key for one in keys[:at])
    blocks = [row.block() for row in [*kept[:at], *new, *kept[at:]]]
    return header + "".join(blocks).rstrip("\n") + "\n"


def write_table(path: Path, text: str) -> bool:
    """Replace the file at once, unless that changes nothing; whether it did.

    Raises:
        UsageError: the library could not load what would be written.
        BrokenEnvironmentError: it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if path.exists() and path.read_text(encoding="utf-8") == text:
            return False
        temporary.write_text(text, encoding="utf-8")
        load_table(temporary)
        temporary.replace(path)
    except OSError as error:
        raise BrokenEnvironmentError(f"{path}: cannot be written: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return True


def _toml(value: Any) -> str:
    """A string, a number or a boolean; JSON writes these as TOML does."""
    assert isinstance(value, str | int | float)
    return json.dumps(value, ensure_ascii=False)
