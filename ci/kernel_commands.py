"""``python -m ci counters|profile|spread|tune|static``: single kernels and processes, looked at closely."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.harness.command_line import CommandLine
from ci.exits import Interrupted
from ci.shell import JsonFlag, end_with, errors, print_json

app = CommandLine(rich_markup_mode=None)


@app.command(
    epilog="Examples: python -m ci counters --set smoke; python -m ci counters --set pr --case '*_b32_*' --json"
)
def counters(
    case_set: Annotated[str, typer.Option("--set", help="Set of cases.")] = "smoke",
    pattern: Annotated[str, typer.Option("--case", metavar="GLOB", help="Only cases whose names match.")] = "*",
    large: Annotated[bool, typer.Option(help="Also cases large enough to hold reads against the model.")] = True,
    out: Annotated[Path, typer.Option(help="Folder for ncu's report.")] = Path("out/counters"),
    gpus: Annotated[str | None, typer.Option(help="UUID of the GPU; the first if left out.")] = None,
    wait: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Wait so long for a GPU in use.")] = 0.0,
    as_json: JsonFlag = False,
) -> None:
    """Count DRAM reads, L2 traffic, occupancy and tensor-pipe use of one launch per op (Nsight Compute).

    Clocks stay as they are. 0: counted; 3: no counters, and why; 4: reads or writes disagree with the model.
    """
    with errors(as_json):
        from .counting import as_json as to_json
        from .counting import count_alone, exit_code, show

        arguments = ["--set", case_set, "--case", pattern, *(["--large"] if large else [])]
        counted = count_alone(arguments, out, gpus, wait, Console(stderr=True))
        print_json(to_json(counted)) if as_json else show(counted, Console())
        raise typer.Exit(int(exit_code(counted)))


@app.command(epilog="Example: python -m ci profile --op verify --case kimi_k3_tp8_b32_t8_a3.84_fp32")
def profile(
    case: Annotated[str, typer.Option(help="Name of a case, in a set or not.")],
    op: Annotated[str, typer.Option(help="verify, commit_plan, commit_state or conv.")] = "verify",
    provider: Annotated[str, typer.Option(help="recoverssm or full_state.")] = "recoverssm",
    out: Annotated[Path, typer.Option(help="Folder for ncu's report.")] = Path("out/profile"),
    gpus: Annotated[str | None, typer.Option(help="UUID of the GPU; the first if left out.")] = None,
    wait: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Wait so long for a GPU in use.")] = 0.0,
    as_json: JsonFlag = False,
) -> None:
    """Profile one launch of one op with Nsight Compute and print what explains its time. 3: no counters, and why."""
    with errors(as_json):
        from .counting import count_alone, profile_facts, require_counted
        from .preview import show

        arguments = ["--case", case, "--op", op, "--provider", provider]
        counted = count_alone(arguments, out, gpus, wait, Console(stderr=True), in_full=True)
        facts = profile_facts(require_counted(counted), out)
        print_json(facts) if as_json else show(facts, Console())


@app.command(epilog="Example: python -m ci nightly --set pr --fork mixed --processes 24; python -m ci spread")
def spread(
    store: Annotated[
        str, typer.Option(help="Folder of records and nights, branch:NAME, or a URL (s3://...).")
    ] = "out/store",
    night: Annotated[
        str | None,
        typer.Option(
            help="Only this night; of the newest 400 of each GPU model those with forked processes if left out."
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Test whether forked measuring processes scatter as fresh ones do (Brown-Forsythe over processes).

    Processes whose controls disagree do not count, and are named.
    0: told, whatever it is; 3: no records of both kinds.
    """
    with errors(as_json):
        from .spread import compare_starts, read_mixed, show

        found = compare_starts(*read_mixed(store, night))
        print_json(found) if as_json else show(found, Console())


