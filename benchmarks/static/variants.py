"""``python -m benchmarks.static.variants``: compile every variant that a journal of ``ci tune`` has a time for."""

import json
import math
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer

from ..harness.clean_parent import NotCleanError, require_clean
from ..harness.command_line import CommandLine
from ..harness.parent import end_with_parent
from ..tuning_journal import Candidate, Findings, JournalUnfitError, Point, outcomes_of, read_findings

PASS, USAGE, MISSING, INVALID, BROKEN = 0, 2, 3, 4, 5  # as in ci/exits.py

app = CommandLine(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command(
    epilog="Example: python -m benchmarks.static.variants --journal out/tune/verify.journal --out variants.json"
)
def run(
    journal: Annotated[Path, typer.Option(exists=True, dir_okay=False, help="Journal of ci tune.")],
    out: Annotated[Path, typer.Option(help="JSON file to write.")],
    arch: Annotated[str, typer.Option(help="Architecture to compile for.")] = "sm_90",
    cache_folder: Annotated[Path, typer.Option("--cache", help="Folder of what was compiled before.")] = Path(
        "out/static/cache"
    ),
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; one per core if left out.")] = None,
) -> None:
    """Compile variants, each once, and write their figures beside the times of the journal.

    Exit codes: 0 all compiled; 2 no journal, or an unknown architecture; 3 no times; 4 a variant that does not compile;
    5 a missing tool, or a process unfit to fork.
    """
    end_with_parent()
    try:
        require_clean(library_threads=True)
        found = read_findings(journal)
    except (NotCleanError, JournalUnfitError) as error:
        _fail(str(error), USAGE if isinstance(error, JournalUnfitError) else BROKEN)
    from .compiling import compile_all, find_tools, unknown_arch

    if problem := unknown_arch(arch):
        _fail(problem, USAGE)
    tools = find_tools()
    if tools.missing:
        _fail(f"{', '.join(tools.missing)} missing from Triton: nothing can be estimated", BROKEN)
    variants = list(timed_variants(found, arch))
    if not variants:
        _fail(f"{journal}: no variant has a time", MISSING)
    jobs = {variant.job.name: variant.job for variant in variants}

    def on_done(job: Any, outcome: Any) -> None:
        typer.echo(f"{job.arch} {job.kernel} {job.id}: {outcome.failure or 'compiled'}", err=True)

    outcomes = compile_all(list(jobs.values()), cache_folder, tools, workers or len(os.sched_getaffinity(0)), on_done)
    by_name = dict(zip(jobs, outcomes, strict=True))
    entries = [variant.as_entry(by_name[variant.job.name]) for variant in variants]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"arch": arch, "card": found.begun and found.begun.card, "variants": entries}, indent=1))
    raise typer.Exit(INVALID if any(outcome.failure for outcome in outcomes) else PASS)


@dataclass(frozen=True, slots=True)
class Variant:
    """One candidate at one point, as it would be launched; ``us`` is what the journal has for it."""

    point: Point
    candidate: Candidate
    us: float
    job: Any
    num_bytes: int

    def as_entry(self, outcome: Any) -> dict[str, Any]:
        return {
            "point": self.point.name,
            "op": self.point.op,
            "candidate": str(self.candidate),
            "us": self.us,
            "num_programs": math.prod(self.job.launch.grid),
            "num_tokens": self.point.spec_query_len,
            "num_bytes": self.num_bytes,
            "figures": outcome.examined.figures if outcome.examined else None,
            "failure": outcome.failure,
        }


def timed_variants(found: Findings, arch: str) -> Iterator[Variant]:
    """Of every point of a journal, the candidates that are right and have a time."""
    import torch

    from recoverssm.launch import STATE_DTYPES, LaunchRow, with_row

    from ..tuning_problems import FORMS
    from .planning import Job, arch_number, specialise

    for opened in found.opened.values():
        point = opened.point
        (launch, tensors), num_bytes = _launch_of(point, arch)
        for outcome in outcomes_of(found, point.name):
            candidate = outcome.candidate
            if outcome.us is None or candidate.form not in FORMS[point.op]:
                continue
            place = (point.op, arch_number(arch), STATE_DTYPES[point.state_dtype])
            row = LaunchRow(*place, candidate.form, 0, 1, candidate.constants, "timed")
            made = with_row(launch, FORMS[point.op], row, torch.device("cpu"))
            yield Variant(point, candidate, outcome.us, Job(arch, made, tensors, specialise(made, tensors)), num_bytes)


@cache
def _launch_of(point: Point, arch: str) -> tuple[Any, int]:
    """What the op launches at a point by the library's own table, and the compulsory bytes of the call."""
    import torch

    from recoverssm.dispatch import planned_for

    from ..providers.bare import launches_of
    from ..tuning_bench import TIMED
    from ..tuning_problems import case_of
    from .planning import CONTRACT, arch_number

    provider, op = TIMED[point.op]
    with planned_for(arch_number(arch)):
        prepared = provider.prepare(case_of(point), torch.device("meta"), 0, 0)
        (series,) = (one for one in prepared.series() if (one.op, one.contract) == (op, CONTRACT))
        return launches_of(series.calls[0])[0], series.cost.total_bytes


def _fail(message: str, code: int) -> None:
    typer.echo(message, err=True)
    raise typer.Exit(code) from None


if __name__ == "__main__":
    sys.exit(app())
