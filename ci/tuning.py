"""``ci tune``: has candidates measured on one GPU, chooses among them, and writes rows of the launch table."""

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.harness.errors import CONTEXT_LOST_EXIT, LockHeldError
from benchmarks.harness.lock import GpuLock
from benchmarks.tuning_journal import (
    Candidate,
    Checked,
    JournalUnfitError,
    Point,
    append,
    read_findings,
)
from benchmarks.tuning_space import BATCHES, OPS, WINDOWS

from .exits import BrokenEnvironmentError, Exit, Interrupted, MissingDataError, UsageError
from .gpus import CPU, Gpu, choose_gpus, find_gpus
from .launch_rows import write_table
from .processes import Ended, interruptible, run_child
from .tuned import Result, conclude

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = (sys.executable, "-m", "benchmarks.tune")
STATE_DTYPES = ("fp32", "bf16")

CAP_S = 7200.0
QUIET_CAP_S = (
    180.0  # nothing new in the journal for so long: the candidate at hand hangs; start-up and compilation included
)
MAX_RESTARTS = 8  # of the measuring process after candidates that crashed or hung it

POINT_S, CANDIDATE_S, ROUND_S = 6.0, 2.0, 0.4
"""For an estimate: preparing a point, compiling and checking a candidate, timing it once."""


@dataclass(frozen=True, slots=True)
class Request:
    """What to tune. Empty selections stand for the whole documented space."""

    op: str
    state_dtypes: Sequence[str] = ()
    batches: Sequence[int] = ()
    windows: Sequence[int] = ()
    num_heads: int = 12
    candidates: str = "*"
    num_rounds: int = 2
    any_bits: bool = False

    @property
    def points(self) -> list[Point]:
        """In the order in which they are measured.

        Raises:
            UsageError: an unknown op or dtype, or two windows that would share their rows.
        """
        if self.op not in OPS:
            raise UsageError(f"OP: expected one of {', '.join(OPS)}, got {self.op!r}")
        for state_dtype in self.state_dtypes:
            if state_dtype not in STATE_DTYPES:
                raise UsageError(f"--dtype: expected one of {', '.join(STATE_DTYPES)}, got {state_dtype!r}")
        points = [
            Point(self.op, state_dtype, self.num_heads, batch, window)
            for state_dtype in dict.fromkeys(self.state_dtypes or STATE_DTYPES)
            for window in dict.fromkeys(self.windows or WINDOWS)
            for batch in dict.fromkeys(self.batches or BATCHES)
        ]
        places: dict[tuple[str, int, int], Point] = {}
        for point in points:
            other = places.setdefault((point.state_dtype, *point.place), point)
            if other is not point:
                raise UsageError(f"--tokens, --batch: {other.name} and {point.name} are tuned for the same rows")
        return points

    def arguments(self, journal: Path) -> list[str]:
        """Of the measuring program."""
        points = self.points
        chosen = [
            *(("--dtype", one) for one in dict.fromkeys(point.state_dtype for point in points)),
            *(("--tokens", str(one)) for one in dict.fromkeys(point.spec_query_len for point in points)),
            *(("--batch", str(one)) for one in dict.fromkeys(point.num_requests for point in points)),
        ]
        rest = ["--heads", str(self.num_heads), "--candidate", self.candidates, "--rounds", str(self.num_rounds)]
        return [self.op, *(part for pair in chosen for part in pair), *rest, "--journal", str(journal)]


def measure(
    request: Request,
    folder: Path,
    console: Console,
    *,
    resume: bool,
    gpus: str | None,
    wait_s: float,
    program: Sequence[str] = PROGRAM,
) -> Path:
    """Have every point measured under the GPU's lock; returns the journal, which holds whatever was finished.

    Points that it has in full are not measured again; where it has all, no GPU is needed.

    Raises:
        UsageError, MissingDataError, BrokenEnvironmentError: it cannot begin or go on.
        KeyboardInterrupt: the journal is whole; ``resume`` goes on.
    """
    journal = folder / f"{request.op}.journal"
    arguments = request.arguments(journal.resolve())
    _matching(request)
    if journal.exists() and not resume:
        raise UsageError(f"{journal}: an earlier tuning; --resume goes on with it", f"or remove it: rm {journal}")
    if all(point.name in read_findings(journal).closed for point in request.points):
        return journal
    gpu = choose_gpus(gpus, find_gpus())[0]
    if gpu.uuid == CPU:
        raise BrokenEnvironmentError("no GPU: launch rows are measured on the card that they are for")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with GpuLock(gpu.uuid, timeout_s=wait_s), interruptible():
            _run_to_the_end(gpu, [*program, *arguments], journal, console)
    except LockHeldError as error:
        raise BrokenEnvironmentError(str(error), "wait for it: --wait SECONDS") from error
    except Interrupted as signal:
        raise KeyboardInterrupt from signal
    return journal