@app.command(
    epilog="Examples: python -m ci tune verify; python -m ci tune verify --batch 32 --dtype fp32 --tokens 8 "
    "--candidate 'recurrence BV=16 *' --write"
)
def tune(
    op: Annotated[str, typer.Argument(help="verify, full_state_verify or commit_state.")],
    dtype: Annotated[list[str] | None, typer.Option(help="State dtype, fp32 or bf16; repeatable. [both]")] = None,
    batch: Annotated[
        list[int] | None, typer.Option(min=1, help="Requests that rows are tuned at; repeatable. [1 8 32 128]")
    ] = None,
    tokens: Annotated[
        list[int] | None, typer.Option(min=1, max=16, help="Windows (T) likewise; repeatable. [4 8 9]")
    ] = None,
    heads: Annotated[int, typer.Option(min=1, help="Heads on this rank.")] = 12,
    candidate: Annotated[
        str, typer.Option(metavar="GLOB", help="Only such candidates (--dry-run names all), and those of the table.")
    ] = "*",
    rounds: Annotated[int, typer.Option(min=1, help="Times that each candidate is timed.")] = 2,
    any_bits: Annotated[bool, typer.Option(help="Let batches get candidates whose results differ in bits.")] = False,
    write: Annotated[bool, typer.Option(help="Put the rows into the launch table.")] = False,
    table: Annotated[Path | None, typer.Option(help="Table to edit; the library's own if left out.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be tried and end.")] = False,
    estimate: Annotated[bool, typer.Option("--estimate", help="Print about how long it would take and end.")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the tuning in --out, or judge it again.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder of the journal, which keeps all that was measured.")] = Path(
        "out/tune"
    ),
    gpus: Annotated[str | None, typer.Option(help="UUID of the GPU; the first if left out.")] = None,
    wait: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Wait so long for a GPU in use.")] = 0.0,
    as_json: JsonFlag = False,
) -> None:
    """Try the documented space of an op on this card and choose a row of the launch table for each batch and window.

    Candidates are checked against float64, then timed cold. A row changes only for a clear gain, and all batches get
    candidates of equal bits. 0: chosen; 4: a point without a right candidate; 5: no GPU. docs/operating.md has more.
    """
    with errors(as_json):
        from recoverssm.launch import TABLE

        from . import tuned, tuning

        request = tuning.Request(op, dtype or (), batch or (), tokens or (), heads, candidate, rounds, any_bits)
        if dry_run or estimate:
            end_with(tuning.estimate(request) if estimate else tuning.preview(request), as_json)
        path = table or TABLE
        result = tuning.tune(
            request, out, path, Console(stderr=True), resume=resume, write=write, gpus=gpus, wait_s=wait
        )
        print_json(tuned.as_json(result)) if as_json else tuned.show(result, Console())
        if not as_json:
            print(tuning.next_step(result, path, write))
        raise typer.Exit(int(result.code))


@app.command(
    epilog="Examples: python -m ci static --set smoke; python -m ci static --arch sm_90 --case '*_b32_*' --json"
)
def static(
    case_set: Annotated[str, typer.Option("--set", help="Set of cases: smoke, pr, nightly or roofline.")] = "nightly",
    pattern: Annotated[str, typer.Option("--case", metavar="GLOB", help="Only cases whose names match.")] = "*",
    arch: Annotated[str, typer.Option(help="Architectures, by commas.")] = "sm_90,sm_100,sm_103",
    out: Annotated[Path, typer.Option(help="Folder of the report and of what was compiled before.")] = Path(
        "out/static"
    ),
    base: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="An earlier report; exit 1 where this is worse.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Compile the kernels that a set launches and print registers, occupancy and instructions. Needs no GPU.

    0: all compiled; 1: worse than --base; 2: wrong usage, or an architecture that compiler or table of limits do not
    know; 3: nothing selected, or nothing to compare; 4: a kernel that does not compile; 5: a missing tool. Each is
    named, and the others go on.
    """
    with errors(as_json):
        from . import static as compiled
        from .processes import interruptible

        earlier = None if base is None else compiled.read_report(base)  # before --out may replace it
        try:
            with interruptible():
                code, report = compiled.compile_static(case_set, [pattern], arch, out, Console(stderr=True))
        except Interrupted as signal:
            raise KeyboardInterrupt from signal
        code, report = compiled.judge(code, report, earlier)
        print_json(compiled.as_json(code, report)) if as_json else compiled.show(report, Console())
        if not as_json:
            print(f"report: {out / compiled.REPORT}")
        raise typer.Exit(int(code))
