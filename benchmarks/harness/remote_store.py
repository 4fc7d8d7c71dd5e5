"""A store at an fsspec URL: every file an object of its own, kept in a folder of this machine once it was read.

Nothing that several writers share is ever read, changed and written back: a record or night is a new object under a
name of its own, so writers never meet, and merging two stores is putting their objects side by side, in any order.
"""

import os
import re
from collections.abc import Iterable, Sequence
from contextlib import nullcontext, suppress
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import AlreadyStoredError, RemoteError, UnsentError
from .objects import Fact, Objects
from .record_files import samples_path
from .store import Store
from .store_folder import FOLDER_NAME, KINDS, Kind

if TYPE_CHECKING:
    import pyarrow as pa

    from .records import Night, Record

BATCH = 200  # objects asked for at once: about a hundred MB of records in memory
PROBE = ".recoverssm-store"  # written anew by whoever is to write more: it belongs to nobody
UNSENT = "unsent"  # folder of marks: what was stored here and may not have reached the URL
RECENT_MONTHS = 6
MONTH = len("202611")  # ids begin with their time


def open_remote_store(url: str, *, writable: bool = True) -> Store:
    """The store at ``url``. What an earlier run stored and could not send is sent first.

    Raises:
        MissingPackageError, RemoteError: the URL cannot be used; it is to be written and can only be read.
    """
    objects = Objects(url)
    if writable and not objects.creates:  # two writers could then lose what one of them wrote
        raise RemoteError(f"{url}: such a store can only be read; write to s3://, gs://, sftp:// or a folder")
    return RemoteStore(cache_folder(objects.url), objects, writable=writable)


def cache_folder(url: str) -> Path:
    """Where this user keeps what was read of a URL: below RECOVERSSM_CACHE_DIR, or the user's folder of caches."""
    base = os.environ.get("RECOVERSSM_CACHE_DIR") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "recoverssm")
    readable = "".join(c if c.isalnum() else "-" for c in url)[:60].strip("-")
    return Path(base).expanduser() / "stores" / f"{readable}-{sha256(url.encode()).hexdigest()[:10]}"


