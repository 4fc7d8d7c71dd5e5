"""What one measuring process has finished so far, on disk line by line, so that a successor can go on after it.

One JSON object per line, appended and synced: a process that dies at any moment loses the case it was at and no other.
A *part* is a case, what a machine without a GPU measures in its place, or one of these for another project's kernel.
The parent that saw a process die adds how, and which part it blames; a blamed part is not tried again, nor is another
of the same kernel, and its series say why. A death that nobody saw counts against no part: its parent was killed as
well. Only a part in which the machine itself restarts again and again is blamed without a witness.
"""

import fcntl
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from secrets import token_hex
from typing import IO, TYPE_CHECKING, Self

import msgspec

from .harness.drift import drift_pct
from .harness.gpu_monitor import Reading
from .harness.ids import utc_now
from .harness.records import Attempt, Check, Control, Measurement, MonitorSummary
from .harness.samples import SampleSeries

if TYPE_CHECKING:
    from .results import Results

MAX_RESTARTS = 5
"""A part in which the machine restarted so often is blamed, though nobody was left to see it."""


MAX_GAP_S = 300
"""From the last case of a process that died to the beginning of the one that goes on: longer, and the card may be
another, cold one. Finding that a process hangs takes three minutes (``case_cap_s``)."""


class JournalBusyError(Exception):
    """Another process writes this journal."""


def part_of_peer(what: str, peer: str) -> str:
    """The name of a part that another project's kernel has for itself."""
    return f"{what} of {peer}"


def culprit(part: str) -> str:
    """What a death in this part counts against: everything of the kernel whose part it is, else the part alone."""
    _, is_peers, peer = part.rpartition(" of ")
    return part_of_peer("everything", peer) if is_peers else part


class _Line(msgspec.Struct, frozen=True, tag_field="kind", forbid_unknown_fields=True):
    """Base of a journal's lines."""


class Begun(_Line, frozen=True, tag="begun"):
    """A process starts; ``identity`` is what a successor must share with it, ``id`` is its own alone."""

    created_utc: str
    identity: dict[str, str]
    boot: str = ""  # of the machine; empty where that is not known
    id: str = ""


class PartBegun(_Line, frozen=True, tag="part_begun"):
    part: str


class Loaded(_Line, frozen=True, tag="loaded"):
    """Ends a part that measures nothing and is done anew by each process: a kernel was loaded, or did not load."""


class PartEnded(_Line, frozen=True, tag="part_ended"):
    """What a part added to the results, and what the monitor saw since the part before."""

    part: str
    measurements: list[Measurement]
    checks: list[Check]
    samples: list[SampleSeries]
    readings: list[Reading]
    monitor: MonitorSummary | None = None
    ended_utc: str = ""


class Controlled(_Line, frozen=True, tag="controlled"):
    """The controls at the start of the process."""

    controls: list[Control]


class Blamed(_Line, frozen=True, tag="blamed"):
    """A part that is not to be tried, and why."""

    part: str
    reason: str


class Died(_Line, frozen=True, tag="died"):
    """How the process before this line ended; ``cancelled`` by people, so that its open part is not at fault."""

    how: str
    cancelled: bool = False


Line = Begun | Controlled | PartBegun | Loaded | PartEnded | Blamed | Died


@dataclass(slots=True)
class Past:
    """One process of a journal, from its ``Begun`` to the next."""

    begun: Begun
    died: str = "ended without a word (killed, or the machine stopped)"
    lost: str | None = None
    parts: list[PartEnded] = field(default_factory=list)
    controls: list[Control] = field(default_factory=list)

    @property
    def samples(self) -> list[SampleSeries]:
        return [series for part in self.parts for series in part.samples]

    @property
    def readings(self) -> list[Reading]:
        return [reading for part in self.parts for reading in part.readings]

    @property
    def monitor(self) -> MonitorSummary | None:
        """The last word of that process's monitor."""
        return next((part.monitor for part in reversed(self.parts) if part.monitor is not None), None)

    def attempt(self, next_begun_utc: str, next_controls: Sequence[Control]) -> Attempt:
        """Args: when the next process that took controls began, and those; they are the ends of this one's cases."""
        ends = [msgspec.structs.replace(control, when="end") for control in next_controls]
        ended_utc = self.parts[-1].ended_utc if self.parts else self.begun.created_utc
        return Attempt(
            created_utc=self.begun.created_utc,
            ended=self.died,
            num_parts=len(self.parts),
            lost=self.lost,
            controls=self.controls,
            drift_pct=drift_pct([*self.controls, *ends]) if _is_soon(ended_utc, next_begun_utc) else {},
        )


@dataclass(slots=True)
class History:
    """A journal as read.

    Attributes:
        num_bytes: length of what could be read; a line cut off by a crash lies beyond.
        open_part: begun last and neither finished nor blamed.
    """

    pasts: list[Past] = field(default_factory=list)
    finished: set[str] = field(default_factory=set)
    blamed: dict[str, str] = field(default_factory=dict)
    open_part: str | None = None
    num_bytes: int = 0

    @property
    def identity(self) -> dict[str, str] | None:
        return self.pasts[-1].begun.identity if self.pasts else None

    @property
    def last(self) -> str | None:
        """The process that began last."""
        return self.pasts[-1].begun.id if self.pasts else None


def journal_path(record_path: Path) -> Path:
    """The journal beside a record that is still to come."""
    return record_path.with_suffix(".journal")


