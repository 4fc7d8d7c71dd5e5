"""Hardware counters of one launch per op: runs Nsight Compute on it, and holds reads and writes against the model."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from benchmarks.harness import ncu
from benchmarks.harness.errors import LockHeldError
from benchmarks.harness.lock import GpuLock
from benchmarks.harness.records import Counter

from .exits import BrokenEnvironmentError, Exit, Interrupted, MissingDataError
from .gpus import CPU, Gpu, choose_gpus, find_gpus
from .measuring import ROOT
from .processes import interruptible, run_child

PROGRAM = (sys.executable, "-m", "benchmarks.launch_once")
CAP_S = 420.0
REPORT_NAME = "counters.ncu-rep"
NIGHTLY_SET = "smoke"  # counters of a night: six cases, and two that are large enough to compare
L2_MULTIPLE = 4  # of the L2 that an op must read for its counted and modelled reads to be compared
READ_TOLERANCE_PCT = 10.0  # what one launch reads beyond the model: indices, gates, a few sectors twice
WRITE_TOLERANCE_PCT = 1.0  # that writes may fall short of the model; above it they are where sectors come in pieces
SECTOR_BYTES = 32
MIN_WRITE_SECTORS = 1000  # of a launch whose writes are compared


class Launch(msgspec.Struct, frozen=True):
    """One entry of the listing that ``benchmarks.launch_once`` writes."""

    case: str
    provider: str
    op: str
    model_read_bytes: int
    model_write_bytes: int


class Listing(msgspec.Struct, frozen=True):
    l2_bytes: int
    launches: list[Launch]


@dataclass(frozen=True, slots=True)
class Counted:
    """What came of it: counters, or the reason why there are none.

    Attributes:
        launches: what ncu said of each launch, in the order of ``counters``.
    """

    counters: Sequence[Counter] = ()
    missing: str | None = None
    launches: Sequence[ncu.CountedLaunch] = field(default=())


def count(
    gpu: Gpu,
    folder: Path,
    arguments: Sequence[str],
    console: Console,
    *,
    metrics: Mapping[str, str] = ncu.COUNTED,
    program: Sequence[str] = PROGRAM,
    tool: str | None = None,
) -> Counted:
    """Count the launches that ``arguments`` of ``benchmarks.launch_once`` choose; the report stays in ``folder``."""
    tool = tool or ncu.find_ncu()
    if gpu.uuid == CPU:
        return Counted(missing="no GPU")
    if tool is None:
        return Counted(missing="no ncu: neither on PATH nor in /usr/local/cuda/bin (Nsight Compute comes with CUDA)")
    folder = folder.resolve()  # the program runs in the repository, whatever folder this is called from
    folder.mkdir(parents=True, exist_ok=True)
    report, listing = folder / REPORT_NAME, folder / "launches.json"
    for old in (report, listing):
        old.unlink(missing_ok=True)
    command = [*program, *arguments, "--listing", str(listing)]
    asked = dict(metrics)
    for _ in metrics:
        profile = ncu.profile_command(tool, asked.values(), report, command)
        code, output = _run(profile, gpu, console)
        unknown = [name for name, theirs in asked.items() if theirs in ncu.unknown_metrics(output)]
        if not unknown:
            break
        asked = {name: theirs for name, theirs in asked.items() if name not in unknown}
    if not report.exists() or not listing.exists():
        last = output.strip().splitlines()[-1:] or ["it said nothing"]
        return Counted(missing=f"ncu (exit code {code}): {ncu.refusal(output) or last[0]}")
    code, table = _run(ncu.import_command(tool, report), gpu, None)
    return read_counters(table, listing.read_bytes(), asked)


def count_alone(
    arguments: Sequence[str], folder: Path, gpus: str | None, wait_s: float, console: Console, *, in_full: bool = False
) -> Counted:
    """Count outside of a night, holding the GPU's lock.

    Raises:
        UsageError, BrokenEnvironmentError: no such GPU, or it is in use.
    """
    gpu = choose_gpus(gpus, find_gpus())[0]
    if gpu.uuid == CPU:
        return Counted(missing="no GPU")
    try:
        with GpuLock(gpu.uuid, timeout_s=wait_s), interruptible():
            metrics = ncu.PROFILED if in_full else ncu.COUNTED
            return count(gpu, folder, arguments, console, metrics=metrics)
    except LockHeldError as error:
        raise BrokenEnvironmentError(str(error), "wait for it: --wait SECONDS") from error
    except Interrupted as signal:
        raise KeyboardInterrupt from signal


def require_counted(counted: Counted) -> Counted:
    """Raises MissingDataError with the reason where there are no counters."""
    if counted.missing is not None:
        raise MissingDataError(f"no counters: {counted.missing}", "python -m ci doctor")
    return counted


def exit_code(counted: Counted) -> Exit:
    """Of ``ci counters``."""
    if counted.missing is not None:
        return Exit.MISSING
    return Exit.INVALID if any(counter.status == "marked" for counter in counted.counters) else Exit.PASS


def as_json(counted: Counted) -> dict[str, Any]:
    return {"missing": counted.missing, "counters": [msgspec.to_builtins(counter) for counter in counted.counters]}


def profile_facts(counted: Counted, folder: Path) -> dict[str, Any]:
    """One launch in names and numbers, and where ncu's report of it lies."""
    counter, launch = counted.counters[0], counted.launches[0]
    facts: dict[str, Any] = {"case": counter.case, "op": counter.op, "provider": counter.provider}
    facts |= {"kernel": launch.kernel, "model_read_bytes": counter.model_read_bytes}
    facts |= {"model_write_bytes": counter.model_write_bytes}
    facts |= {name: launch.values.get(name, "not counted here") for name in ncu.PROFILED}
    return facts | {"report": str(folder / REPORT_NAME)}