class RemoteStore(Store):
    """The store of ``objects``; ``folder`` holds what was read of it, and may be removed when nothing is unsent."""

    def __init__(self, folder: Path, objects: Objects, *, writable: bool = True) -> None:
        super().__init__(folder, writable=writable)
        self.name = objects.url
        self._objects = objects
        self._listed: dict[tuple[str, str, str], dict[str, Fact]] = {}
        self._read_now: set[str] = set()  # in the life of this object
        self._models: dict[str, list[str]] = {}
        self._is_there = writable or any(self.gpu_models(kind) for kind in KINDS)
        if self._is_there:
            folder.mkdir(parents=True, exist_ok=True)
        if writable:
            self._send_unsent()

    @property
    def is_there(self) -> bool:
        return self._is_there

    def require_space(self, num_bytes: int) -> None:
        """And raise RemoteError where the URL refuses to be written. One that is away for now is sent to later."""
        super().require_space(num_bytes)
        try:
            self._objects.put(PROBE, b"")
        except RemoteError as error:
            if isinstance(error.__cause__, FileNotFoundError | PermissionError):
                raise

    def fetch(self, ids: Iterable[str] | None = None, *, kinds: Sequence[Kind] = KINDS) -> None:
        wanted = None if ids is None else set(ids)
        for kind in kinds:
            self._fetch(kind, wanted)

    def check(self) -> None:
        """Tidy up here. Files are checked as they are read: a fleet's are not fetched to look at each."""
        self._set_interrupted_aside()

    def samples(self, record: "Record") -> "pa.Table":
        self._fetch("records", {record.id})
        return super().samples(record)

    def accept_night(self, night: "Night") -> Path:
        self._fetch("nights", {night.id})
        return super().accept_night(night)

    def _list(self, kind: str, model: str, prefix: str = "") -> dict[str, Fact]:
        """Files of ours, each listed once in the life of this object."""
        whole = self._listed.get((kind, model, ""))
        key = (kind, model, prefix)
        if whole is None and key not in self._listed:
            found = self._objects.facts(f"{kind}/{model}", prefix)
            # Names are the server's word, and become files here.
            ours = re.compile(rf"{kind}/{re.escape(model)}/{FOLDER_NAME.pattern}\.(json|parquet)", re.IGNORECASE)
            self._listed[key] = {name: fact for name, fact in found.items() if ours.fullmatch(name)}
        return self._listed[key] if whole is None else whole

    def gpu_models(self, kind: Kind = "nights") -> list[str]:
        """Those too whose files others took away meanwhile."""
        if kind not in self._models:
            here = [path.name for path in (self.folder / kind).glob("*")]
            found = {name for name in (*self._objects.folders(kind), *here) if FOLDER_NAME.fullmatch(name)}
            self._models[kind] = sorted(found)
        return self._models[kind]

    def _ids(self, kind: Kind, gpu_model: str, newest: int | None) -> set[str]:
        return self._newest(kind, gpu_model, newest, None) if newest else self._listed_ids(kind, gpu_model)

    def _fetch(self, kind: Kind, ids: set[str] | None, gpu_model: str = "*") -> None:
        for model in self.gpu_models(kind) if gpu_model == "*" else [gpu_model]:
            is_listed = ids is None or (kind, model, "") in self._listed
            for month in [""] if is_listed else sorted({name[:MONTH] for name in ids or ()}):
                listed = self._list(kind, model, month)
                wanted = [name for name in listed if ids is None or _id(name) in ids]
                self._download([name for name in wanted if not self._has(name, listed[name])], listed)
            if ids is None:
                self._forget_removed(kind, model)

    def _fetch_json(self, ids: set[str], gpu_model: str) -> None:
        """Records of one GPU model without their samples, and without a listing: a record never changes."""
        names = [f"records/{gpu_model}/{name}.json" for name in sorted(ids) if FOLDER_NAME.fullmatch(name.lower())]
        self._download([name for name in names if not (self.folder / name).exists()], {})

    def _has(self, name: str, fact: Fact) -> bool:
        path = self.folder / name
        if not path.exists():
            return False
        have = path.stat()
        if fact.size is not None and have.st_size != fact.size:
            return False
        if not name.startswith("nights/"):
            return True  # what is migrated or thinned has another size; an acceptance may be worded anew
        if fact.size is None or fact.changed_ns is None:
            return name in self._read_now
        return have.st_mtime_ns >= fact.changed_ns

    def _download(self, names: Sequence[str], listed: dict[str, Fact]) -> None:
        """Samples before their record, as a store is written; what is not there any more stays away."""
        ordered = sorted(names, key=lambda name: name.endswith(".json"))
        for at in range(0, len(ordered), BATCH):
            found = self._objects.get(ordered[at : at + BATCH])
            with self._locked():  # not while the network takes its time: others on this machine store records meanwhile
                for name, content in found.items():
                    self._keep(name, content, listed.get(name))

    def _keep(self, name: str, content: bytes, fact: Fact | None) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        aside.write_bytes(content)
        if fact is not None and fact.changed_ns:
            os.utime(aside, ns=(fact.changed_ns, fact.changed_ns))
        aside.replace(path)
        self._read_now.add(name)

    def _forget_removed(self, kind: str, model: str) -> None:
        """Files that others took away, as they could not be read; samples of a record of this moment stay with it."""
        listed = self._list(kind, model)
        with self._locked():
            for path in (self.folder / kind / model).glob("*.*"):
                if self._name(path) not in listed and not self._mark(path.with_suffix(".json")).exists():
                    path.unlink(missing_ok=True)

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
        if not self.is_there:
            return []
        if newest is not None and ids is None and gpu_model != "*":
            ids = self._newest(kind, gpu_model, newest, before)
        if kind == "records" and ids is not None and gpu_model != "*" and not samples:
            self._fetch_json(ids, gpu_model)
        else:
            self._fetch(kind, ids, gpu_model)
        return super().files(kind, ids, gpu_model, newest=newest, before=before)

    def _newest(self, kind: Kind, model: str, count: int, before: str | None) -> set[str]:
        """Ids of the newest so many, month by month backwards where a listing can be narrowed, so that years need not
        be listed.
        """
        found: set[str] = set()
        if self._objects.narrows_listings:
            ahead = datetime.now(UTC) + timedelta(days=1)  # as a host's clock may be
            month = before[:MONTH] if before else f"{ahead:%Y%m}"
            for _ in range(RECENT_MONTHS):
                found |= self._listed_ids(kind, model, month, before)
                month = f"{datetime.strptime(month, '%Y%m').replace(tzinfo=UTC) - timedelta(days=1):%Y%m}"
                if len(found) >= count:
                    break
        if len(found) < count:  # of a model that was not measured for long, or not so often
            found = self._listed_ids(kind, model, "", before)
        return set(sorted(found)[-count:])

    def _listed_ids(self, kind: Kind, model: str, month: str = "", before: str | None = None) -> set[str]:
        ids = {_id(name) for name in self._list(kind, model, month) if name.endswith(".json")}
        return {name for name in ids if before is None or name <= before}

    def _set_interrupted_aside(self) -> None:
        """What a killed download left here is no damage: it is fetched again."""
        left = [path for path in self.folder.glob("[rn]*/*/*") if path.suffix in (".tmp", ".parquet")]
        with self._locked() if left else nullcontext():
            for path in left:
                if path.suffix == ".tmp" or (path.suffix == ".parquet" and not path.with_suffix(".json").exists()):
                    path.unlink(missing_ok=True)

    def _write(self, contents: dict[Path, bytes]) -> None:
        """As in a folder, under a mark that goes once the objects are at the URL."""
        self._require_writable()
        *_, last = contents
        mark = self._mark(last)
        is_first = not mark.exists()
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
        try:
            super()._write(contents)
        except BaseException:
            if is_first:
                mark.unlink(missing_ok=True)
            raise

    def _added(self, paths: list[Path], what: str) -> None:
        try:
            self._send(paths)
        except RemoteError as error:
            raise UnsentError(
                f"{what} is stored, but not at {self.name} ({error}). Nothing is lost: it lies in {self.folder} and is "
                "sent when a command opens this store for writing again"
            ) from error

    def _send(self, paths: Sequence[Path]) -> None:
        """Bring the URL to what ``paths`` are here: new, changed, or moved below ``quarantine/``."""
        self._listed.clear()
        self._models.clear()
        if self._mark(paths[-1]).exists():
            self._send_new(paths)
        else:
            for path in paths:
                self._objects.put(self._name(path), path.read_bytes())
                self._stamp(path)
            kept = self.folder / "quarantine"
            moved = [path.relative_to(kept).as_posix() for path in paths if path.is_relative_to(kept)]
            self._objects.remove(moved)

    def _send_new(self, paths: Sequence[Path]) -> None:
        """Samples first: a record exists once its JSON does, here as in a folder."""
        *samples, last = paths
        name, content = self._name(last), last.read_bytes()
        there = self._objects.get([name]).get(name)
        if there is None:
            for path in samples:  # over those of a writer that was killed before it came to the JSON
                self._objects.put(self._name(path), path.read_bytes())
                self._stamp(path)
            try:
                self._objects.put(name, content, new=True)
            except FileExistsError:
                there = self._objects.get([name]).get(name)
        if there is not None and there != content:
            for path in (*paths, self._mark(last)):
                path.unlink(missing_ok=True)
            raise AlreadyStoredError(f"{self.name}/{name}: another one of this id is there; nothing was written")
        self._stamp(last)
        self._mark(last).unlink(missing_ok=True)

    def _stamp(self, path: Path) -> None:
        """With the time that the URL says, by which a listing shows whether the object changed since."""
        if changed := self._objects.fact(self._name(path)).changed_ns:
            os.utime(path, ns=(changed, changed))

    def _send_unsent(self) -> None:
        with self._locked():
            for mark in sorted((self.folder / UNSENT).glob("*/*/*.json")):
                path = self.folder / mark.relative_to(self.folder / UNSENT)
                if path.exists():
                    parts = [samples_path(path), path] if path.parent.parent.name == "records" else [path]
                    with suppress(AlreadyStoredError):  # sent before it was killed, and accepted by an owner since
                        self._send(parts)
                mark.unlink(missing_ok=True)  # without its JSON a record was never stored

    def _name(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()

    def _mark(self, path: Path) -> Path:
        return self.folder / UNSENT / path.relative_to(self.folder)


def _id(name: str) -> str:
    """Of the record or night that an object is of."""
    return name[name.rfind("/") + 1 : name.rfind(".")]
