"""Files that a reader finds as they were or as they are to be, whatever happens in between."""

import os
from pathlib import Path

import msgspec

from .exits import BrokenEnvironmentError


def json_bytes(content: object) -> bytes:
    """Strict JSON for people and programs: indented, fields in their own order."""
    return msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n"


def replace_file(path: Path, data: bytes, next_step: str = "make room there") -> Path:
    """Put ``data`` in the place of what ``path`` holds, if anything.

    Raises:
        BrokenEnvironmentError: it cannot be written; the old one is there still.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise BrokenEnvironmentError(f"{path}: cannot be written: {error.strerror}", next_step) from error
