"""Stands in for ``benchmarks.run`` with the real journal: cases a to e, each of which does what the script says.

Usage: fake_cases.py FOLDER --set S --out FILE --seed N [--resume]. FOLDER may hold, by name of a case, what happens in
it: ``SIGSEGV`` and other signals, ``hang``, ``lost`` (ends as if its CUDA context were gone), ``interrupt`` (once: its
parent), ``slow`` (up to 0.4 s; otherwise no time). ``measured.txt`` gets a line after each case that the journal holds.
"""

import argparse
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import pyarrow.parquet as pq

from benchmarks.harness import record_files
from benchmarks.harness.errors import CONTEXT_LOST_EXIT
from benchmarks.harness.parent import end_with_parent
from benchmarks.harness.samples import SCHEMA
from benchmarks.journal import Journal, journal_path
from tests.ci.nights import CONTROLS, exact, make_case, make_record, timed

CASES = "abcde"


class Results:
    """As much of ``benchmarks.results.Results`` as a journal needs, without torch."""

    def __init__(self):
        self.measurements, self.checks, self.samples = [], [], []

    @property
    def sizes(self):
        return len(self.measurements), len(self.checks), len(self.samples)

    def restore(self, measurements, checks, samples):
        self.measurements += measurements


def do(what: str, folder: Path, case: str) -> None:
    if what == "interrupt":
        (folder / case).unlink()
        os.kill(os.getppid(), signal.SIGINT)
    if what == "hang":
        (folder / "hanging.txt").write_text(str(os.getpid()))
    if what in ("interrupt", "hang"):
        threading.Event().wait()
    if what == "slow":
        time.sleep(random.uniform(0, 0.4))
    if what.startswith("exit"):
        os._exit(int(what.split()[1]))
    if what.startswith("SIG"):
        os.kill(os.getpid(), signal.Signals[what])


def measure(folder: Path, seed: str, results: Results, journal: Journal) -> None:
    parts = folder / "parts.txt"
    for case in parts.read_text().splitlines() if parts.exists() else CASES:
        if journal.is_finished(case):
            continue
        script = folder / case
        what = script.read_text().strip() if script.exists() else ""
        with journal.part(case):
            reason = journal.blame(case) or ("lost the CUDA context: fake" if what == "lost" else None)
            if reason is None:
                do(what, folder, case)
                results.measurements += [timed(100.0 + time.monotonic() % 1, case=case), exact(1000.0, case=case)]
            else:
                results.measurements.append(timed(None, case=case, status="failed", reason=reason, n_samples=0))
        with (folder / "measured.txt").open("a") as file:
            file.write(f"{seed} {case}\n")
        if what == "lost" and journal.blame(case) is None:
            sys.stdout.write(f"lost the CUDA context in {case}\n")
            sys.stdout.flush()
            os._exit(CONTEXT_LOST_EXIT)


def main() -> None:
    end_with_parent()
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--resume", action="store_true")
    for name in ("--set", "--seed", "--case", "--commit", "--started"):
        parser.add_argument(name)
    args = parser.parse_args()
    with (args.folder / "started.txt").open("a") as file:
        file.write(f"{os.getpid()} {args.seed} {args.resume}\n")
    results, path = Results(), journal_path(args.out)
    with Journal(path, results, {"seed": args.seed}) as journal:
        journal.note_controls(CONTROLS[:1])
        measure(args.folder, args.seed, results, journal)
    record = make_record(
        results.measurements,
        cases=[make_case(case) for case in CASES],
        checks=[],
        seed=int(args.seed),
        attempts=journal.attempts(CONTROLS),
    )
    pq.write_table(SCHEMA.empty_table(), args.out.with_suffix(".parquet"))
    temporary = args.out.with_suffix(".tmp")
    temporary.write_bytes(record_files.encode(record))
    temporary.replace(args.out)
    path.unlink()
    sys.exit(4 if any(item.status == "failed" for item in results.measurements) else 0)


if __name__ == "__main__":
    main()