def read_counters(table: str, listing: bytes, metrics: Mapping[str, str]) -> Counted:
    """Ncu's table and the program's listing, put together launch by launch."""
    try:
        expected = msgspec.json.decode(listing, type=Listing)
        launches = ncu.parse_csv(table, metrics)
    except (msgspec.DecodeError, ncu.NcuOutputError) as error:
        return Counted(missing=f"cannot be read: {error}")
    if len(launches) != len(expected.launches):
        kernels = ", ".join(dict.fromkeys(launch.kernel for launch in launches))
        return Counted(
            missing=f"ncu counted {len(launches)} launches of {len(expected.launches)} ({kernels or 'no kernel'}): "
            "which belongs to which op is unknown"
        )
    pairs = zip(expected.launches, launches, strict=True)
    return Counted([_counter(asked, launch, expected.l2_bytes) for asked, launch in pairs], None, launches)


def _counter(asked: Launch, launch: ncu.CountedLaunch, l2_bytes: int) -> Counter:
    values = {name: launch.values.get(name) for name in ncu.COUNTED}
    absent = [name for name, value in values.items() if value is None]
    counter = Counter(
        case=asked.case,
        op=asked.op,
        provider=asked.provider,
        kernel=launch.kernel,
        reason=f"not counted here: {', '.join(absent)}" if absent else "",
        model_read_bytes=asked.model_read_bytes,
        model_write_bytes=asked.model_write_bytes,
        **values,  # type: ignore[arg-type]  # the names are those of COUNTED
    )
    doubts = []
    if counter.l2_write_sectors is not None and asked.model_write_bytes >= MIN_WRITE_SECTORS * SECTOR_BYTES:
        error_pct = 100 * (counter.l2_write_sectors * SECTOR_BYTES / asked.model_write_bytes - 1)
        counter = msgspec.structs.replace(counter, write_error_pct=error_pct)
        if error_pct < -WRITE_TOLERANCE_PCT:
            doubts.append(f"wrote {error_pct:+.1f} % against the model, whose bytes are the least")
    if counter.dram_read_bytes is not None and asked.model_read_bytes >= L2_MULTIPLE * l2_bytes:
        error_pct = 100 * (counter.dram_read_bytes / asked.model_read_bytes - 1)
        counter = msgspec.structs.replace(counter, read_error_pct=error_pct)
        if abs(error_pct) > READ_TOLERANCE_PCT:
            doubts.append(f"read {error_pct:+.1f} % against the model, more than {READ_TOLERANCE_PCT:g} % off")
    if doubts:
        return msgspec.structs.replace(counter, status="marked", reason="; ".join(doubts))
    if counter.dram_read_bytes is None:
        return msgspec.structs.replace(counter, status="missing")
    return msgspec.structs.replace(counter, status="small") if counter.read_error_pct is None else counter


def show(counted: Counted, console: Console) -> None:
    """One line per launch."""
    if counted.missing is not None:
        console.print(f"no counters: {counted.missing}", markup=False, highlight=False, soft_wrap=True)
    for c in counted.counters:
        facts = [
            f"{c.case} {c.provider} {c.op}: {c.status}",
            _shown("DRAM reads {:.1f} MB", c.dram_read_bytes, 1e-6),
            _shown("model {:.1f} MB", c.model_read_bytes, 1e-6),
            _shown("{:+.1f} %", c.read_error_pct),
            _shown("L2 writes {:.0f} sectors", c.l2_write_sectors),
            _shown("{:+.1f} %", c.write_error_pct),
            _shown("L2 hits {:.1f} %", c.l2_hit_pct),
            _shown("occupancy {:.1f} %", c.occupancy_pct),
            _shown("tensor pipe {:.1f} %", c.tensor_pipe_pct),
            c.reason,
        ]
        console.print(", ".join(fact for fact in facts if fact), markup=False, highlight=False, soft_wrap=True)


def _shown(text: str, value: float | None, scale: float = 1.0) -> str:
    return "" if value is None else text.format(scale * value)


def _run(command: Sequence[str], gpu: Gpu, console: Console | None) -> tuple[int, str]:
    lines: list[str] = []

    def keep(line: str) -> None:
        lines.append(line)
        if console is not None:
            console.print(line, markup=False, highlight=False, soft_wrap=True)

    env = {**gpu.child_env(os.environ), "LC_ALL": "C"}  # ncu prints numbers as the locale does
    try:
        ended = run_child(command, env=env, cwd=ROOT, cap_s=CAP_S, on_line=keep)
    except OSError as error:
        return 127, f"==ERROR== {command[0]}: {error.strerror}"
    return ended.code, "\n".join(lines) if not ended.timed_out else f"==ERROR== no end within {CAP_S:g} s"
