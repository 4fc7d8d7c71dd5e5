"""Records and nights in a folder: append-only, whole or not there, and what cannot be read is set aside by name.

What may come into a stored file is an owner's acceptance of a night; what may go from one is raw samples.

Layout: ``records/<gpu_model>/<id>.json`` with ``<id>.parquet`` beside it, ``nights/<gpu_model>/<id>.json``, and
``quarantine/`` with the same paths below it.
"""

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from .errors import CorruptRecordError
from .record_files import encode, read_header, read_night, read_record, samples_path
from .records import Head, Night, Record
from .samples import SCHEMA, read_samples, schema_problem
from .store_folder import KINDS, Kind, StoreFolder

H = TypeVar("H", bound=Head)

RECENT_NIGHTS = 400  # of one card over a year, of 25 cards of one model over two weeks
BRANCH_PREFIX = "branch:"


def open_store(spec: str | Path, *, writable: bool = True) -> "Store":
    """The store that ``--store`` names: a folder (made when first written), ``branch:NAME`` of this repository, a URL.

    Raises:
        StoreError: the folder is no folder, git cannot check the branch out, or nothing here speaks to the URL.
    """
    if str(spec).startswith(BRANCH_PREFIX):
        from .branch_store import open_branch_store

        return open_branch_store(str(spec).removeprefix(BRANCH_PREFIX), writable=writable)
    if is_url(spec):
        from .remote_store import open_remote_store

        return open_remote_store(str(spec), writable=writable)
    return Store(Path(spec), writable=writable)


def is_url(spec: str | Path) -> bool:
    """Whether a store or site lies elsewhere, at a URL that fsspec understands."""
    return "://" in str(spec)


