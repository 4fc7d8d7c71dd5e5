"""Records and nights as files: strict JSON, of any schema version that a step leads from."""

import math
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from .migrations import Kind, upgrade
from .records import SCHEMA_VERSION, Check, Night, Record

T = TypeVar("T", Record, Night)

BEGINNING = b'{\n "schema_version": %d,\n' % SCHEMA_VERSION  # of what ``encode`` wrote


def encode(obj: Record | Night) -> bytes:
    """Strict JSON, indented, ending in a newline. Raises ValueError on NaN or infinity."""
    _refuse_non_finite(msgspec.to_builtins(obj), type(obj).__name__)
    return msgspec.json.format(msgspec.json.encode(obj), indent=1) + b"\n"


def read_record(path: Path) -> Record:
    """Of any schema version. Raises OSError, and as ``_decode``."""
    return decode_record(path.read_bytes())


def read_night(path: Path) -> Night:
    """Of any schema version. Raises OSError, and as ``_decode``."""
    return decode_night(path.read_bytes())


def decode_record(data: bytes) -> Record:
    """Of any schema version. Raises as ``_decode``."""
    return _decode(data, "record", Record)


def decode_checks(data: bytes) -> list[Check]:
    """Of a record of any schema version, whose other parts are passed over. Raises as ``_decode``."""
    if _is_newest(data):
        return msgspec.json.decode(data, type=_Checks).checks
    return decode_record(data).checks


def decode_night(data: bytes) -> Night:
    """Of any schema version. Raises as ``_decode``."""
    return _decode(data, "night", Night)


class _Checks(msgspec.Struct, frozen=True):
    checks: list[Check]


class Header(msgspec.Struct, frozen=True):
    """What every file of a store begins with."""

    id: str = ""
    schema_version: int | None = None


def schema_version(data: bytes) -> int | None:
    """Of a record or night, whatever else it holds. Raises msgspec.ValidationError or msgspec.DecodeError."""
    return msgspec.json.decode(data, type=Header).schema_version


def read_header(path: Path, kind: Kind) -> Header:
    """Read past the content, which need be no more than JSON; a file of an older schema version is read whole.

    About four times as fast as reading the content. Raises OSError, and as ``_decode``.
    """
    data = path.read_bytes()
    try:
        header = msgspec.json.decode(data, type=Header)
    except RecursionError as error:
        raise msgspec.DecodeError("JSON is nested too deeply") from error
    if header.schema_version != SCHEMA_VERSION:
        decode_record(data) if kind == "record" else decode_night(data)
    return header


def _decode(data: bytes, kind: Kind, expected: type[T]) -> T:
    """An object of the newest schema version.

    Raises:
        msgspec.ValidationError, msgspec.DecodeError: both name the place.
        NewerSchemaError, SchemaVersionError: no step leads from its version to ours.
    """
    try:
        if _is_newest(data):
            return msgspec.json.decode(data, type=expected)
        older = msgspec.json.decode(data, type=dict[str, Any])
        return msgspec.convert(upgrade(kind, older, newest=SCHEMA_VERSION), expected)
    except RecursionError as error:
        raise msgspec.DecodeError("JSON is nested too deeply") from error


def _is_newest(data: bytes) -> bool:
    """Whether data is of our schema version, told by its beginning where it can: a record has half a MB."""
    return data.startswith(BEGINNING) or schema_version(data) == SCHEMA_VERSION


def json_schema() -> dict[str, Any]:
    """JSON Schema of records and nights, as published with the site."""
    (_, _), components = msgspec.json.schema_components((Record, Night))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$defs": components,
        "oneOf": [{"$ref": "#/$defs/Record"}, {"$ref": "#/$defs/Night"}],
    }


def _refuse_non_finite(value: Any, where: str) -> None:
    # msgspec writes NaN as null, which would read back as "no value" without a reason.
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{where}: expected a finite number, got {value}; store None with a reason instead")
    if isinstance(value, dict):
        for key, item in value.items():
            _refuse_non_finite(item, f"{where}.{key}")
    if isinstance(value, list):
        for index, item in enumerate(value):
            _refuse_non_finite(item, f"{where}[{index}]")


def samples_path(record_path: Path) -> Path:
    """The Parquet file beside a record's JSON."""
    return record_path.with_suffix(".parquet")