def read_journal(path: Path) -> History:
    """Everything up to the first line that is not whole; empty where there is no file."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return History()
    history, restarts = History(), Counter[str]()
    decoder = msgspec.json.Decoder(Line)
    for raw in data.splitlines(keepends=True):
        if not raw.endswith(b"\n"):
            break
        try:
            line = decoder.decode(raw)
        except msgspec.DecodeError:
            break
        history.num_bytes += len(raw)
        _apply(history, line, restarts)
    _count_restart(history, boot_id(), restarts)
    return history


def boot_id() -> str:
    """Another one after each start of the machine; empty where the system has none."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else ""


def _count_restart(history: History, boot: str, restarts: Counter[str]) -> None:
    """Count it against the open part when the machine, now in ``boot``, restarted since the last process began."""
    part = history.open_part
    if not (part and history.pasts and boot) or history.pasts[-1].begun.boot in ("", boot):
        return
    restarts[part] += 1
    if restarts[part] >= MAX_RESTARTS:
        history.blamed[part] = f"the machine restarted {restarts[part]} times while it was measured"


def _apply(history: History, line: Line, restarts: Counter[str]) -> None:
    match line:
        case Begun(boot=boot):
            _count_restart(history, boot, restarts)
            history.pasts.append(Past(line))
            history.open_part = None
        case Controlled(controls):
            history.pasts[-1].controls = controls
        case PartBegun(part):
            history.open_part = part
        case Loaded():
            history.open_part = None
        case PartEnded(part):
            history.pasts[-1].parts.append(line)
            history.finished.add(part)
            history.blamed.pop(part, None)
            history.open_part = None
        case Blamed(part, reason):
            history.blamed[part] = reason
            if history.pasts and history.open_part == part:
                history.pasts[-1].lost, history.open_part = part, None
        case Died(how, cancelled):
            if history.pasts:
                history.pasts[-1].died = how
            if cancelled:
                history.open_part = None


def append(path: Path, lines: Sequence[Line]) -> None:
    """Add lines after the last whole one, for the parent of a process that has died.

    Raises:
        JournalBusyError: the process has not died.
    """
    file = _open(path)
    with file:
        file.truncate(read_journal(path).num_bytes)
        _write(file, lines)


class Journal:
    """Context manager of the process that measures; restores into ``results`` what its predecessors finished.

    Args:
        path: None keeps nothing.
        identity: what a predecessor must agree in; otherwise its journal is put aside as ``*.stale``.
    Raises:
        JournalBusyError: on ``__enter__``, while another process writes it.
    """

    def __init__(self, path: Path | None, results: "Results", identity: dict[str, str]) -> None:
        self.history = History()
        self.stale: Path | None = None
        self.num_seen = 0  # readings written so far
        self.readings: Callable[[], Sequence[Reading]] = tuple
        self.monitor: Callable[[], MonitorSummary | None] = lambda: None
        self._path, self._results, self._identity = path, results, identity
        self._file: IO[bytes] | None = None
        self._begun_utc = utc_now()

    def __enter__(self) -> Self:
        if self._path is None:
            return self
        self._file = _open(self._path)
        self.history = read_journal(self._path)
        if self.history.identity not in (None, self._identity):
            self.stale = self._path.with_suffix(".stale")
            self._path.replace(self.stale)
            self._file.close()
            self._file, self.history = _open(self._path), History()
        self._file.truncate(self.history.num_bytes)
        for past in self.history.pasts:
            for part in past.parts:
                self._results.restore(part.measurements, part.checks, part.samples)
        _write(self._file, [Begun(self._begun_utc, self._identity, boot_id(), token_hex(8))])
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def note_controls(self, controls: Sequence[Control]) -> None:
        """Keep those of the start: they are the other end of what the predecessor measured, if there was one."""
        self._append(Controlled(list(controls)))

    def attempts(self, controls: Sequence[Control]) -> list[Attempt]:
        """The processes before this one, whose controls at the start are among ``controls``."""
        found: list[Attempt] = []
        begun_utc, ends = self._begun_utc, [control for control in controls if control.when == "start"]
        for past in reversed(self.history.pasts):
            found.insert(0, past.attempt(begun_utc, ends))
            if past.controls:
                begun_utc, ends = past.begun.created_utc, past.controls
        return found

    def is_finished(self, part: str) -> bool:
        return part in self.history.finished

    def blame(self, part: str) -> str | None:
        """Why this part is not to be tried."""
        return self.history.blamed.get(part) or self.history.blamed.get(culprit(part))

    @contextmanager
    def loading(self, part: str) -> Iterator[None]:
        """Around what each process does anew; a death in it counts as one in any other part."""
        self._append(PartBegun(part))
        yield
        self._append(Loaded())

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Around the measuring of one part; it is finished when the block ends without an exception."""
        self._append(PartBegun(name))
        measurements, checks, samples = self._results.sizes
        yield
        if self._file is None:
            return
        readings = list(self.readings())
        new, self.num_seen = readings[self.num_seen :], len(readings)
        added = (
            self._results.measurements[measurements:],
            self._results.checks[checks:],
            self._results.samples[samples:],
        )
        self._append(PartEnded(name, *added, new, self.monitor(), utc_now()))

    def _append(self, line: Line) -> None:
        if self._file is not None:
            _write(self._file, [line])


def _is_soon(ended_utc: str, begun_utc: str) -> bool:
    """False where one of the times is not known."""
    if not (ended_utc and begun_utc):
        return False
    return (datetime.fromisoformat(begun_utc) - datetime.fromisoformat(ended_utc)).total_seconds() <= MAX_GAP_S


def _open(path: Path) -> IO[bytes]:
    file = path.open("ab")
    try:
        # The operating system frees it with the process, however that ends.
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise JournalBusyError(f"{path}: another process is writing it; wait for it to end") from error
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return file


def _write(file: IO[bytes], lines: Sequence[Line]) -> None:
    file.write(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    file.flush()
    os.fsync(file.fileno())