class Store(StoreFolder):
    """Records and nights in a folder."""

    def add_record(self, record: Record, samples: pa.Table) -> Path:
        """Write a record and its samples, both or neither; returns the path of the JSON file.

        Raises:
            ValueError: a number is not finite, or the table has other columns than ``samples.SCHEMA``.
            AlreadyStoredError, StoreFullError, StoreError: nothing was written.
        """
        if not samples.schema.equals(SCHEMA):
            raise ValueError(f"samples: expected the columns\n{SCHEMA}\ngot\n{samples.schema}")
        path = self._record_path(record.environment.gpu_model, record.id)
        buffer = io.BytesIO()
        pq.write_table(samples, buffer, compression="zstd", write_page_checksum=True)
        # The JSON comes last: a record exists once its JSON does.
        self._write({samples_path(path): buffer.getvalue(), path: encode(record)})
        self._added([samples_path(path), path], f"record {record.id}")
        return path

    def add_night(self, night: Night) -> Path:
        """Write a night; returns its path. Raises as ``add_record``."""
        path = self._path("nights", night.gpu_model, night.id)
        self._write({path: encode(night)})
        self._added([path], f"night {night.id}")
        self.publish()
        return path

    def accept_night(self, night: Night) -> Path:
        """Put an owner's acceptance into a stored night; returns its path. Nothing else of a night ever changes.

        Raises:
            CorruptRecordError: the store has no such night, or another one of that id.
            StoreError: as ``add_record``.
        """
        path = self._path("nights", night.gpu_model, night.id)
        stored = self._read(path, read_night)
        if night.acceptance is None or stored is None or stored.as_judged != night.as_judged:
            raise CorruptRecordError(f"{path}: expected the night {night.id} as it was judged, to accept it")
        self.rewrite([(path, encode(night))], f"accept night {night.id}")
        self.publish()
        return path

    def publish(self) -> None:
        """Hand what was added to whoever shares this store; a folder has nothing to do."""

    def fetch(self, ids: Iterable[str] | None = None, *, kinds: Sequence[Kind] = KINDS) -> None:
        """Have the files of these ids in ``folder``, or all files; a folder has them."""

    def records(self, ids: Iterable[str] | None = None, *, thorough: bool | None = None) -> list[Record]:
        """Readable records in order of time, all or those named; unreadable ones go to ``quarantined``.

        Ids that the store does not hold are left out.

        Args:
            thorough: verify every page of samples (10 ms a record), not only the table's frame (2 ms); by default of
                records that are asked for by id.
        """
        return list(self.each_record(ids, thorough=thorough))

    def each_record(self, ids: Iterable[str] | None = None, *, thorough: bool | None = None) -> Iterator[Record]:
        """``records`` one by one, for who keeps less than all of each: thousands of records fill gigabytes."""
        wanted = None if ids is None else set(ids)
        thorough = wanted is not None if thorough is None else thorough
        return self.read_each(read_record, partial(check_samples, thorough=thorough), wanted)

    def read_each(
        self,
        read: Callable[[Path], H],
        check: Callable[[Path], None] | None,
        wanted: set[str] | None = None,
        gpu_model: str = "*",
    ) -> Iterator[H]:
        """``each_record``, each as ``read`` makes it of its file; what that or ``check`` raises sets it aside.

        Args:
            check: of a record's samples, by the path of its JSON; None where samples are of no concern.
        """
        self._set_interrupted_aside()
        for path in self.files("records", wanted, gpu_model, samples=check is not None):
            record = self._read(path, read, None if check is None else partial(check, path))
            if record is not None:
                yield record

    def check(self) -> None:
        """Set files aside whose JSON cannot be read or is of no schema of ours, and records without samples.

        Of each GPU model the newest ``RECENT_NIGHTS`` and the records since: 0.3 to 0.8 ms for a record of 40 cases
        (half a MB), so under two seconds with five a night. What lies inside is checked when it is read.
        """
        self._set_interrupted_aside()
        recent = {model: self.files("nights", None, model, newest=RECENT_NIGHTS) for model in self.gpu_models()}
        since = {model: nights[0].stem for model, nights in recent.items() if len(nights) == RECENT_NIGHTS}
        for path in self.files("records", None):
            if path.stem >= since.get(path.parent.name, ""):
                self._read(path, partial(read_header, kind="record"), partial(_require_samples, path))
        for nights in recent.values():
            for path in nights:
                self._read(path, partial(read_header, kind="night"))

    def nights(
        self,
        gpu_model: str | None = None,
        *,
        newest: int | None = None,
        before: str | None = None,
        ids: set[str] | None = None,
        read: Callable[[Path], Night] = read_night,
    ) -> list[Night]:
        """Readable nights in order of time, of one GPU model or of all; those named, or the newest so many.

        Args:
            before: no newer night than this one; an id.
            read: what makes a night of its file.
        """
        paths = self.files("nights", ids, gpu_model or "*", newest=newest, before=before)
        return [night for path in paths if (night := self._read(path, read)) is not None]

    def newest_first(self, gpu_model: str) -> Iterator[Night]:
        """Recent nights of a GPU model, each read when it is asked for: for who needs the newest that is of a kind."""
        for name in reversed(self.ids("nights", gpu_model, newest=RECENT_NIGHTS)):
            yield from self.nights(gpu_model, ids={name})

    def recent_nights(
        self, gpu_model: str | None = None, *, newest: int | None = None, pinned: str | None = None
    ) -> list[Night]:
        """The newest nights of each GPU model, ``RECENT_NIGHTS`` if not said otherwise, and as many up to a pinned one:
        what commands look back at, however old the store is. In order of time.
        """
        found: dict[str, Night] = {}
        for model in [gpu_model] if gpu_model else self.gpu_models():
            for before in (pinned, None) if pinned else (None,):
                nights = self.nights(model, newest=newest or RECENT_NIGHTS, before=before)
                found |= {night.id: night for night in nights}
        return sorted(found.values(), key=lambda night: night.id)

    def samples(self, record: Record) -> pa.Table:
        """Every sample of a record. Raises CorruptRecordError, naming the file, when it cannot be read whole."""
        path = samples_path(self._record_path(record.environment.gpu_model, record.id))
        try:
            return read_samples(path)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise CorruptRecordError(f"{path}: {error}") from error


def check_samples(record_path: Path, *, thorough: bool) -> None:
    """Read every page of a record's samples, or look at their frame. Raises OSError, ValueError or Arrow's."""
    path = samples_path(record_path)
    if thorough:
        read_samples(path)
    elif problem := schema_problem(pq.read_schema(path)):
        raise ValueError(f"{path.name}: {problem}")


def _require_samples(record_path: Path) -> None:
    if not samples_path(record_path).is_file():
        raise ValueError(f"{samples_path(record_path).name}: missing")
