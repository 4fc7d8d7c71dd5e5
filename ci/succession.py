"""One seed's record, by one measuring process or, where cases crash or hang, by several one after the other."""

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness.errors import CONTEXT_LOST_EXIT
from benchmarks.journal import Blamed, JournalBusyError, append, culprit, journal_path, read_journal

from .config import NightlyConfig
from .exits import BrokenEnvironmentError, Exit, Interrupted, MissingDataError, UsageError
from .processes import Ended
from .starting import Starter
from .watching import JournalWatch, note_cancelled, note_crash, note_culprit


@dataclass(slots=True)
class Succession:
    """Runs measuring processes of a night, each crash costing the case it happened in.

    Attributes:
        on_line: gets each line of the running process.
        tell: gets what people should see of a crash.
        stop: once it is set, the running process is ended and ``run`` raises Interrupted: signals reach one thread.
    """

    config: NightlyConfig
    cap_s: float
    on_line: Callable[[str], None]
    tell: Callable[[str], None]
    stop: threading.Event = field(default_factory=threading.Event)
    _crashes: Counter[str] = field(default_factory=Counter)  # processes that a case or a kernel has ended

    def run(self, starter: Starter, record: Path, arguments: Sequence[str]) -> str | None:
        """Start processes until ``record`` is there; returns None, or why it is not.

        Raises:
            UsageError, MissingDataError, BrokenEnvironmentError: a process says that all others would end likewise.
            Interrupted: finished cases are in the journal beside ``record``.
        """
        journal = journal_path(record)
        self._spare(journal)
        how = "no process was started"
        for successors_left in range(self.config.max_successors, -1, -1):
            before = read_journal(journal).last
            ended = self._run_one(starter, journal, arguments, before)
            if not _is_measuring(journal, before):  # else it is the part's word: any code can exit with any number
                _refuse(ended)
            if ended.code in (Exit.PASS, Exit.INVALID) and record.exists():
                return None
            how = ended.describe(self.cap_s)
            cost = self._cost(journal, how, ended, before)
            for line in ended.tail:
                self.tell(f"    {line}")
            if cost is None or not successors_left:
                break
            self.tell(f"{cost}: {how}; another process goes on without it")
        return how

    def _run_one(self, starter: Starter, journal: Path, arguments: Sequence[str], before: str | None) -> Ended:
        arguments = [*arguments, *(["--resume"] if journal.exists() else [])]
        arguments += ["--started", starter.started] if starter.started != "fresh" else []
        hangs = JournalWatch(journal, self.config.case_cap_s)

        def watch() -> str | None:
            if self.stop.is_set():
                raise Interrupted("the night ends")
            return hangs()

        try:
            return starter.run(arguments, cap_s=self.cap_s, on_line=self.on_line, watch=watch)
        except Interrupted as signal:
            with contextlib.suppress(JournalBusyError):
                note_cancelled(journal, f"interrupted: {signal}", before)
            raise

    def _spare(self, journal: Path) -> None:
        """Do not try what has ended several processes of this night already."""
        known = read_journal(journal)
        blamed = [
            Blamed(part, f"not tried: processes of this night that it ended before: {count}")
            for part, count in self._crashes.items()
            if count >= self.config.max_crashes_of_a_case and part not in known.finished | set(known.blamed)
        ]
        if blamed:
            append(journal, blamed)

    def _cost(self, journal: Path, how: str, ended: Ended, before: str | None) -> str | None:
        """What the crash cost, for people; None when a successor would end likewise."""
        try:
            if ended.timed_out:  # as a whole: no case's fault
                note_cancelled(journal, how, before)
                return None
            part = note_crash(journal, how, before)
        except JournalBusyError as error:
            raise BrokenEnvironmentError(f"a measuring process was killed and lives on: {error}") from error
        if ended.code == CONTEXT_LOST_EXIT and (failed := _last_failed(journal)):
            part = failed
            note_culprit(journal, part, how)
        if part is not None:
            self._crashes[culprit(part)] += 1
        return part


def _last_failed(journal: Path) -> str | None:
    """The case that a process noted as failed before it ended with ``CONTEXT_LOST_EXIT``."""
    pasts = read_journal(journal).pasts
    return pasts[-1].parts[-1].part if pasts and pasts[-1].parts else None


def _is_measuring(journal: Path, before: str | None) -> bool:
    """Whether a process that began after ``before`` ended in the middle of a part."""
    history = read_journal(journal)
    return history.last != before and history.open_part is not None


def _refuse(ended: Ended) -> None:
    last = ended.tail[-1] if ended.tail else "it said nothing"
    if ended.code == Exit.USAGE:
        raise UsageError(f"the measuring process refused its command line: {last}")
    if ended.code == Exit.MISSING:
        raise MissingDataError(f"the measuring process selected nothing: {last}")
    if ended.code == Exit.BROKEN:
        raise BrokenEnvironmentError(f"the measuring process cannot work here: {last}", "python -m ci doctor")
