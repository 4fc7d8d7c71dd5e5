"""Runs one child at a time in a process group of its own, hands its lines on, and leaves nothing behind."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO

from benchmarks.harness.parent import PARENT_VARIABLE

from .exits import Interrupted

GRACE_S = 5.0  # between asking a process group to end and ending it
TAIL_LINES = 15  # kept to explain a failure
POLL_S = 0.25  # between two looks at a running child
SIGNALS = (signal.SIGINT, signal.SIGTERM)  # by which people and schedulers end a night
Watch = Callable[[], str | None]  # why a running child must be ended now; None while all is well


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended. ``code`` is negative for a signal, as in ``subprocess``."""

    code: int
    timed_out: bool
    tail: tuple[str, ...]
    hung: str | None = None  # what the watch said

    def describe(self, cap_s: float) -> str:
        """One line for people."""
        if self.timed_out:
            return f"ended after {cap_s:g} s, its time cap (ci/nightly.toml)"
        if self.hung is not None:
            return self.hung
        how = f"killed by {signal.Signals(-self.code).name}" if self.code < 0 else f"exit code {self.code}"
        return f"{how}; last line: {self.tail[-1]}" if self.tail else f"{how}, without a word"


def run_child(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path,
    cap_s: float,
    on_line: Callable[[str], None],
    watch: Watch = lambda: None,
) -> Ended:
    """Run ``command`` to its end, its time cap, or an exception here; its whole process group is gone afterwards.

    Even SIGKILL here ends a child that calls ``benchmarks.harness.parent.end_with_parent``.

    Args:
        on_line: gets each line of stdout and stderr, without its end, on another thread.
        watch: looked at while the child runs; its word ends the child.
    """
    tail: deque[str] = deque(maxlen=TAIL_LINES)

    def read(lines: IO[str]) -> None:
        for line in lines:
            stripped = line.rstrip()
            if stripped:
                tail.append(stripped)
                on_line(stripped)

    with contextlib.ExitStack() as ending:
        with uninterrupted():
            child = subprocess.Popen(
                command,
                env={**env, PARENT_VARIABLE: str(os.getpid())},
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,  # so that Ctrl-C reaches us alone and killpg reaches all of it
            )
            reader = threading.Thread(target=read, args=(child.stdout,), daemon=True)
            reader.start()
            ending.callback(_end, child, reader)
        limit = Limit(cap_s, watch)
        while child.poll() is None and not limit.is_reached():
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(timeout=POLL_S)
    return Ended(child.returncode, limit.timed_out, tuple(tail), limit.hung)


def _end(child: "subprocess.Popen[str]", reader: threading.Thread) -> None:
    end_group(child)
    reader.join(timeout=GRACE_S)
    if child.stdout is not None and not reader.is_alive():
        child.stdout.close()


@dataclass(slots=True)
class Limit:
    """When a child that still runs must be ended: at its time cap, or when the watch says so."""

    cap_s: float
    watch: Watch
    timed_out: bool = False
    hung: str | None = None
    _begun_s: float = field(default_factory=time.monotonic)

    def is_reached(self) -> bool:
        self.timed_out = time.monotonic() - self._begun_s >= self.cap_s
        if not self.timed_out:
            self.hung = self.watch()
        return self.timed_out or self.hung is not None


def end_group(child: "subprocess.Popen[str]") -> None:
    """End a child and everything it started: asked first, forced after ``GRACE_S``."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=GRACE_S)
            if sign == signal.SIGTERM and not _group_lives(child.pid):
                return


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """SIGINT and SIGTERM raise Interrupted, once; further ones are ignored, so that cleaning up is not cut short."""
    before = {sign: signal.getsignal(sign) for sign in SIGNALS}

    def handle(number: int, frame: FrameType | None) -> None:
        for sign in SIGNALS:
            signal.signal(sign, signal.SIG_IGN)
        raise Interrupted(signal.Signals(number).name)

    for sign in SIGNALS:
        signal.signal(sign, handle)
    try:
        yield
    finally:
        for sign, handler in before.items():
            signal.signal(sign, handler)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Signals come when the block has ended: amid the start of a child, one would leave it behind, known to nobody."""
    if threading.current_thread() is not threading.main_thread():
        yield  # where none comes
        return
    came: list[int] = []
    before = {sign: handler for sign in SIGNALS if callable(handler := signal.getsignal(sign))}
    for sign in before:
        signal.signal(sign, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        for sign, handler in before.items():
            signal.signal(sign, handler)
        for number in came:
            signal.raise_signal(number)
