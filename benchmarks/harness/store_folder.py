"""The folder of a store: files are listed, come whole or not at all, and are set aside where they cannot be read."""

import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeVar

import msgspec
import pyarrow as pa
from filelock import FileLock, Timeout

from .errors import AlreadyStoredError, StoreError, StoreFullError
from .migrations import NewerSchemaError
from .record_files import Header, samples_path
from .records import Head, Night

T = TypeVar("T", bound=Head | Night | Header)

Kind = Literal["nights", "records"]
KINDS: tuple[Kind, ...] = ("nights", "records")
FOLDER_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
LOCK_TIMEOUT_S = 120.0  # writers hold the lock for milliseconds; longer means that one of them hangs


class StoreFolder:
    """Files of records and nights, by the layout that ``store.py`` tells.

    Attributes:
        name: by which ``open_store`` finds it.
        quarantined: files that could not be read so far, each as ``path: reason``. In a writable store they have
            been moved below ``quarantine/``; one that is only read is left as it is.
    """

    def __init__(self, folder: Path, *, writable: bool = True) -> None:
        if folder.exists() and not folder.is_dir():
            raise StoreError(f"store: expected a folder, got the file {folder}")
        self.folder, self.writable, self.name = folder, writable, str(folder)
        self.quarantined: list[str] = []
        self._lock = FileLock(folder / ".lock")

    @property
    def is_there(self) -> bool:
        """Whether anything is kept under this name; an empty folder is."""
        return self.folder.is_dir()

    def require_space(self, num_bytes: int) -> None:
        """Raise OSError where ``num_bytes`` cannot be written; leaves nothing behind."""
        probe = self.folder / f".probe.{os.getpid()}.tmp"
        with self._locked():
            try:
                _write_through(probe, bytes(num_bytes))
            finally:
                probe.unlink(missing_ok=True)

    def rewrite(self, contents: Iterable[tuple[Path, bytes]], what: str) -> None:
        """Replace files, each whole at any moment. For migrations, acceptances and thinned samples alone.

        Raises:
            StoreError: opened for reading only, or another writer holds the store for too long.
        """
        self._require_writable()
        with self._locked():
            written = []
            for path, data in contents:
                temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
                _write_through(temporary, data)
                written.append(temporary.replace(path))
            for folder in {path.parent for path in written}:
                _sync_folder(folder)
            self._added(written, what)

    def gpu_models(self, kind: Kind = "nights") -> list[str]:
        """Those with a night, or with a record; CPUs and architectures too."""
        return sorted(path.name for path in (self.folder / kind).glob("*") if FOLDER_NAME.fullmatch(path.name))

    def ids(self, kind: Kind, gpu_model: str | None = None, *, newest: int | None = None) -> list[str]:
        """Ids of nights or records of one GPU model or of all, the newest so many of each, in order of time.

        No file is opened: an id tells time and commit (``commit_of``).
        """
        models = [gpu_model] if gpu_model else self.gpu_models(kind)
        return sorted({name for model in models for name in self._ids(kind, model, newest)})

    def _ids(self, kind: Kind, gpu_model: str, newest: int | None) -> Iterable[str]:
        return (path.stem for path in self.files(kind, None, gpu_model, newest=newest))

    def files(
        self,
        kind: Kind,
        ids: set[str] | None,
        gpu_model: str = "*",
        *,
        newest: int | None = None,
        before: str | None = None,
        samples: bool = True,
    ) -> list[Path]:
        """JSON files in order of time. Without ``samples`` a store elsewhere need not bring those."""
        if ids is not None and gpu_model != "*":
            # Ids come from nights that others wrote; one that is no plain name is of no record.
            named = (self._path(kind, gpu_model, name) for name in ids if FOLDER_NAME.fullmatch(name.lower()))
            paths = [path for path in named if path.exists()]
        else:
            found = (self.folder / kind).glob(f"{gpu_model}/*.json")
            paths = [path for path in found if ids is None or path.stem in ids]
        paths = sorted((path for path in paths if before is None or path.stem <= before), key=lambda path: path.name)
        return paths if newest is None else paths[-newest:]

    def _record_path(self, gpu_model: str, record_id: str) -> Path:
        return self._path("records", gpu_model, record_id)

    def _path(self, kind: str, gpu_model: str, name: str) -> Path:
        for part in (gpu_model, name.lower()):
            if not FOLDER_NAME.fullmatch(part):
                raise StoreError(f"{kind}: expected a plain name without folders, got {part!r}")
        return self.folder / kind / gpu_model / f"{name}.json"

    def _read(self, path: Path, read: Callable[[Path], T], check: Callable[[], None] | None = None) -> T | None:
        try:
            obj = read(path)
            if obj.id != path.stem:
                raise ValueError(f"holds id {obj.id}")
            if check is not None:
                check()
        except (OSError, ValueError, msgspec.MsgspecError, pa.ArrowException) as error:
            if _is_newer(error):
                self._note([path], f"left in place, for a newer version of this program wrote it: {error}")
            else:
                self._set_aside(path, f"{type(error).__name__}: {error}")
            return None
        return obj

    def _set_interrupted_aside(self) -> None:
        """Name temporary files and tables without JSON that a killed writer left; move them where that is allowed."""
        left = list(_interrupted(self.folder))
        if left and not self.writable:
            self._note(left, "a write was interrupted")
        elif left:
            try:
                with self._locked():
                    # With the lock held no writer is at work, so whatever is still there was left behind.
                    for path in left:
                        if path.exists() and _is_interrupted(path):
                            self._set_aside(path, "a write was interrupted")
            except OSError as error:
                self._note(left, f"a write was interrupted (not set aside: {error.strerror})")

    def _set_aside(self, path: Path, reason: str) -> None:
        """Move what cannot be read below ``quarantine/`` with the reason; only name it where nothing can be moved."""
        if not self.writable:
            self._note([path], reason)
            return
        try:
            moved = self._move_aside(path, reason)
        except OSError as error:  # a full or read-only disk must not keep the readable files from being used
            self._note([path], f"{reason} (not set aside: {error.strerror})")
        else:
            if moved:
                self._note([path], reason)

    def _move_aside(self, path: Path, reason: str) -> bool:
        """Whether there was something to move: another process may have been quicker."""
        parts = [path, samples_path(path)] if path.parts[-3] == "records" else [path]
        with self._locked():
            if not path.exists():
                return False
            moved = []
            for part in parts:
                target = self.folder / "quarantine" / part.relative_to(self.folder)
                target.parent.mkdir(parents=True, exist_ok=True)
                if part.exists():
                    moved.append(part.replace(target))
            target = self.folder / "quarantine" / path.relative_to(self.folder)
            explained = target.with_name(f"{target.name}.reason.txt")
            explained.write_text(f"{reason}\n", encoding="utf-8")
            self._added([*moved, explained], f"set {path.name} aside")
        return True

    def _note(self, paths: Iterable[Path], reason: str) -> None:
        notes = [f"{path.relative_to(self.folder)}: {reason}" for path in paths]
        self.quarantined += [note for note in notes if note not in self.quarantined]

    def _added(self, paths: list[Path], what: str) -> None:
        """Called after files have come under their final names."""

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Alone among writers, in this process and others; may be entered again while it is held."""
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire(timeout=LOCK_TIMEOUT_S)
        except Timeout as error:
            raise StoreError(f"{self.folder}: another writer has held it for {LOCK_TIMEOUT_S:g} s; end it") from error
        try:
            yield
        finally:
            self._lock.release()

    def _require_writable(self) -> None:
        if not self.writable:
            raise StoreError(f"{self.folder}: opened for reading only; nothing was written")

    def _write(self, contents: dict[Path, bytes]) -> None:
        """All files, each by a temporary file in its own folder, fsync and rename; or none of them.

        What is written exists once its last file does; files without it were left by a killed writer: replaced.
        """
        self._require_writable()
        placed: list[Path] = []
        temporary = {path: path.with_name(f".{path.name}.{os.getpid()}.tmp") for path in contents}
        try:
            with self._locked():
                *_, last = contents
                if last.exists():
                    raise AlreadyStoredError(f"{last}: exists; a store is append-only, so nothing was written")
                for path, data in contents.items():
                    _make_folder(path.parent)
                    _write_through(temporary[path], data)
                for path in contents:
                    temporary[path].rename(path)
                    placed.append(path)
                for folder in {path.parent for path in contents}:
                    _sync_folder(folder)
        except BaseException as error:
            for path in (*temporary.values(), *placed):
                path.unlink(missing_ok=True)
            if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}:
                raise StoreFullError(
                    f"{self.folder}: no space left for {', '.join(path.name for path in contents)}; nothing was left "
                    "half written. Make room, or give another --store, and add it again"
                ) from error
            raise


def _interrupted(folder: Path) -> Iterator[Path]:
    """As ``_is_interrupted``, without a question to the disk for each file of a store of years."""
    for place in folder.glob("[rn]*/*/"):
        with os.scandir(place) as entries:
            names = {entry.name for entry in entries}
        for name in names:
            stem, _, ending = name.rpartition(".")
            if ending == "tmp" or (ending == "parquet" and f"{stem}.json" not in names):
                yield place / name


def _is_interrupted(path: Path) -> bool:
    if path.suffix == ".tmp":
        return True
    return path.suffix == ".parquet" and not path.with_suffix(".json").exists()


def _is_newer(error: Exception) -> bool:
    """Whether a program newer than this one wrote the file, as others who share a store may have."""
    return isinstance(error, NewerSchemaError) or (
        isinstance(error, msgspec.ValidationError) and "unknown field" in str(error)
    )


def _write_through(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _make_folder(folder: Path) -> None:
    new = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for place in new:
        _sync_folder(place.parent)  # else a loss of power takes the folder with all that was synced inside


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
