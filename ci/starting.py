"""Two ways to start a measuring process: afresh, or forked from a parent that has imported torch and nothing more."""

import contextlib
import json
import os
import queue
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Protocol, Self

from benchmarks.harness.parent import PARENT_VARIABLE
from benchmarks.harness.records import Started

from .exits import BrokenEnvironmentError
from .processes import GRACE_S, POLL_S, TAIL_LINES, Ended, Limit, Watch, end_group, run_child, uninterrupted

FORK_SERVER = (sys.executable, "-m", "benchmarks.fork_server")
READY_CAP_S = 120.0  # importing torch from a cold disk
ANSWER_CAP_S = 30.0


class Starter(Protocol):
    """Starts measuring processes one after the other."""

    @property
    def started(self) -> Started:
        """What the record says of how its process came to be."""

    def run(self, arguments: Sequence[str], *, cap_s: float, on_line: Callable[[str], None], watch: Watch) -> Ended:
        """Run one measuring process to its end or its limits; nothing of it is left."""


@dataclass(frozen=True, slots=True)
class FreshStarter:
    """Each process is a new interpreter."""

    command: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
    started: Started = "fresh"

    def run(self, arguments: Sequence[str], *, cap_s: float, on_line: Callable[[str], None], watch: Watch) -> Ended:
        command = [*self.command, *arguments]
        return run_child(command, env=self.env, cwd=self.cwd, cap_s=cap_s, on_line=on_line, watch=watch)


class ForkServer:
    """Context manager around a parent (``benchmarks/fork_server.py``) that forks one measuring process at a time.

    Lines of the parent about itself begin with a token that no other line has; they come in the order of everything
    else, so that a process's last words are here before the news of its end.

    Raises:
        BrokenEnvironmentError: on ``__enter__`` or ``run``: the parent does not come up, or is not clean.
    """

    started: Started = "forked"

    def __init__(self, env: Mapping[str, str], cwd: Path, command: Sequence[str] = FORK_SERVER) -> None:
        self._env, self._cwd, self._command = env, cwd, command
        self._token = f"@{secrets.token_hex(8)} "
        self._news: queue.Queue[str | None] = queue.Queue()
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._on_line: Callable[[str], None] = lambda line: None
        self._server: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._child: int | None = None

    def __enter__(self) -> Self:
        # One BLAS thread: the others would be threads that a forked child inherits half.
        env = {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **self._env, PARENT_VARIABLE: str(os.getpid())}
        try:
            with uninterrupted():
                self._server = subprocess.Popen(
                    [*self._command, self._token],
                    env=env,
                    cwd=self._cwd,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    errors="replace",
                    start_new_session=True,
                )
                self._reader = threading.Thread(target=self._read, args=(self._server.stdout,), daemon=True)
                self._reader.start()
            self._expect("ready", READY_CAP_S)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def run(self, arguments: Sequence[str], *, cap_s: float, on_line: Callable[[str], None], watch: Watch) -> Ended:
        assert self._server is not None
        assert self._server.stdin is not None
        self._tail.clear()
        self._on_line = on_line
        try:
            self._server.stdin.write(json.dumps(list(arguments)) + "\n")
            self._server.stdin.flush()
        except OSError as error:
            raise self._broken() from error
        self._child = int(self._expect("started", ANSWER_CAP_S))
        limit = Limit(cap_s, watch)
        code = None
        try:
            while code is None and not limit.is_reached():
                code = self._ended(POLL_S)
        finally:
            for sign in (signal.SIGTERM, signal.SIGKILL):
                _kill_group(self._child, sign)
                if code is None:
                    code = self._ended(GRACE_S)
            self._child = None
        if code is None:
            raise BrokenEnvironmentError(
                "a forked measuring process does not end, though killed", "restart the machine"
            )
        return Ended(code, limit.timed_out, tuple(self._tail), limit.hung)

    def _read(self, stdout: IO[str]) -> None:
        for line in stdout:
            stripped = line.rstrip()
            if stripped.startswith(self._token):
                self._news.put(stripped.removeprefix(self._token))
            elif stripped:
                self._tail.append(stripped)
                self._on_line(stripped)
        self._news.put(None)

    def _expect(self, word: str, cap_s: float) -> str:
        """What follows ``word`` in the server's next news."""
        deadline_s = time.monotonic() + cap_s
        while (left_s := deadline_s - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                news = self._news.get(timeout=min(left_s, POLL_S))
                if news is None:
                    raise self._broken()
                if news.split(" ")[0] == word:
                    return news.removeprefix(word).strip()
        raise BrokenEnvironmentError(f"the parent of forked processes said no {word!r} within {cap_s:g} s", "--fork no")

    def _ended(self, cap_s: float) -> int | None:
        try:
            news = self._news.get(timeout=cap_s)
        except queue.Empty:
            return None
        if news is None:
            raise self._broken()
        return int(news.removeprefix("ended "))

    def _broken(self) -> BrokenEnvironmentError:
        last = self._tail[-1] if self._tail else "it said nothing"
        return BrokenEnvironmentError(f"the parent of forked processes ended: {last}", "start afresh: --fork no")

    def _end(self) -> None:
        if self._server is None:
            return
        if self._child is not None:
            _kill_group(self._child, signal.SIGKILL)
        assert self._server.stdin is not None
        with contextlib.suppress(OSError):
            self._server.stdin.close()
        end_group(self._server)
        assert self._reader is not None
        assert self._server.stdout is not None
        self._reader.join(timeout=GRACE_S)
        if not self._reader.is_alive():
            self._server.stdout.close()
        self._server = None


def _kill_group(group: int, sign: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, sign)
