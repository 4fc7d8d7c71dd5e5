"""What a tuning run has found so far, on disk line by line: the next process goes on there, and ``ci tune`` reads it.

A candidate that is being tried has a line before it has a result, so that whoever sees its process die knows which one
it was.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from .tuning_space import BATCHES, WINDOWS, Constant


class Candidate(msgspec.Struct, frozen=True):
    """One form of the op's kernel with all of its constants."""

    form: str
    constants: dict[str, Constant]

    @property
    def key(self) -> str:
        """The same for the same candidate, whatever the order of its constants."""
        return " ".join([self.form, *(f"{name}={value}" for name, value in sorted(self.constants.items()))])

    def __str__(self) -> str:
        return " ".join([self.form, *(f"{name}={value}" for name, value in self.constants.items())])


class Point(msgspec.Struct, frozen=True):
    """What a row is tuned for: one op on one grid."""

    op: str
    state_dtype: str
    num_heads: int
    num_requests: int
    spec_query_len: int

    @property
    def name(self) -> str:
        return f"{self.op} {self.state_dtype} H={self.num_heads} T={self.spec_query_len} B={self.num_requests}"

    @property
    def request_heads(self) -> int:
        return self.num_requests * self.num_heads

    @property
    def place(self) -> tuple[int, int]:
        """min_tokens and min_heads of the rows that it gets."""
        shorter = [window for window in WINDOWS if window < self.spec_query_len]
        return 1 + max(shorter, default=0), 0 if self.num_requests == BATCHES[0] else self.request_heads


class _Line(msgspec.Struct, frozen=True, tag_field="kind", forbid_unknown_fields=True):
    """Base of the journal's lines."""


class Begun(_Line, frozen=True, tag="begun"):
    """A process starts. ``identity`` is what one that goes on must share; the rest is provenance for rows."""

    identity: dict[str, str]
    card: str
    arch: int
    torch: str
    triton: str
    date: str


class Opened(_Line, frozen=True, tag="opened"):
    """A point is at hand.

    Attributes:
        incumbent: what the launch table has for it.
        forms: that fit it, in the order in which launches ask them.
    """

    point: Point
    incumbent: Candidate
    candidates: list[Candidate]
    forms: list[str]


class Trying(_Line, frozen=True, tag="trying"):
    point: str
    candidate: str


class Checked(_Line, frozen=True, tag="checked"):
    """The candidate's results against float64.

    Attributes:
        status: "failed" did not compile or run.
        reason: why it is not right; empty where it is.
        bits: equal for candidates that gave the same bits for the same inputs.
    """

    point: str
    candidate: str
    status: Literal["right", "wrong", "failed"]
    reason: str = ""
    bits: str = ""


class Timed(_Line, frozen=True, tag="timed"):
    """Device time of one call, graph-cold: median of one round and its 95 % interval; None with the reason."""

    point: str
    candidate: str
    round: int
    median_us: float | None
    low_us: float | None = None
    high_us: float | None = None
    reason: str = ""


class Closed(_Line, frozen=True, tag="closed"):
    point: str


Line = Begun | Opened | Trying | Checked | Timed | Closed


@dataclass(slots=True)
class Findings:
    """What the lines of a journal say."""

    begun: Begun | None = None
    opened: dict[str, Opened] = field(default_factory=dict)
    checked: dict[tuple[str, str], Checked] = field(default_factory=dict)
    timed: dict[tuple[str, str, int], Timed] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    trying: Trying | None = None
    num_bytes: int = 0

    def apply(self, line: Line) -> None:
        match line:
            case Begun():
                self.begun, self.trying = line, None  # nobody saw an earlier process die of it
            case Opened(point=point):
                self.opened[point.name] = line
            case Trying():
                self.trying = line
            case Checked(point=name, candidate=key):
                self.checked[name, key] = line
                self.trying = None
            case Timed(point=name, candidate=key, round=number):
                self.timed[name, key, number] = line
                self.trying = None
            case Closed(point=name):
                self.closed.add(name)


class JournalUnfitError(Exception):
    """The journal is of another op, card, version or source, or not a journal."""


class TuningJournal:
    """Appends lines, each whole on disk before the next; ``found`` has all of them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.found = read_findings(path)

    def begin(self, begun: Begun) -> None:
        """Note the process that goes on, if it may.

        Raises:
            JournalUnfitError: an earlier process differs in something that figures depend on.
        """
        before = self.found.begun
        if before is not None and before.identity != begun.identity:
            differing = [name for name, value in begun.identity.items() if before.identity.get(name) != value]
            raise JournalUnfitError(f"{self._path}: another {', '.join(differing)} than now; remove it and start anew")
        self.add(begun)

    def add(self, line: Line) -> None:
        append(self._path, line)
        self.found.apply(line)


def append(path: Path, line: Line) -> None:
    """Add a line behind the last whole one, and see it onto the disk."""
    num_bytes = read_findings(path).num_bytes
    with path.open("ab") as file:
        file.truncate(num_bytes)
        file.write(msgspec.json.encode(line) + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read_findings(path: Path) -> Findings:
    """Everything up to the first line that is not whole; nothing where there is no file.

    Raises:
        JournalUnfitError: a whole line is none of ours.
    """
    found = Findings()
    if not path.exists():
        return found
    decoder = msgspec.json.Decoder(Line)
    for raw in path.read_bytes().splitlines(keepends=True):
        if not raw.endswith(b"\n"):
            break
        try:
            found.apply(decoder.decode(raw))
        except msgspec.DecodeError as error:
            raise JournalUnfitError(f"{path}: not a journal of ci tune: {error}") from error
        found.num_bytes += len(raw)
    return found


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that is known of one candidate at one point; times are None where it is not right or could not be timed."""

    candidate: Candidate
    status: str
    reason: str
    bits: str
    us: float | None = None
    low_us: float | None = None
    high_us: float | None = None


def outcomes_of(found: Findings, point: str) -> list[Outcome]:
    """One for each candidate of a point that was tried, in their order.

    A time is the mean of the medians of all rounds; its interval spans those of all rounds.
    """
    outcomes = []
    for candidate in found.opened[point].candidates:
        checked = found.checked.get((point, candidate.key))
        if checked is None:
            continue
        rounds = [line for (name, key, _), line in found.timed.items() if (name, key) == (point, candidate.key)]
        outcomes.append(_outcome(candidate, checked, rounds))
    return outcomes


def _outcome(candidate: Candidate, checked: Checked, rounds: list[Timed]) -> Outcome:
    medians = [line.median_us for line in rounds if line.median_us is not None]
    if checked.status != "right" or len(medians) < len(rounds) or not medians:
        reason = checked.reason or next((line.reason for line in rounds if line.reason), "not timed")
        status = checked.status if checked.status != "right" else "failed"
        return Outcome(candidate, status, reason, checked.bits)
    lows = [line.low_us for line in rounds if line.low_us is not None]
    highs = [line.high_us for line in rounds if line.high_us is not None]
    us = sum(medians) / len(medians)
    low, high = min([*lows, *medians]), max([*highs, *medians])
    return Outcome(candidate, "right", "", checked.bits, us, low, high)
