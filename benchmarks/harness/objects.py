"""Objects at any fsspec URL (s3, gs, http, sftp, ...): listed, read, and written whole or not at all."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import uuid4

from .errors import MissingPackageError, RemoteError

# Protocols whose objects appear whole under their name; elsewhere a file is written aside and renamed.
WHOLE_WRITES = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "memory"}
PREFIX_LISTS = {"s3", "s3a", "gs", "gcs"}  # whose packages hand the beginning of a name to the server
TYPED = {"s3": "ContentType", "s3a": "ContentType", "gs": "content_type", "gcs": "content_type"}  # and how to say so
SFTP, LOCAL = {"sftp", "ssh"}, {"file", "local"}
CREATES = {"s3", "s3a", "gs", "gcs", "memory", *SFTP, *LOCAL}  # that hold back a second object of one name, atomically


class Fact(NamedTuple):
    """What a listing says of an object; None where it does not say."""

    size: int | None
    changed_ns: int | None


class Objects:
    """Everything below one URL, by names relative to it.

    Credentials and endpoints are the package's own affair: environment variables (``AWS_ENDPOINT_URL``), its files,
    or fsspec's configuration.

    Raises:
        MissingPackageError: nothing here speaks this protocol; the message says what to install.
    """

    def __init__(self, url: str) -> None:
        try:
            import fsspec
        except ImportError as error:
            raise MissingPackageError(f"{url}: needs fsspec: pip install 'recoverssm[remote]'") from error
        self.url = url.rstrip("/")
        self.protocol = url.partition("://")[0]
        self.narrows_listings = self.protocol in PREFIX_LISTS
        self.creates = self.protocol in CREATES
        try:
            if self.protocol in SFTP:
                from .sftp import Sftp

                address = Sftp._get_kwargs_from_urls(self.url)
                self._fs, self._root = Sftp(**address, skip_instance_cache=True), Sftp._strip_protocol(self.url)
                return
            # No listing is kept: others write here too. Objects are small: s3fs need not ask for each one's size first,
            # to read it in parts.
            options = {"max_concurrency": 1} if self.protocol in ("s3", "s3a") else {}
            self._fs, root = fsspec.url_to_fs(self.url, use_listings_cache=False, skip_instance_cache=True, **options)
        except ImportError as error:
            how = "s3: pip install 'recoverssm[remote]'; sftp: pip install paramiko"
            raise MissingPackageError(f"{url}: {error} ({how})") from error
        except ValueError as error:
            raise RemoteError(
                f"{url}: expected a URL such as s3://bucket/prefix, gs://, https:// or sftp://: {error}"
            ) from error
        except Exception as error:  # some connect at once, and each raises its own kind
            raise RemoteError(f"{url}: cannot be reached: {type(error).__name__}: {error}") from error
        self._root = root.rstrip("/")

    def folders(self, name: str) -> list[str]:
        """Names of the folders right below one; none where it does not exist."""
        with self._explained("listed", name):
            try:
                found = self._fs.ls(self._path(name), detail=True)
            except FileNotFoundError:
                return []
        return sorted(item["name"].rstrip("/").rpartition("/")[2] for item in found if item["type"] == "directory")

    def facts(self, folder: str, prefix: str = "") -> dict[str, Fact]:
        """Objects below a folder whose own names begin with ``prefix``, by name from the URL on."""
        narrowed = {"prefix": prefix} if prefix and self.narrows_listings else {}
        with self._explained("listed", folder):
            try:
                found = self._fs.find(self._path(folder), detail=True, **narrowed)
            except FileNotFoundError:
                return {}
        named = {path.removeprefix(self._root).strip("/"): info for path, info in found.items()}
        return {
            name: Fact(info.get("size"), _changed_ns(info))
            for name, info in named.items()
            if name.startswith(f"{folder}/{prefix}" if folder else prefix)
        }

    def get(self, names: Iterable[str]) -> dict[str, bytes]:
        """Contents of those that are there; one that vanished meanwhile is left out."""
        paths = {self._path(name): name for name in names}
        if not paths:
            return {}
        with self._explained("read", f"{len(paths)} objects"):
            # As whole ranges: `cat` would first ask of each whether it is there.
            contents = self._fs.cat_ranges(list(paths), None, None, on_error="return")
        got = {}
        for path, content in zip(paths, contents, strict=True):
            if isinstance(content, FileNotFoundError):
                continue
            if isinstance(content, Exception):
                raise RemoteError(f"{path}: cannot be read: {type(content).__name__}: {content}") from content
            got[paths[path]] = content
        return got

    def is_empty(self) -> bool:
        """Whether nothing lies there."""
        with self._explained("listed", "it"):
            try:
                return not self._fs.ls(self._root, detail=False)
            except FileNotFoundError:
                return True

    def put(self, name: str, content: bytes, *, new: bool = False, content_type: str | None = None) -> None:
        """Write an object, whole at any moment.

        Args:
            content_type: of what a browser is to be served; where the protocol keeps one.
        Raises:
            FileExistsError: it is to be ``new``, and is there already.
        """
        path = self._path(name)
        with self._explained("written", name):
            if self.protocol in WHOLE_WRITES:
                typed = {TYPED[self.protocol]: content_type} if content_type and self.protocol in TYPED else {}
                self._fs.pipe_file(path, content, mode="create" if new else "overwrite", **typed)
                return
            folder, _, last = path.rpartition("/")
            aside = f"{folder}/.{last}.{uuid4().hex[:8]}.tmp"
            try:
                self._fs.pipe_file(aside, content)
            except FileNotFoundError:
                self._fs.makedirs(folder, exist_ok=True)
                self._fs.pipe_file(aside, content)
            try:
                self._rename_new(aside, path) if new else self._fs.mv(aside, path)
            except FileExistsError:
                self._fs.rm_file(aside)
                raise

    def _rename_new(self, aside: str, path: str) -> None:
        """Raises FileExistsError."""
        if self.protocol in SFTP:
            self._fs.rename_new(aside, path)
        elif self.protocol in LOCAL:
            os.link(aside, path)
            self._fs.rm_file(aside)
        else:
            raise RemoteError(f"{self.protocol}:// cannot hold back a second object of one name")

    def remove(self, names: Iterable[str]) -> None:
        """Take objects away; one that is not there is fine."""
        for name in names:
            with suppress(FileNotFoundError), self._explained("removed", name):
                self._fs.rm_file(self._path(name))

    def fact(self, name: str) -> Fact:
        """Of one object. Raises FileNotFoundError."""
        with self._explained("looked at", name):
            info = self._fs.info(self._path(name))
        return Fact(info.get("size"), _changed_ns(info))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    @contextmanager
    def _explained(self, done: str, name: str) -> Iterator[None]:
        """What is not there is an answer to whoever asks, and an error to whoever writes: the bucket is not there."""
        try:
            yield
        except FileNotFoundError as error:
            if done != "written":
                raise
            raise RemoteError(f"{self.url}: {name} cannot be {done}: {error}") from error
        except FileExistsError:
            raise
        except Exception as error:  # every package raises its own kind; all of them mean the same here
            raise RemoteError(f"{self.url}: {name} cannot be {done}: {type(error).__name__}: {error}") from error


def _changed_ns(info: Mapping[str, Any]) -> int | None:
    found = next(
        (info[key] for key in ("LastModified", "last_modified", "mtime", "updated", "created") if info.get(key)), None
    )
    if isinstance(found, str):
        try:
            found = datetime.fromisoformat(found)
        except ValueError:
            return None
    if isinstance(found, datetime):
        found = (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    return None if found is None else int(found * 1e9)
