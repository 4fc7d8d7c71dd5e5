"""Trends as a file for programs, and the confirmations that first nights out of line ask for."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from ci.config import Key
from ci.whole_files import json_bytes, replace_file

from .examine import Change, Creep, Suspicion, Trends
from .series import Point

MERGED = "whoever merged it"
SERIES_KEY = ("metric", "op", "provider", "case", "contract")


def confirmations(found: Trends, case_set: str) -> list[dict[str, Any]]:
    """One gate for each pair of commits that suspicions lie between: its cases and its command."""
    cases: dict[tuple[str, str], list[str]] = {}
    for one in found.suspicions:
        if one.can_be_confirmed:
            cases.setdefault((str(one.before.commit), str(one.tonight.commit)), []).append(one.key[3])
    return [
        {"base": base, "head": head, "cases": (own := sorted(set(names))), "command": _gate(base, head, case_set, own)}
        for (base, head), names in cases.items()
    ]


def bisections(found: Trends, case_set: str) -> list[str]:
    """For each alarm that lies between two commits, the command that finds the one."""
    between = [(one.before.commit, one.after.commit, one.key) for one in found.changes if one.is_alarm]
    return [
        f"bisect: python -m ci bisect {good} {bad} --set {case_set} --case {key[3]} --op {key[1]} --provider {key[2]}"
        for good, bad, key in between
        if good and bad and good != bad
    ]


def _gate(base: str, head: str, case_set: str, cases: Sequence[str]) -> list[str]:
    return [
        *("python", "-m", "ci", "gate", "--base", base, "--head", head),
        *("--set", case_set, "--case", ",".join(cases), "--out", f"out/confirm/{base[:12]}-{head[:12]}"),
        *("--policy-approved-by", MERGED),  # or a change of a limit would fail the night that it was merged before
    ]


def as_json(found: Trends, case_set: str) -> dict[str, Any]:
    """Everything that was found; series without anything to tell are counted."""
    return {
        "schema_version": 1,
        "gpu_model": found.gpu_model,
        "night": found.night,
        "exit_code": int(found.code),
        "num_nights": found.num_nights,
        "num_series": len(found.series),
        "family": found.family,
        "alarms": found.alarms,
        "changes": [_change(change) for change in found.changes],
        "suspected": [_suspicion(one) for one in found.suspicions],
        "confirm": confirmations(found, case_set),
        "pinned": found.pinned,
        "creep": [_creep(one) for one in found.creep],
        "adjusted_by_control": [
            {**_key(one.key), "coefficient": one.coefficient} for one in found.series if one.coefficient
        ],
        "notes": found.notes,
    }


def _key(key: Key) -> dict[str, str]:
    return dict(zip(SERIES_KEY, key, strict=True))


def _point(point: Point) -> dict[str, Any]:
    return {"night": point.night, "commit": point.commit, "value": point.value, "n_processes": point.n_processes}


def _change(change: Change) -> dict[str, Any]:
    return {
        **_key(change.key),
        "change_pct": change.step.change_pct,
        "is_worse": change.is_worse,
        "is_alarm": change.is_alarm,
        "is_new": change.is_new,
        "gated": change.gated,
        "known": change.known,
        "before": _point(change.before),
        "after": _point(change.after),
        "nights_since": change.step.nights_after,
    }


def _suspicion(one: Suspicion) -> dict[str, Any]:
    return {
        **_key(one.key),
        **{name: value if math.isfinite(value) else None for name, value in msgspec.to_builtins(one.surprise).items()},
        "before": _point(one.before),
        "tonight": _point(one.tonight),
        "can_be_confirmed": one.can_be_confirmed,
    }


def _creep(one: Creep) -> dict[str, Any]:
    return {
        **_key(one.key),
        "change_pct": one.judgement.change_pct,
        "reason": one.judgement.reason,
        "is_alarm": one.is_alarm,
        "known": one.known,
    }


def write(found: Trends, case_set: str, folder: Path) -> Path:
    """``trends-<GPU model>.json`` in the folder. Raises BrokenEnvironmentError where it cannot be written."""
    path = folder / f"trends-{found.gpu_model}.json"
    return replace_file(path, json_bytes(as_json(found, case_set)))
