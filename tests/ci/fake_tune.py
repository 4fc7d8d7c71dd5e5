"""Stands in for ``benchmarks.tune``: sweeps made-up candidates with made-up times, and does what the script says.

Usage: python -m tests.ci.fake_tune FOLDER OP --dtype ... --journal FILE. FOLDER/script.json maps candidates to what
they do: a number of us, "wrong", "raise", "crash" (ends the process), or "interrupt" (signals the parent, then hangs;
once). By batch where that is a mapping.
"""

import argparse
import json
import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness.stats.summary import Summary
from benchmarks.tuning import WrongError, sweep
from benchmarks.tuning_journal import Begun, Candidate, Point, TuningJournal


class FakeBench:
    """Every candidate of the script; the first is today's. ``bits`` are the form's."""

    def __init__(self, folder: Path, point: Point) -> None:
        self.folder, self.point = folder, point
        self.script = json.loads((folder / "script.json").read_text())
        self.candidates = [candidate_of(key) for key in self.script]
        self.incumbent = self.candidates[0]
        self.forms = ["wgmma", "recurrence"]

    def _do(self, candidate: Candidate) -> object:
        do = self.script[candidate.key]
        return do[str(self.point.num_requests)] if isinstance(do, dict) else do

    def check(self, candidate: Candidate) -> str:
        with (self.folder / "checked.txt").open("a") as file:
            file.write(f"{candidate.key} B={self.point.num_requests}\n")
        match self._do(candidate):
            case "wrong":
                raise WrongError("u_error 0.3 is above 1e-06")
            case "raise":
                raise RuntimeError("out of resource: shared memory\nmore")
            case "crash":
                os._exit(3)
            case "interrupt":
                stopped = self.folder / "stopped"
                if not stopped.exists():
                    stopped.touch()
                    os.kill(os.getppid(), signal.SIGINT)
                    threading.Event().wait()
        return candidate.form

    def measure(self, candidate: Candidate) -> Summary:
        do = self._do(candidate)
        us = float(do) if isinstance(do, int | float) else 50.0
        return Summary(30, us, us - 0.01, us + 0.01, us, us)

    def why_lost(self) -> None:
        return None


def candidate_of(key: str) -> Candidate:
    """The candidate of a key such as "recurrence BV=16 num_warps=1"."""
    form, *constants = key.split(" ")
    return Candidate(form, {name: int(value) for name, _, value in (one.partition("=") for one in constants)})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("op")
    for name in ("--dtype", "--batch", "--tokens"):
        parser.add_argument(name, action="append")
    for name in ("--heads", "--candidate", "--rounds", "--journal"):
        parser.add_argument(name)
    args = parser.parse_args()
    points = [
        Point(args.op, dtype, int(args.heads), int(batch), int(window))
        for dtype in args.dtype
        for window in args.tokens
        for batch in args.batch
    ]
    measure(args.folder, points, Path(args.journal), int(args.rounds))


def measure(folder: Path, points: Sequence[Point], path: Path, num_rounds: int) -> None:
    """What the program does, for tests that need no process of its own."""
    journal = TuningJournal(path)
    journal.begin(Begun({"op": points[0].op}, "NVIDIA H200", 90, "2.11.0", "3.6.0", "2026-11-29"))
    sweep(points, lambda point: FakeBench(folder, point), journal, num_rounds, print)


if __name__ == "__main__":
    main()
