"""``ci static``: what the kernels of a set are when compiled for cards that need not be here. Needs no GPU.

Planning and compiling happen in a process of their own (benchmarks/static), which sees no GPU; here its report is read.
"""

import json
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.static.series import SCHEMA_VERSION

from .config import load_thresholds
from .exits import BrokenEnvironmentError, CommandError, Exit, MissingDataError, UsageError
from .gpus import CPU, Gpu
from .processes import run_child
from .static_gates import regressions
from .trees import clean_env

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = (sys.executable, "-m", "benchmarks.static.run")
CAP_S = 3600.0  # all of `nightly` takes minutes on two cores
REPORT = "report.json"

_ERRORS: dict[int, type[CommandError]] = {
    Exit.USAGE: UsageError,
    Exit.MISSING: MissingDataError,
    Exit.BROKEN: BrokenEnvironmentError,
}

_COLUMNS = (
    "arch",
    "id",
    "kernel",
    "regs",
    "stack",
    "smem",
    "CTAs",
    "occ%",
    "limit",
    "tensor",
    "fma",
    "mufu",
    "shfl",
    "bar",
    "ld16/ld",
    "st16/st",
    "local",
    "pdl",
    "total",
    "bytes",
    "hash",
    "case",
)
LEGEND = (
    "regs: registers per thread; stack, smem (static + dynamic), bytes (of code): in bytes; CTAs, occ%: what fits one "
    "SM; limit: what allows no more; the rest are instructions in the code: ld16/ld 16-byte and all global loads, "
    "local: to and from the stack; case: the first that launches it, and how many others"
)


def compile_static(
    case_set: str,
    patterns: Sequence[str],
    archs: str,
    folder: Path,
    console: Console,
    program: Sequence[str] = PROGRAM,
    *,
    more: Sequence[str] = (),
    cap_s: float = CAP_S,
    tree: Path = ROOT,
    cache: Path | None = None,
) -> tuple[Exit, dict[str, Any]]:
    """Compile in a process of its own; returns its exit code and report, which is also in ``folder``.

    What the process says last is printed once: as the error, where it leaves no report.

    Args:
        patterns: globs that a case must match, all of them. more: further options. tree: whose kernels.
        cache: folder of what was compiled before; one beside the report by default.
    Raises:
        UsageError, MissingDataError, BrokenEnvironmentError: there is no report at all.
        Interrupted: the compiling process is gone.
    """
    report = folder.resolve() / REPORT
    report.unlink(missing_ok=True)
    globs = [part for pattern in patterns for part in ("--case", pattern)]
    selected = ["--set", case_set, *globs, "--arch", archs, *more]
    places = ["--out", str(report), "--cache", str(cache or report.parent / "cache")]
    env = Gpu(CPU, "").child_env({k: v for k, v in clean_env(os.environ).items() if k != "TRITON_INTERPRET"})
    said: list[str] = []

    def say(line: str) -> None:
        for earlier in said:
            _print(console, earlier)
        said[:] = [line]

    ended = run_child([*program, *selected, *places], env=env, cwd=tree, cap_s=cap_s, on_line=say)
    if not report.exists():
        raise _ERRORS.get(ended.code, BrokenEnvironmentError)(said[0] if said else ended.describe(cap_s))
    for line in said:
        _print(console, line)
    return Exit(ended.code), json.loads(report.read_text(encoding="utf-8"))


def read_report(path: Path, asked: str = "--base") -> dict[str, Any]:
    """A report of an earlier run.

    Raises:
        UsageError: the file is none. MissingDataError: it is of another version of this program.
    """
    anew = "python -m ci static --out FOLDER writes FOLDER/report.json"
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{asked}: {path}: expected a report of ci static, got {error.strerror}", anew) from error
    except ValueError as error:
        raise UsageError(f"{asked}: {path}: expected a report of ci static, got no JSON: {error}", anew) from error
    if not isinstance(report, dict) or not {"schema_version", "kernels", "compiler", "num_launches"} <= report.keys():
        raise UsageError(f"{asked}: {path}: expected a report of ci static, got other JSON", anew)
    if report["schema_version"] != SCHEMA_VERSION:
        found = f"expected a report of version {SCHEMA_VERSION}, got {report['schema_version']}"
        raise MissingDataError(f"{asked}: {path}: {found}", anew)
    return report


