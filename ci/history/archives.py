"""Takes the records and nights out of a folder, tar, tar.gz or zip that a stranger may have made.

Nothing is believed: not the sizes in headers, not the names, not the number of members. A member that is no plain file,
or whose name leads out of the archive, refuses all of it. Only files of a store are written, under names made here.
"""

import gzip
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from ci.exits import CommandError, Exit, MissingDataError

from .names import STORED

MIB = 1 << 20
ZIP_END, ZIP64_LOCATOR = b"PK\x05\x06", b"PK\x06\x07"
ZIP_END_BYTES, ZIP_COMMENT_BYTES, ZIP64_LOCATOR_BYTES = 22, 65535, 20
ENCRYPTED = 0x1


class UntrustedSourceError(CommandError):
    """What was to be imported is not what it should be; nothing was written."""

    code = Exit.INVALID


@dataclass(frozen=True, slots=True)
class Limits:
    """What a source may hold, unpacked unless said otherwise. A night of 5 processes has 11 files and 3.5 MB."""

    num_members: int = 50_000
    file_bytes: int = 64 * MIB
    total_bytes: int = 4096 * MIB
    packed_bytes: int = 1024 * MIB
    name_bytes: int = 512


@dataclass(frozen=True, slots=True)
class Member:
    """One member of the source. ``read(n)`` gives at most n bytes, and more when called again."""

    name: str
    read: Callable[[int], bytes]


def unpack(source: Path, into: Path, limits: Limits) -> int:
    """Copy the files of a store from ``source`` into the empty folder ``into``; how many others were passed over.

    Raises:
        MissingDataError: the source does not exist, or holds no file of a store.
        UntrustedSourceError: it is no archive of a known kind, or breaks a rule; the message names the member.
    """
    passed_over = count = total = 0
    try:
        with _members(source, limits) as members:
            for member in members:
                count += 1
                if count > limits.num_members:
                    raise UntrustedSourceError(f"{source}: more than {limits.num_members} members")
                target = _target(member.name, into, limits)
                if target is None:
                    passed_over += 1
                    continue
                data = _read(member, limits)
                total += len(data)
                if total > limits.total_bytes:
                    raise UntrustedSourceError(f"{source}: more than {limits.total_bytes} bytes unpacked")
                _place(member.name, target, data)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, gzip.BadGzipFile, EOFError, struct.error) as error:
        raise UntrustedSourceError(f"{source}: damaged: {error}") from error
    except MemoryError as error:
        raise UntrustedSourceError(f"{source}: reading it takes more memory than it may") from error
    except (NotImplementedError, RuntimeError, UnicodeError) as error:  # zipfile: unknown methods, passwords, odd names
        raise UntrustedSourceError(f"{source}: {error}") from error
    if count == passed_over:
        raise MissingDataError(f"{source}: no records/<gpu>/<id>.json or nights/<gpu>/<id>.json among {count} files")
    return passed_over


def _target(name: str, into: Path, limits: Limits) -> Path | None:
    """Where a member goes; None for what belongs to no store. Folders above the store's own do not matter."""
    parts = name.split("/")
    if name.startswith("/") or ".." in parts or "\\" in name or not name.isprintable() or ":" in parts[0]:
        raise UntrustedSourceError(f"member {name!r}: its name leads out of the archive")
    if len(name.encode()) > limits.name_bytes:
        raise UntrustedSourceError(f"member {name[:60]!r}...: its name is longer than {limits.name_bytes} bytes")
    own = "/".join(parts[-3:])
    return into / own if STORED.fullmatch(own) and "quarantine" not in parts[:-3] else None


def _read(member: Member, limits: Limits) -> bytes:
    data = member.read(limits.file_bytes + 1)
    if len(data) > limits.file_bytes:
        raise UntrustedSourceError(f"member {member.name}: larger than {limits.file_bytes} bytes")
    return data


def _place(name: str, target: Path, data: bytes) -> None:
    if target.exists():
        if target.read_bytes() != data:
            raise UntrustedSourceError(f"member {name}: there twice, with different content")
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)


