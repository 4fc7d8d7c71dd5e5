"""Notices a measuring process that finishes no case any more, and notes in its journal what ended it."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.journal import Blamed, Died, append, culprit, read_journal


@dataclass(slots=True)
class JournalWatch:
    """Called again and again: says so when the journal has not grown for ``cap_s``.

    Every case begun and every case finished is a line, so a journal that does not grow is a case that hangs (or a
    start that does: imports and control streams have the same time).
    """

    path: Path
    cap_s: float
    clock: Callable[[], float] = time.monotonic
    _size: int | None = None
    _grown_s: float = 0.0

    def __call__(self) -> str | None:
        now_s, size = self.clock(), _size(self.path)
        if size != self._size:
            self._size, self._grown_s = size, now_s
        if now_s - self._grown_s < self.cap_s:
            return None
        return f"hung: no case finished for {self.cap_s:g} s (case_cap_s, ci/nightly.toml)"


def note_crash(path: Path, how: str, before: str | None) -> str | None:
    """Write into the journal how its process ended; returns the part that is to blame, None when none was begun.

    Args:
        before: the last process of the journal before this one was started. A process that died before it wrote there
            has no open part: the one to be read is its predecessor's, whose death nobody saw.

    Raises:
        JournalBusyError: that process still lives.
    """
    history = read_journal(path)
    if history.last == before:
        return None
    part = history.open_part
    append(path, [Died(how), *([] if part is None else [Blamed(part, how)])])
    if part is not None:
        note_culprit(path, part, how)
    return part


def note_culprit(path: Path, part: str, how: str) -> None:
    """Write that nothing else is to be tried of a kernel that ended a process in one of its parts."""
    if culprit(part) != part:
        append(path, [Blamed(culprit(part), f"not tried after {part}: {how}")])


def note_cancelled(path: Path, how: str, before: str | None) -> None:
    """Write into the journal that people ended the process: its open part is measured anew."""
    if read_journal(path).last != before:
        append(path, [Died(how, cancelled=True)])


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1
