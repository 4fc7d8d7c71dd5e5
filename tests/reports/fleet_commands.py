"""What commands that look at nights take on the store of ``fleet.py``, behind its server. No number was measured.

python -m tests.reports.fleet_commands --out /tmp/fleet [--fleet 4,25,1095] [--write docs/operating.md]
"""

import argparse
import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from ci.marked import write_between_marks
from tests.reports.fleet import Fleet, timed

MARK = "fleet-commands"
REASON = "a sentence that is long enough"


def commands(fleet: Fleet, out: Path) -> dict[str, tuple[str, ...]]:
    """As a user writes them, up to the store; some of them end with a no, for all nights are accepted."""
    model, night = fleet.gpu_models[0], fleet.names("nights", fleet.gpu_models[0])[-1].split("/")[-1][:-5]
    return {
        "overdue": ("overdue", "--gpu-model", "nvidia-*", "--store"),
        "accept night": ("accept", "night", night, "--owner", "nobody", "--reason", REASON, "--dry-run", "--store"),
        "gate prepare --with-data": ("gate", "prepare", "HEAD~1", "HEAD", "--out", str(out / "gate"), "--with-data"),
        "announce": ("announce", "--out", str(out / "announce"), "--store"),
        "trends": ("trends", "--gpu-model", model, "--store"),
        "spread --night": ("spread", "--night", night, "--store"),
        "compare": ("compare", "latest~1", "latest", "--gpu-model", model, "--store"),
    }


def measure(fleet: Fleet, out: Path, latency_ms: float, only: str | None) -> dict[str, Mapping[str, float]]:
    """By command, each with nothing kept of the store."""
    found = {}
    for name, command in commands(fleet, out).items():
        if only in (None, name):
            shutil.rmtree(out, ignore_errors=True)
            found[name] = timed(fleet, out / "cache", latency_ms, "ci", *command, exit_codes=range(5))
    return found


def table(fleet: Fleet, rows: Mapping[str, Mapping[str, float]], latency_ms: float) -> str:
    """Markdown."""
    said = (
        f"{fleet.models} GPU models, {fleet.cards} cards of each, {fleet.days} days: {fleet.num_nights} nights; every "
        f"request is answered after {latency_ms:g} ms, and nothing is kept at first."
    )
    keys = ("seconds", "core_seconds", "requests", "megabytes")
    lines = ["| `python -m ci` | s | of a core | requests | MB read |", "|---|" + "---:|" * len(keys)]
    lines += [f"| `{name}` | " + " | ".join(f"{row[key]:g}" for key in keys) + " |" for name, row in rows.items()]
    return "\n".join([said, "", *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of cache and files; emptied")
    parser.add_argument("--fleet", default="4,25,1095", help="MODELS,CARDS,DAYS")
    parser.add_argument("--latency-ms", type=float, default=20.0, help="of every answer, as between data centres")
    parser.add_argument("--only", help="one of the commands")
    parser.add_argument("--write", type=Path, help="document to write the table into, between its marks")
    chosen = parser.parse_args()
    fleet = Fleet(*map(int, chosen.fleet.split(",")))
    rows = measure(fleet, chosen.out, chosen.latency_ms, chosen.only)
    sys.stdout.write(json.dumps(rows, indent=1) + "\n")
    if chosen.write:
        write_between_marks(chosen.write, MARK, table(fleet, rows, chosen.latency_ms))


if __name__ == "__main__":
    main()
