"""``ci accept regression``: entries of known-regressions.toml made from what a night or a gate found."""

import datetime as dt
import json
import math
import os
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks.harness.records import Night
from ci.exits import MissingDataError, UsageError
from ci.gate.result import decode
from ci.policy import KnownRegression, KnownRegressions, check_entry, load_known

DAYS = 60  # an entry lasts where nothing is said
BAND_STEP_PCT = 0.1  # bands are rounded away from zero to this


class Found(NamedTuple):
    """One regression that fails its night or gate; the change in percent of the base, with its interval where known.

    There is no change in percent of what came from zero, such as a kernel's first spill.
    """

    metric: str
    op: str
    provider: str
    case: str
    contract: str
    gpu_model: str
    change_pct: float | None
    low_pct: float | None
    high_pct: float | None


@dataclass(frozen=True, slots=True)
class Decision:
    """What an owner says; globs choose among the regressions found."""

    owner: str
    reason: str
    date: dt.date
    expires: dt.date
    case: str = "*"
    metric: str = "*"
    op: str = "*"
    provider: str = "*"
    commit: str | None = None

    def chooses(self, found: Found) -> bool:
        globs = (self.metric, self.op, self.provider, self.case)
        return all(map(fnmatchcase, found[:4], globs))


def of_night(night: Night) -> list[Found]:
    """The regressions that fail a night."""
    return [
        Found(*v.key, _cards(v.contract, night.gpu_model), v.change_pct, v.change_low_pct, v.change_high_pct)
        for v in night.verdicts
        if v.fails and v.verdict == "regressed"
    ]


def of_gate(path: Path) -> list[Found]:
    """Those that fail a gate. Raises UsageError for what is no verdict file."""
    try:
        result = decode(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise UsageError(f"{path}: expected the verdict.json of a gate: {error}") from error
    return [
        Found(*v.key, _cards(v.contract, v.gpu_model), v.change_pct, v.low_pct, v.high_pct)
        for v in result.verdicts
        if v.fails and v.verdict == "regressed"
    ]


def _cards(contract: str, gpu_model: str) -> str:
    # Computed values are the same on every card.
    return "*" if contract == "exact" else gpu_model


def make_entries(found: Iterable[Found], decision: Decision, known: KnownRegressions) -> list[KnownRegression]:
    """One entry for each case of each series that was chosen, with the interval of its change as the band.

    Raises:
        MissingDataError: none was chosen; those found are named.
        UsageError: an entry of the file fits already, and would go on to count; the dates make no sense; or there is
            no change in percent that a band could hold.
    """
    found = list(found)
    chosen = [one for one in found if decision.chooses(one)]
    if not chosen:
        names = ", ".join("/".join(one[:4]) for one in found[:5]) or "none"
        raise MissingDataError(f"no regression fits --metric, --op, --provider and --case; found: {names}")
    entries = []
    for one in chosen:
        if old := known.entry_for(one[:5], one.gpu_model):
            number = known.regression.index(old) + 1
            raise UsageError(
                f"entry {number} ({old.name}) fits {'/'.join(one[:5])} already", "change that entry, or remove it first"
            )
        if one.change_pct is None:
            raise UsageError(
                f"{'/'.join(one[:5])} came from zero: no band in percent can hold it",
                "leave it out, by --metric or --op; land the change as its owner, then: python -m ci accept night",
            )
        entry = KnownRegression(
            metric=one.metric,
            op=one.op,
            provider=one.provider,
            case=one.case,
            contract=one.contract,
            gpu_model=one.gpu_model,
            expected_pct=_band(one.change_pct, one.low_pct, one.high_pct),
            commit=decision.commit,
            reason=decision.reason,
            owner=decision.owner,
            date=decision.date.isoformat(),
            expires=decision.expires.isoformat(),
        )
        check_entry("this entry", entry)
        entries.append(entry)
    return entries


def write_entries(entries: Sequence[KnownRegression], path: Path) -> str:
    """Put them at the end of the file, whose other lines stay as they are; returns what was added.

    Raises:
        UsageError: the file would not be sound with them; then it is left as it was.
    """
    added = "".join(as_toml(entry) for entry in entries)
    text = (path.read_text(encoding="utf-8") if path.exists() else "version = 1\n") + added
    tomllib.loads(text)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        load_known(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return added


def as_toml(entry: KnownRegression) -> str:
    """The entry as a table of the file, with an empty line before it."""
    low, high = entry.expected_pct
    series = ("metric", "op", "provider", "case", "contract", "gpu_model")
    lines = ["", "[[regression]]", *(f"{name} = {_quoted(getattr(entry, name))}" for name in series)]
    lines.append(f"expected_pct = [{low}, {high}]")
    if entry.commit:
        lines.append(f"commit = {_quoted(entry.commit)}")
    lines += [f"{name} = {_quoted(getattr(entry, name))}" for name in ("reason", "owner", "date", "expires")]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    if not text.isprintable():
        raise UsageError(f"expected printable characters, got {text!r}")
    return json.dumps(text, ensure_ascii=False)  # JSON's string of printable characters is TOML's


def _band(change_pct: float, low_pct: float | None, high_pct: float | None) -> tuple[float, float]:
    # From the near end of the interval to its far end; an interval that reaches zero begins at half the change.
    known = [end for end in (low_pct, high_pct, change_pct) if end is not None]
    ends = sorted(map(abs, known))
    near = ends[0] if len({math.copysign(1, end) for end in known}) == 1 else abs(change_pct) / 2
    near = max(math.floor(near / BAND_STEP_PCT), 1) * BAND_STEP_PCT
    far = max(math.ceil(ends[-1] / BAND_STEP_PCT), 1) * BAND_STEP_PCT
    low, high = round(near, 1), round(far, 1)
    return (low, high) if change_pct > 0 else (-high, -low)
