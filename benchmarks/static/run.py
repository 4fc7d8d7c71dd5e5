"""``python -m benchmarks.static.run``: compile what a set launches for some architectures and write what came out."""

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ..cases import BenchCase, NothingSelectedError, UnknownNameError, select
from ..harness.clean_parent import NotCleanError, require_clean
from ..harness.command_line import CommandLine, CommitOption
from ..harness.parent import end_with_parent
from .series import SCHEMA_VERSION

PASS, USAGE, MISSING, INVALID, BROKEN = 0, 2, 3, 4, 5  # as in ci/exits.py

app = CommandLine(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command(epilog="Example: python -m benchmarks.static.run --set smoke --arch sm_90 --out static.json")
def run(
    out: Annotated[Path, typer.Option(help="JSON file to write.")],
    case_set: Annotated[str, typer.Option("--set", help="Set of cases, as for benchmarks.run.")] = "nightly",
    case: Annotated[list[str] | None, typer.Option(help="Glob over case names; of several, all must match.")] = None,
    arch: Annotated[str, typer.Option(help="Architectures, by commas.")] = "sm_90,sm_100,sm_103",
    cache: Annotated[Path, typer.Option(help="Folder of what was compiled before.")] = Path("out/static/cache"),
    records: Annotated[Path | None, typer.Option(help="Folder for a record of each architecture as well.")] = None,
    commit: CommitOption = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; one per core if left out.")] = None,
) -> None:
    """Compile every kernel that the cases launch, for every architecture.

    Exit codes: 0 all compiled; 2 usage, or an architecture that is unknown here; 3 nothing selected; 4 a kernel that
    does not compile; 5 a missing tool, Triton's interpreter, or a process unfit to fork. What is left goes on.
    """
    end_with_parent()
    asked = list(dict.fromkeys(name.strip() for name in arch.split(",")))
    if any(not _is_arch(name) for name in asked):
        _fail(f"--arch: expected names such as sm_90 by commas, got {arch!r}", USAGE)
    try:
        cases = _select(case_set, case or ["*"])
        require_clean(library_threads=True)
    except (UnknownNameError, NothingSelectedError, NotCleanError) as error:
        _fail(str(error), {UnknownNameError: USAGE, NothingSelectedError: MISSING}.get(type(error), BROKEN))
    from recoverssm.triton_compat import INTERPRETED

    if INTERPRETED:
        _fail("TRITON_INTERPRET is set: kernels are interpreted in this process, not compiled", BROKEN)
    from .compiling import compile_all, find_tools, ptxas_version, unknown_arch
    from .planning import plan

    problems = {name: problem for name in asked if (problem := unknown_arch(name)) is not None}
    known = [name for name in asked if name not in problems]
    tools = find_tools()
    planned = plan(cases, known)
    num_jobs, begun = len(planned.jobs), time.monotonic()
    done = []

    def on_done(job: Any, outcome: Any) -> None:
        done.append(outcome)
        if outcome.failure:
            typer.echo(f"{job.arch} {job.kernel} {job.id}: {outcome.failure}", err=True)
        elif not outcome.was_cached:
            typer.echo(f"{len(done)} of {num_jobs}: {job.arch} {job.kernel} {job.id}", err=True)

    outcomes = compile_all(planned.jobs, cache, tools, workers or len(os.sched_getaffinity(0)), on_done)
    num_cached = sum(outcome.was_cached for outcome in outcomes)
    typer.echo(f"{num_jobs} kernels, {num_cached} compiled before, {time.monotonic() - begun:.1f} s", err=True)
    report = {
        "schema_version": SCHEMA_VERSION,
        "contract": "static",
        "compiler": {"triton": _triton_version(), "ptxas": {name: ptxas_version(name) for name in known}},
        "selection": {"set": case_set, "case": " and ".join(case or ["*"]), "archs": asked},
        "problems": [*problems.values(), *(f"{name} is missing from Triton" for name in tools.missing)],
        "kernels": [_entry(job, outcome) for job, outcome in zip(planned.jobs, outcomes, strict=True)],
        "num_launches": planned.num_launches,
        "ops": _ops(planned, outcomes),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_name(f".{out.name}.{os.getpid()}")
    temporary.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    temporary.replace(out)
    if records is not None:
        _write_records(report, case_set, cases, case or [], commit, time.monotonic() - begun, records)
    raise typer.Exit(exit_code(bool(problems), tools.missing, [outcome.failure for outcome in outcomes]))


def exit_code(has_unknown_arch: bool, missing_tools: Sequence[str], failures: Sequence[str | None]) -> int:
    """The one that casts most doubt."""
    if missing_tools:
        return BROKEN
    if any(failures):
        return INVALID
    return USAGE if has_unknown_arch else PASS


def _entry(job: Any, outcome: Any) -> dict[str, Any]:
    return {
        "arch": job.arch,
        "kernel": job.kernel,
        "id": job.id,
        "constants": job.constants,
        "specialisation": job.specialisation,
        "launched_by": sorted(job.launched_by),
        "cases": job.cases,
        "source": job.source,
        "failure": outcome.failure,
        "figures": outcome.examined.figures if outcome.examined else None,
        "lines": outcome.examined.lines if outcome.examined else {},
    }


def _ops(planned: Any, outcomes: Sequence[Any]) -> dict[str, Any]:
    """Modelled bytes and fingerprint, by architecture, "provider/op" and case."""
    hashes: dict[str, dict[str, str | None]] = {}
    for job, outcome in zip(planned.jobs, outcomes, strict=True):
        figures = outcome.examined.figures if outcome.examined else {}
        hashes.setdefault(job.arch, {})[job.name] = figures.get("binary_hash")

    def entry(arch: str, facts: Any) -> dict[str, Any]:
        bytes_of_a_call = {"read_bytes": facts.read_bytes, "write_bytes": facts.write_bytes}
        return {**bytes_of_a_call, "fingerprint": facts.fingerprint(hashes.get(arch, {}))}

    return {
        arch: {name: {case: entry(arch, facts) for case, facts in by_case.items()} for name, by_case in by_name.items()}
        for arch, by_name in planned.ops.items()
    }


def _select(case_set: str, patterns: Sequence[str]) -> list[BenchCase]:
    chosen = [select(case_set, pattern) for pattern in patterns]
    found = [case for case in chosen[0] if all(case in some for some in chosen)]
    if not found:
        raise NothingSelectedError(f"--case: nothing in set {case_set!r} matches {' and '.join(patterns)}")
    return found


def _write_records(
    report: Mapping[str, Any],
    case_set: str,
    cases: Sequence[BenchCase],
    patterns: Sequence[str],
    commit: str | None,
    duration_s: float,
    folder: Path,
) -> None:
    # Not before all is compiled: pyarrow brings threads, and then no child could be forked.
    from ..process import write_record
    from .recording import Run, records_of

    command = ["python", "-m", "benchmarks.static.run", "--set", case_set]
    command += [part for pattern in patterns for part in ("--case", pattern)]
    for record, samples in records_of(report, Run(case_set, cases, command, commit, duration_s)):
        write_record(folder / f"{record.environment.gpu_model}.json", record, samples)


def _is_arch(name: str) -> bool:
    return name.startswith("sm_") and name[3:].isdigit()


def _triton_version() -> str:
    import triton

    return str(triton.__version__)


def _fail(message: str, code: int) -> None:
    typer.echo(message, err=True)
    raise typer.Exit(code) from None


if __name__ == "__main__":
    sys.exit(app())
