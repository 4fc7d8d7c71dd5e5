"""From older schema versions of records and nights to the newest, one step per version.

A step turns the JSON object of version N into one of version N + 1 and must not lose a measured number. Whoever raises
``SCHEMA_VERSION`` adds the step and a line to the schema history in ``records.py``. New fields with a default need
neither.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

Kind = Literal["record", "night"]
Step = Callable[[Kind, dict[str, Any]], dict[str, Any]]

# From version -> step to the next one. Version 1 is the first and the newest.
STEPS: Mapping[int, Step] = {}


class SchemaVersionError(ValueError):
    """The version of an object is none that this program can read."""


class NewerSchemaError(SchemaVersionError):
    """Written by a newer version of this program; nothing is wrong with the file."""


def upgrade(kind: Kind, obj: dict[str, Any], *, newest: int, steps: Mapping[int, Step] | None = None) -> dict[str, Any]:
    """The object in version ``newest``; one that is newest already comes back as it is.

    Raises:
        NewerSchemaError: its version is above ``newest``.
        SchemaVersionError: it has no version, or no step leads on from it.
    """
    steps = STEPS if steps is None else steps
    while (version := obj.get("schema_version")) != newest:
        if not isinstance(version, int) or isinstance(version, bool):
            raise SchemaVersionError(f"schema_version: expected a whole number, got {version!r}")
        if version > newest:
            raise NewerSchemaError(
                f"schema_version: {version}, this program reads up to {newest}; use the newer program that wrote it"
            )
        if version not in steps:
            raise SchemaVersionError(f"schema_version: {version}, and no step leads from it to {version + 1}")
        obj = {**steps[version](kind, dict(obj)), "schema_version": version + 1}
    return obj
