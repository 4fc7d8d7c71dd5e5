"""What the last build wrote or worked out that this one would make again, bit for bit: it is left as it is.

Files belong together in parts. A part is left alone where neither what it is made of nor the code has changed, and
every file of it is still what was written, by SHA-256. A damaged list counts as empty.
"""

import hashlib
import sys
from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from reports.digests import replace_file

ROOT = Path(__file__).parent.parent
CODE = ("reports/**/*.py", "reports/*.toml", "benchmarks/**/*.py", "ci/**/*.py", "ci/*.toml")
LIBRARIES = ("msgspec", "numpy", "pyarrow", "ruptures", "scipy")  # whose results are on pages


T = TypeVar("T")


class _Part(msgspec.Struct, frozen=True):
    inputs: str
    files: dict[str, str]  # place in the site: SHA-256


class _Result(msgspec.Struct, frozen=True):
    inputs: str
    value: Any


class _Content(msgspec.Struct):
    parts: dict[str, _Part] = {}
    results: dict[str, _Result] = {}


class Kept:
    """What an earlier build left in the file at ``path``; nothing, and nothing is written, where that is None."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._found = _load(path) if path else _Content()
        self._now = _Content()

    def unchanged(self, name: str, inputs: bytes, out: Path) -> list[str] | None:
        """Places of the files of a part that need no writing; None where it has to be made."""
        part = self._found.parts.get(name)
        if part is None or part.inputs != _told(inputs):
            return None
        if any(_hash(out / place) != told for place, told in part.files.items()):
            return None
        self._now.parts[name] = part
        return list(part.files)

    def made(self, name: str, inputs: bytes, files: dict[str, bytes]) -> None:
        """Tell what a part was made into: SHA-256 by place."""
        if self._path is not None:
            self._now.parts[name] = _Part(_told(inputs), {place: told.hex() for place, told in files.items()})

    def result(self, name: str, inputs: bytes, kind: type[T], make: Callable[[], T]) -> T:
        """What was made of the same inputs by the same code before, or is made now."""
        if self._path is None:
            return make()
        known = self._found.results.get(name)
        if known is None or known.inputs != _told(inputs):
            known = _Result(_told(inputs), msgspec.to_builtins(make()))
        self._now.results[name] = known
        return msgspec.convert(known.value, kind)

    def save(self) -> None:
        """What this build asked for. Raises OSError."""
        if self._path is not None and self._now != self._found:
            body = msgspec.json.encode(self._now)
            replace_file(self._path, hashlib.sha256(body).hexdigest().encode() + b"\n" + body)


def _load(path: Path) -> _Content:
    try:
        told, _, body = path.read_bytes().partition(b"\n")
        if told == hashlib.sha256(body).hexdigest().encode():
            return msgspec.json.decode(body, type=_Content)
    except (OSError, msgspec.MsgspecError):
        pass
    return _Content()


def _hash(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def _told(inputs: bytes) -> str:
    return hashlib.sha256(_code() + inputs).hexdigest()


@cache
def _code() -> bytes:
    """Of all that makes data files beside records."""
    told = hashlib.sha256(sys.version.encode())
    for name in LIBRARIES:
        try:
            told.update(f"{name} {version(name)}\n".encode())
        except PackageNotFoundError:
            told.update(f"no {name}\n".encode())
    for path in sorted(path for glob in CODE for path in ROOT.glob(glob)):
        told.update(path.read_bytes())
    return told.digest()
