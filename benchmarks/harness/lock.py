"""One run per GPU: a file lock named by the GPU's UUID, held by the operating system until the process ends."""

import contextlib
import json
import os
import shlex
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from filelock import FileLock, Timeout

from .errors import LockHeldError
from .ids import utc_now

FOLDER_VARIABLE = "RECOVERSSM_LOCK_DIR"


def lock_folder(folder: Path | None = None) -> Path:
    """The argument, else ``RECOVERSSM_LOCK_DIR``, else a folder of this user among temporary files.

    Runs exclude each other only when they use one folder: users who share GPUs set the variable.
    """
    if folder is not None:
        return folder
    if named := os.environ.get(FOLDER_VARIABLE):
        return Path(named)
    return Path(tempfile.gettempdir()) / f"recoverssm-locks-{os.getuid()}"


class GpuLock:
    """Context manager that owns one GPU; a process that dies gives its lock back by dying.

    Args:
        uuid: of the GPU, with or without NVML's prefix; any other name, such as "cpu", will do as well.
        timeout_s: how long to wait for another run; 0 fails at once.
        command: what to tell others that wait; this process's command line by default.
    Raises:
        LockHeldError: on ``__enter__``, naming the holder's process, command and start.
        OSError: no lock can be kept in the folder.
    """

    def __init__(
        self, uuid: str, folder: Path | None = None, *, timeout_s: float = 0.0, command: str | None = None
    ) -> None:
        self._uuid, self._timeout_s = uuid, timeout_s
        self._command = shlex.join(sys.argv) if command is None else command
        self._folder = lock_folder(folder)
        # torch prints UUIDs without NVML's prefix: both must lead to one file.
        bare = uuid.removeprefix("GPU-").removeprefix("MIG-")
        name = "".join(char if char.isalnum() or char == "-" else "_" for char in bare)
        self._holder_path = self._folder / f"{name}.holder.json"
        self._lock = FileLock(self._folder / f"{name}.lock", mode=0o666)

    def __enter__(self) -> Self:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock.acquire(timeout=self._timeout_s)
        except Timeout as error:
            raise LockHeldError(self._held()) from error
        except OSError as error:
            what = (
                f"no lock of GPU {self._uuid} can be kept: {error.strerror}; let {self._folder} be a folder that all "
            )
            raise OSError(
                error.errno, f"{what}who share the GPU can write, or name one in {FOLDER_VARIABLE}"
            ) from error
        holder = {"pid": os.getpid(), "command": self._command, "since_utc": utc_now()}
        # Best effort: a full disk, or the description that a killed run of another user left, does not keep a free GPU.
        with contextlib.suppress(OSError):
            self._holder_path.write_text(json.dumps(holder) + "\n", encoding="utf-8")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._holder_path.unlink(missing_ok=True)
        self._lock.release()

    def _held(self) -> str:
        holder = self._holder()
        who = (
            f"pid {holder['pid']} ({holder['command']}) since {holder['since_utc']}"
            if holder
            else "a process that left no description"
        )
        return (
            f"GPU {self._uuid}: in use by {who}; waited {self._timeout_s:g} s. Wait for it to end, choose another GPU, "
            f"or allow a longer wait. Locks are in {self._folder} (set {FOLDER_VARIABLE} to change)"
        )

    def _holder(self) -> dict[str, Any] | None:
        try:
            holder = json.loads(self._holder_path.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # the holder may be starting or ending right now
            return None
        return holder if isinstance(holder, dict) and {"pid", "command", "since_utc"} <= holder.keys() else None