@contextmanager
def _members(source: Path, limits: Limits) -> Iterator[Iterator[Member]]:
    if source.is_dir():
        yield _folder_members(source)
        return
    if not source.is_file():
        raise MissingDataError(f"{source}: no such file or folder")
    if source.stat().st_size > limits.packed_bytes:
        raise UntrustedSourceError(f"{source}: larger than {limits.packed_bytes} bytes")
    with source.open("rb") as file:
        magic = file.read(4)
        file.seek(0)
        if magic[:2] == b"PK":
            _check_zip_size(source, file, limits)
            with zipfile.ZipFile(file) as archive:
                yield _zip_members(archive)
        else:
            plain = gzip.GzipFile(fileobj=file) if magic[:2] == b"\x1f\x8b" else file
            bounded = cast("IO[bytes]", _Bounded(cast("IO[bytes]", plain), limits))
            with tarfile.open(fileobj=bounded, mode="r:") as archive:
                yield _tar_members(archive)


def _folder_members(source: Path) -> Iterator[Member]:
    for root, folders, names in os.walk(source):
        folders.sort()
        for name in [*folders, *sorted(names)]:
            path = Path(root) / name
            mode = path.lstat().st_mode
            if stat.S_ISDIR(mode):
                continue
            shown = path.relative_to(source.parent if source.name in ("records", "nights") else source).as_posix()
            if not stat.S_ISREG(mode):
                raise UntrustedSourceError(f"{shown}: a link or special file")
            with path.open("rb") as file:
                yield Member(shown, file.read)


def _tar_members(archive: tarfile.TarFile) -> Iterator[Member]:
    for item in archive:
        if item.isdir():
            continue
        file = archive.extractfile(item) if item.isreg() else None
        if file is None or item.issparse():
            raise UntrustedSourceError(f"member {item.name!r}: a link or special file")
        yield Member(item.name, file.read)
    # tarfile takes a header that is cut off, or no header, for the end.
    bounded = cast("IO[bytes]", archive.fileobj)
    bounded.seek(archive.offset)
    if bounded.read(tarfile.BLOCKSIZE) != b"\0" * tarfile.BLOCKSIZE:
        raise tarfile.ReadError("it ends without its end mark, or goes on after a header that is none")
    while bounded.read(MIB):  # the checksum of a gzip is its last word
        pass


def _zip_members(archive: zipfile.ZipFile) -> Iterator[Member]:
    for item in archive.infolist():
        if item.is_dir():
            continue
        mode = item.external_attr >> 16
        if mode and not stat.S_ISREG(mode) and stat.S_IFMT(mode):
            raise UntrustedSourceError(f"member {item.filename!r}: a link or special file")
        if item.flag_bits & ENCRYPTED:
            raise UntrustedSourceError(f"member {item.filename!r}: encrypted")
        with archive.open(item) as file:
            yield Member(item.filename, file.read)


def _check_zip_size(source: Path, file: IO[bytes], limits: Limits) -> None:
    """Refuse a list of members too long to be read into memory, before zipfile reads it."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - ZIP_END_BYTES - ZIP_COMMENT_BYTES - ZIP64_LOCATOR_BYTES))
    tail = file.read()
    file.seek(0)
    end = tail.rfind(ZIP_END)
    if end < 0 or len(tail) < end + ZIP_END_BYTES:
        raise UntrustedSourceError(f"{source}: damaged: no list of members")
    num_members, list_bytes = struct.unpack_from("<HI", tail, end + 10)
    if ZIP64_LOCATOR in tail:
        raise UntrustedSourceError(
            f"{source}: zip64, which archives of nights do not need; unpack it and give the folder"
        )
    if num_members > limits.num_members or list_bytes > limits.num_members * limits.name_bytes:
        raise UntrustedSourceError(f"{source}: more than {limits.num_members} members")


class _Bounded:
    """A file of which no more than the limits is ever read, at once or by seeking on through what a gzip unpacks to."""

    def __init__(self, file: IO[bytes], limits: Limits) -> None:
        self._file, self._limits = file, limits

    def read(self, size: int = -1) -> bytes:
        # tarfile asks for all of a member's extended header at once, with the size the header claims.
        if size < 0 or size > self._limits.file_bytes + 1:
            raise UntrustedSourceError(f"a part of the archive claims {size} bytes, {self._limits.file_bytes} at most")
        self._check(self._file.tell() + size)
        return self._file.read(size)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence != os.SEEK_SET:
            raise UntrustedSourceError("the archive cannot be read in one go")
        self._check(offset)
        return self._file.seek(offset)

    def tell(self) -> int:
        return self._file.tell()

    def _check(self, position: int) -> None:
        if position > self._limits.total_bytes + self._limits.file_bytes:
            raise UntrustedSourceError(f"more than {self._limits.total_bytes} bytes unpacked")