def _run_to_the_end(gpu: Gpu, command: Sequence[str], journal: Path, console: Console) -> None:
    def say(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    for _ in range(MAX_RESTARTS + 1):
        env = gpu.child_env(os.environ)
        ended = run_child(command, env=env, cwd=ROOT, cap_s=CAP_S, on_line=say, watch=watch(journal))
        if ended.code == Exit.PASS:
            return
        _require_restart(ended, journal)
        say(f"the measuring process ended ({ended.describe(CAP_S)}); another one goes on")
    raise BrokenEnvironmentError(f"{MAX_RESTARTS + 1} measuring processes ended early", "see --out for the journal")


def _require_restart(ended: Ended, journal: Path) -> None:
    """Note the candidate that ended the process; raise where none did."""
    last = ended.tail[-1] if ended.tail else "it said nothing"
    if ended.code == Exit.USAGE:
        raise UsageError(last)
    if ended.code in (Exit.BROKEN, Exit.INVALID) or ended.timed_out:
        raise BrokenEnvironmentError(f"measuring process: {ended.describe(CAP_S)}", "python -m ci doctor")
    trying = read_findings(journal).trying
    if trying is not None:
        reason = f"ended its process: {ended.describe(CAP_S)}"
        append(journal, Checked(trying.point, trying.candidate, "failed", reason))
    elif ended.code != CONTEXT_LOST_EXIT:
        raise BrokenEnvironmentError(f"measuring process: {ended.describe(CAP_S)}", "python -m ci doctor")


def watch(journal: Path) -> Callable[[], str | None]:
    """Says so when nothing new comes."""
    size, since_s = -1, time.monotonic()

    def look() -> str | None:
        nonlocal size, since_s
        now = journal.stat().st_size if journal.exists() else 0
        if now != size:
            size, since_s = now, time.monotonic()
        return f"nothing new for {QUIET_CAP_S:g} s" if time.monotonic() - since_s > QUIET_CAP_S else None

    return look


def preview(request: Request) -> dict[str, Any]:
    """What a tuning would do; touches no GPU. Forms that do not fit the card will be left out.

    Raises:
        MissingDataError: no candidate matches.
    """
    points = [{"name": point.name} for point in request.points]
    return {"op": request.op, "points": points, "candidates": [{"name": str(one)} for one in _matching(request)]}


def estimate(request: Request) -> dict[str, Any]:
    """About how long it takes where nothing is in the caches of Triton."""
    num_points, num_candidates = len(request.points), len(_matching(request))
    seconds = num_points * (POINT_S + num_candidates * (CANDIDATE_S + request.num_rounds * ROUND_S))
    return {"points": num_points, "candidates": num_candidates, "about_s": round(seconds)}


def _matching(request: Request) -> list[Candidate]:
    from benchmarks.tuning_bench import known_candidates

    known = known_candidates(request.op)
    found = [candidate for candidate in known if fnmatchcase(str(candidate), request.candidates)]
    if not found:
        names = "\n  ".join(map(str, known))
        raise MissingDataError(f"--candidate: nothing matches {request.candidates!r}; known:\n  {names}")
    return found


def tune(
    request: Request,
    folder: Path,
    table: Path,
    console: Console,
    *,
    resume: bool = False,
    write: bool = False,
    gpus: str | None = None,
    wait_s: float = 0.0,
    program: Sequence[str] = PROGRAM,
) -> Result:
    """Measure, choose, and write where that is asked for.

    Raises:
        CommandError, KeyboardInterrupt: see ``measure``, ``conclude`` and ``write_table``.
    """
    try:
        journal = measure(request, folder, console, resume=resume, gpus=gpus, wait_s=wait_s, program=program)
        result = conclude(request.points, read_findings(journal), table.read_text("utf-8"), any_bits=request.any_bits)
    except JournalUnfitError as error:
        raise UsageError(str(error)) from error
    if write:
        write_table(table, result.text)
    return result


def next_step(result: Result, table: Path, written: bool) -> str:
    """What to do with the rows."""
    if not result.changed:
        return f"{table} stays as it is"
    if written:
        return f"written: {table}\nnext: git diff {table}; make test-gpu"
    return "next: the same command with --resume --write puts them into the launch table"
