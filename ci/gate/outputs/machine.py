"""A gate for programs: the body of a check run, and a badge (https://shields.io/badges/endpoint-badge)."""

import json
from typing import Any

from ci.foreign_text import plain
from ci.gate.result import GateResult

from . import markdown, wording

CHECK_NAME = "performance gate"
COLOURS = {"passed": "brightgreen", "regressed": "red", "incomplete": "orange", "invalid": "orange"}


def check(result: GateResult) -> dict[str, Any]:
    """A completed check run but for the commit, which only the event that started the gate can name."""
    return {
        "name": CHECK_NAME,
        "status": "completed",
        "conclusion": "success" if result.exit_code == 0 else "failure",
        "output": {
            "title": plain(wording.headline(result), 200),
            "summary": markdown.bounded(result),
        },
    }


def badge(result: GateResult) -> dict[str, Any]:
    """For shields.io's endpoint."""
    return {
        "schemaVersion": 1,
        "label": "performance gate",
        "message": plain(wording.headline(result), 60),
        "color": COLOURS.get(result.outcome, "lightgrey"),
    }


def as_bytes(value: dict[str, Any]) -> bytes:
    """Strict JSON, keys sorted, ending in a newline."""
    return (json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()
