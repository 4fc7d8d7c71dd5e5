"""Rewrites a store's records and nights in the newest schema version, in place or into a new folder."""

import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.harness.migrations import Kind, Step, upgrade
from benchmarks.harness.record_files import encode, samples_path, schema_version
from benchmarks.harness.records import SCHEMA_VERSION, Night, Record
from benchmarks.harness.store import Store
from ci.exits import CommandError, Exit, UsageError

from .layout import Files, list_files

UNREADABLE = (OSError, ValueError, msgspec.MsgspecError)


class MigrationError(CommandError):
    """Files that cannot be brought to the newest version; nothing was written."""

    code = Exit.INVALID


@dataclass(slots=True)
class Migrated:
    """Files by name; with ``dry_run`` what would be rewritten."""

    rewritten: list[str] = field(default_factory=list)
    newest_already: int = 0


def migrate(
    store: Store, *, out: Path | None = None, dry_run: bool = False, steps: Mapping[int, Step] | None = None
) -> Migrated:
    """Bring every JSON file to ``SCHEMA_VERSION``; samples stay as they are.

    In place each file is replaced whole, and readers accept every version, so an interrupted migration leaves a good
    store and a further one goes on. Into ``out``, a folder that must not exist, the whole store comes at once.

    Args:
        steps: of ``benchmarks.harness.migrations`` when left out.
    Raises:
        UsageError: ``out`` exists.
        MigrationError: names every file that cannot be read or brought on.
    """
    if out is not None and out.exists():
        raise UsageError(f"--out {out}: exists; give a folder that does not")
    files = list_files(store.folder)
    older = _examine(files, steps)
    result = Migrated([files.name(path) for path in older], len(files.records) + len(files.nights) - len(older))
    if dry_run:
        return result
    if out is not None:
        _write_anew(files, older, out, steps)
    elif older:
        store.rewrite(_rewritten(older, files, steps), f"{len(older)} files to schema version {SCHEMA_VERSION}")
        store.publish()
    return result


def _examine(files: Files, steps: Mapping[int, Step] | None) -> list[Path]:
    older, problems = [], []
    for path in (*files.records, *files.nights):
        try:
            data = path.read_bytes()
            _upgraded(path, data, files, steps)
            if schema_version(data) != SCHEMA_VERSION:
                older.append(path)
        except UNREADABLE as error:
            problems.append(f"{files.name(path)}: {error}")
    if problems:
        raise MigrationError("nothing was rewritten:\n" + "\n".join(problems), "python -m ci history verify")
    return older


def _rewritten(paths: list[Path], files: Files, steps: Mapping[int, Step] | None) -> Iterator[tuple[Path, bytes]]:
    for path in paths:
        yield path, encode(_upgraded(path, path.read_bytes(), files, steps))


def _upgraded(path: Path, data: bytes, files: Files, steps: Mapping[int, Step] | None) -> Record | Night:
    is_record = files.name(path).startswith("records/")
    kind: Kind = "record" if is_record else "night"
    expected: type[Record | Night] = Record if is_record else Night
    raw = upgrade(kind, msgspec.json.decode(data, type=dict[str, Any]), newest=SCHEMA_VERSION, steps=steps)
    obj = msgspec.convert(raw, expected)
    if obj.id != path.stem:
        raise ValueError(f"holds id {obj.id}")
    return obj


def _write_anew(files: Files, older: list[Path], out: Path, steps: Mapping[int, Step] | None) -> None:
    temporary, to_rewrite = out.with_name(f".{out.name}.{os.getpid()}.tmp"), set(older)
    try:
        for path in (*files.records, *files.nights):
            target = temporary / files.name(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            data = path.read_bytes()
            target.write_bytes(encode(_upgraded(path, data, files, steps)) if path in to_rewrite else data)
            if samples_path(path).exists():
                shutil.copyfile(samples_path(path), samples_path(target))
        os.sync()
        temporary.rename(out)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
