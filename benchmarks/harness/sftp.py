"""SFTP: fsspec's filesystem, but that it knows its hosts, comes back after a lost connection, and can replace nothing.

Imported where an sftp:// URL is given, for it needs paramiko.
"""

import io
from pathlib import PurePosixPath
from typing import Any

import paramiko
from fsspec.implementations.sftp import SFTPFileSystem

KEEPALIVE_S = 30  # a night has long pauses, in which networks forget connections


class Sftp(SFTPFileSystem):  # type: ignore[misc]  # fsspec ships no types
    """Keys come from ssh-agent and ``~/.ssh``; a host that ``~/.ssh/known_hosts`` has not is refused."""

    def _connect(self) -> None:
        self.client = paramiko.SSHClient()
        self.client.load_system_host_keys()
        self.client.connect(self.host, **self.ssh_kwargs)
        self.client.get_transport().set_keepalive(KEEPALIVE_S)
        self._ftp = self.client.open_sftp()

    @property
    def ftp(self) -> Any:
        if not self._ftp.get_channel().get_transport().is_active():
            self._connect()
        return self._ftp

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: object) -> bytes:
        """Asks for all parts at once; reading a file would wait for each 8 KB."""
        content = io.BytesIO()
        self.ftp.getfo(path, content)
        return content.getvalue()[start:end]

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: object) -> None:
        assert mode == "overwrite"  # a file that is to be new comes by ``rename_new``
        self.ftp.putfo(io.BytesIO(value), path)

    def makedirs(self, path: str, exist_ok: bool = False, mode: int = 0o777) -> None:
        """Beside others who make the same folders."""
        for folder in map(str, reversed((PurePosixPath(path), *PurePosixPath(path).parents))):
            if not self.isdir(folder):
                try:
                    self.ftp.mkdir(folder, mode)
                except OSError:
                    if not self.isdir(folder):
                        raise

    def rename_new(self, old: str, new: str) -> None:
        """The protocol's own rename, which replaces nothing. Raises FileExistsError."""
        try:
            self.ftp.rename(old, new)
        except OSError as error:
            if self.exists(new):
                raise FileExistsError(new) from error
            raise