def judge(code: Exit, report: dict[str, Any], base: Mapping[str, Any] | None) -> tuple[Exit, dict[str, Any]]:
    """The report with what is worse than in ``base``, where there is one, and the exit code of both."""
    if base is None:
        return code, report
    found = regressions(base, report, load_thresholds())
    return (Exit.REGRESSED if found and code == Exit.PASS else code), {**report, "regressions": found}


def show(report: Mapping[str, Any], console: Console) -> None:
    """One line per kernel and architecture, then what could not be had."""
    rows = [_row(entry) for entry in report["kernels"] if entry["figures"]]
    widths = [max(map(len, column)) for column in zip(_COLUMNS, *rows, strict=True)]
    for row in (_COLUMNS, *rows) if rows else ():
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        _print(console, "  ".join(padded).rstrip())
    if rows:
        _print(console, LEGEND)
    counts = Counter(entry["arch"] for entry in report["kernels"] if entry["figures"])
    totals = ", ".join(f"{number} for {arch}" for arch, number in counts.items())
    versions = [f"{arch} ptxas {version}" for arch, version in report["compiler"]["ptxas"].items()]
    compilers = "; ".join((f"Triton {report['compiler']['triton']}", *versions))
    _print(console, f"{len(rows)} kernels compiled: {totals or 'none'}; {compilers}")
    for line in report.get("regressions", ()):
        _print(console, f"regressed: {line}")
    if report.get("regressions") == []:
        _print(console, "nothing is worse than in --base")
    for line in problems(report):
        _print(console, f"problem: {line}")


def problems(report: Mapping[str, Any]) -> list[str]:
    """What could not be had, in whole sentences."""
    failed = [
        f"{entry['arch']} {entry['kernel']} {entry['id']} ({entry['cases'][0]}): does not compile: {entry['failure']}"
        for entry in report["kernels"]
        if entry["failure"]
    ]
    return [*report["problems"], *failed]


def as_json(code: Exit, report: Mapping[str, Any]) -> dict[str, Any]:
    """The report with the exit code of the command."""
    return {"exit_code": int(code), **report}


def _row(entry: Mapping[str, Any]) -> tuple[str, ...]:
    figures = entry["figures"]
    instructions = figures["instructions"] or {}
    classes, widths = instructions.get("by_class", {}), instructions.get("by_width", {})
    others = len(entry["cases"]) - 1

    def wide(name: str) -> str:
        return f"{widths.get(name, {}).get('16', 0)}/{classes[name]}" if classes else "-"

    local = classes["local_load"] + classes["local_store"] if classes else "-"
    static = figures["static_shared_bytes"]
    cells = (
        entry["arch"],
        entry["id"],
        entry["kernel"],
        figures["registers"],
        figures["stack_bytes"],
        None if static is None else static + figures["dynamic_shared_bytes"],
        figures["ctas_per_sm"],
        figures["occupancy_pct"],
        ",".join(figures["limited_by"] or ()) or None,
        *(classes.get(name) for name in ("tensor_core", "fma", "mufu", "shuffle", "barrier")),
        wide("global_load"),
        wide("global_store"),
        local,
        classes.get("pdl"),
        instructions.get("total"),
        figures["code_bytes"],
        figures["binary_hash"][:8],
        entry["cases"][0] + (f" +{others}" if others else ""),
    )
    return tuple("-" if cell is None else f"{cell:g}" if isinstance(cell, float) else str(cell) for cell in cells)


def _print(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)
