"""What owners decided, in files beside this one: limits, known regressions, renamed cases. An unknown key is an error.

A *known regression* is a change for the worse that an owner took on for a time: it is judged and shown as ever, and
fails nothing while it stays within its expected band and its entry has not expired. A *renamed case* goes on under its
new name; without an entry its old name is missing.
"""

import datetime as dt
import hashlib
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from benchmarks.harness.ids import COMMIT_HASH
from benchmarks.harness.records import Record, RegressionState, VerdictName

from .config import (
    EXACT_CONTRACTS,
    FOLDER,
    THRESHOLDS_FILE,
    Date,
    Key,
    Reason,
    Text,
    Thresholds,
    load_thresholds,
    load_toml,
)
from .exits import UsageError

KNOWN_FILE = FOLDER / "known-regressions.toml"
ALIASES_FILE = FOLDER / "aliases.toml"
FILES = (THRESHOLDS_FILE.name, KNOWN_FILE.name, ALIASES_FILE.name)
MAX_DAYS = 180  # from date to expiry: what nobody looks at for half a year is forgotten, not known


class KnownRegression(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One entry: which series (globs), by how much they may be worse, why, whose it is, and until when."""

    metric: Text
    op: Text
    provider: Text
    case: Text
    contract: Text = "*"
    gpu_model: Text = "*"
    expected_pct: tuple[float, float]  # change in percent of the base's value, as verdicts have it: +2 to +5 of a time
    commit: str | None = None  # that brought it; left out while the change has not landed yet
    reason: Reason
    owner: Text
    date: Date
    expires: Date

    def fits(self, key: Key, gpu_model: str) -> bool:
        globs = (self.metric, self.op, self.provider, self.case, self.contract, self.gpu_model)
        return all(map(fnmatchcase, (*key, gpu_model), globs))

    def is_expired(self, today: dt.date) -> bool:
        """Its last day is ``expires``."""
        return today > dt.date.fromisoformat(self.expires)

    def covers(self, change_pct: float) -> bool:
        """Whether a change for the worse is no worse than expected; a smaller one is covered too."""
        low, high = self.expected_pct
        return change_pct <= high if high > 0 else change_pct >= low

    @property
    def name(self) -> str:
        place = "/".join((self.metric, self.op, self.provider, self.case, self.contract))
        return place if self.gpu_model == "*" else f"{place} on {self.gpu_model}"


class Known(NamedTuple):
    """What the entries make of a verdict; the state is empty where there is nothing to say."""

    state: RegressionState = ""
    reason: str = ""


class KnownRegressions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The content of ``known-regressions.toml``. The first entry that fits a series counts."""

    version: Literal[1] = 1
    regression: list[KnownRegression] = []

    def entry_for(self, key: Key, gpu_model: str) -> KnownRegression | None:
        return next((entry for entry in self.regression if entry.fits(key, gpu_model)), None)

    def not_landed(self) -> "KnownRegressions":
        """Entries of changes to come: all that may excuse a head whose base is this file's commit.

        What has landed slows both sides alike, so an entry that names its commit would excuse a second slowdown.
        """
        return replace(self, regression=[entry for entry in self.regression if entry.commit is None])

    def say(
        self,
        key: Key,
        gpu_model: str,
        verdict: VerdictName,
        change_pct: float | None,
        *,
        today: dt.date,
        seen_before: bool = False,
    ) -> Known:
        """What is known of one verdict. ``seen_before``: other data than these have shown the same regression."""
        entry = self.entry_for(key, gpu_model)
        if verdict == "regressed":
            certain = seen_before or key[4] in EXACT_CONTRACTS  # exact values have no noise
            unknown: RegressionState = "confirmed" if certain else "new"
            return Known(unknown) if entry is None else _excuse(entry, change_pct, today, unknown)
        if entry is not None and verdict in ("unchanged", "improved"):
            return Known("fixed", f"no longer worse than the base; known since {entry.date}")
        return Known()

    def stale(self, said: Iterable[tuple[Key, str, RegressionState]], today: dt.date) -> list[str]:
        """A sentence for each entry that should go: expired, or fixed in every series of it that was judged.

        Args:
            said: key, GPU model and state of every verdict.
        """
        states: dict[int, Counter[RegressionState]] = {}
        for key, gpu_model, state in said:
            for index, entry in enumerate(self.regression):
                if entry.fits(key, gpu_model):
                    states.setdefault(index, Counter())[state] += 1
        notes = []
        for index, entry in enumerate(self.regression):
            found = states.get(index, Counter())
            if entry.is_expired(today):
                notes.append(f"expired on {entry.expires}: counts no more; {entry.owner} renews or removes it")
            elif found and set(found) == {"fixed"}:
                notes.append(f"fixed in all {found.total()} series that were judged; {entry.owner} removes it")
            else:
                continue
            notes[-1] = f"{KNOWN_FILE.name} entry {index + 1} ({entry.name}): {notes[-1]}"
        return notes


def _excuse(entry: KnownRegression, change_pct: float | None, today: dt.date, unknown: RegressionState) -> Known:
    low, high = entry.expected_pct
    whose = f"{entry.reason} ({entry.owner}, until {entry.expires})"
    if entry.is_expired(today):
        return Known("expired", f"known, but the entry expired on {entry.expires} ({entry.owner})")
    if change_pct is None or not entry.covers(change_pct):
        return Known(unknown, f"known, but worse than the {low:+g}..{high:+g} % expected: {whose}")
    return Known("acknowledged", whose)


class Alias(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A case that was renamed and stands for the same work."""

    old: Text
    new: Text
    reason: Reason
    owner: Text
    date: Date


class Aliases(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The content of ``aliases.toml``."""

    version: Literal[1] = 1
    alias: list[Alias] = []

    def now(self, case: str) -> str:
        """The name that a case has today; a case may have been renamed several times."""
        new = {alias.old: alias.new for alias in self.alias}
        while case in new:
            case = new[case]
        return case

    def names(self, present: Collection[str]) -> dict[str, str]:
        """Today's name of each of these; an old name is left out where the new one is there too."""
        return {name: now for name in present if (now := self.now(name)) == name or now not in present}

    def renamed(self, record: Record) -> Record:
        """The record with today's names of its cases; what it holds under both names counts under the new one."""
        present = {case.name for case in record.cases} | {m.case for m in record.measurements}
        names = self.names(present)
        if names == {name: name for name in present}:
            return record
        return replace(
            record,
            cases=[replace(c, name=names[c.name]) for c in record.cases if c.name in names],
            checks=[replace(c, case=names[c.case]) for c in record.checks if c.case in names],
            measurements=[replace(m, case=names[m.case]) for m in record.measurements if m.case in names],
        )


@dataclass(frozen=True, slots=True)
class Policy:
    """All that judges: limits, what is known, what was renamed."""

    thresholds: Thresholds
    known: KnownRegressions = field(default_factory=KnownRegressions)
    aliases: Aliases = field(default_factory=Aliases)


def load_policy(folder: Path = FOLDER) -> Policy:
    """The three files of a folder; one but the limits may be absent, as in older commits.

    Raises:
        UsageError: names the file, the place and what was expected there.
    """
    return Policy(
        load_thresholds(folder / THRESHOLDS_FILE.name),
        load_known(folder / KNOWN_FILE.name),
        load_aliases(folder / ALIASES_FILE.name),
    )


def forgotten(policy: Policy, cases: Collection[str], today: dt.date) -> list[str]:
    """A sentence for each entry that nobody needs: expired, or of cases that no set has (any more, or yet).

    Args:
        cases: names of all sets together.
    """
    notes = []
    for number, entry in enumerate(policy.known.regression, start=1):
        where = f"{KNOWN_FILE.name} entry {number} ({entry.name})"
        if entry.is_expired(today):
            notes.append(f"{where}: expired on {entry.expires}; {entry.owner} renews or removes it")
        elif not any(fnmatchcase(case, entry.case) for case in cases):
            notes.append(f"{where}: no set has such a case")
    for alias in policy.aliases.alias:
        if policy.aliases.now(alias.new) not in cases:
            notes.append(f"{ALIASES_FILE.name}: {alias.old} is called {alias.new}, which no set has")
        elif alias.old in cases:
            notes.append(f"{ALIASES_FILE.name}: {alias.old} is renamed, and a set still has it")
    return notes


def policy_hash(folder: Path = FOLDER) -> str:
    """Of the three files, absent ones included: equal exactly where the same policy judges."""
    digest = hashlib.sha256()
    for name in FILES:
        path = folder / name
        content = path.read_bytes() if path.exists() else b""
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def load_known(path: Path = KNOWN_FILE) -> KnownRegressions:
    """Raises UsageError, as ``load_policy``. A file that does not exist has no entries."""
    known = load_toml(path, KnownRegressions) if path.exists() else KnownRegressions()
    for number, entry in enumerate(known.regression, start=1):
        check_entry(f"{path}: entry {number}", entry)
    return known


def load_aliases(path: Path = ALIASES_FILE) -> Aliases:
    """Raises UsageError, as ``load_policy``. A file that does not exist has no entries."""
    aliases = load_toml(path, Aliases) if path.exists() else Aliases()
    new = _one_to_one(path, aliases.alias)
    for start in new:
        seen, case = {start}, new[start]
        while case in new:
            if case in seen:
                raise UsageError(f"{path}: {start!r} is renamed in a circle; remove one of its aliases")
            seen.add(case)
            case = new[case]
    return aliases


def check_entry(where: str, entry: KnownRegression) -> None:
    """Raises UsageError for an entry that is valid TOML and no sound decision."""
    low, high = entry.expected_pct
    if not (-math.inf < low <= high < math.inf and low * high > 0):
        raise UsageError(
            f"{where}: expected_pct: expected [low, high], finite, both above or both below 0, got [{low:g}, {high:g}]"
        )
    for name in ("metric", "op", "provider"):
        if any(mark in getattr(entry, name) for mark in "*?["):
            raise UsageError(f"{where}: {name}: expected one name, got {getattr(entry, name)!r}; cases may be a glob")
    if entry.commit is not None and not COMMIT_HASH.fullmatch(entry.commit):
        raise UsageError(f"{where}: commit: expected 7 to 40 hex digits, got {entry.commit!r}")
    days = (_day(where, "expires", entry.expires) - _day(where, "date", entry.date)).days
    if not 0 < days <= MAX_DAYS:
        raise UsageError(
            f"{where}: expires: expected at most {MAX_DAYS} days after {entry.date}, and after it; got {entry.expires}"
        )


def _day(where: str, name: str, text: str) -> dt.date:
    try:
        return dt.date.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"{where}: {name}: {text}: {error}") from error


def _one_to_one(path: Path, aliases: Sequence[Alias]) -> Mapping[str, str]:
    for side, names in (("old", [a.old for a in aliases]), ("new", [a.new for a in aliases])):
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            raise UsageError(f"{path}: {side} = {twice[0]!r} stands in two entries; a case has one past and one future")
    return {alias.old: alias.new for alias in aliases}
