"""``python -m ci calibrate``: how often the gate is wrong, and what it finds."""

import random
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.harness.command_line import CommandLine, CommitOption
from ci.exits import UsageError
from ci.shell import JsonFlag, errors, print_json

AA_SET = Path("reports/aa/v1")

app = CommandLine(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Measure how often the gate is wrong, and what it finds.",
    epilog="Example: python -m ci calibrate collect --set pr --processes 24 --each 6",
)


@app.command(
    epilog="Examples: python -m ci calibrate collect --set pr --processes 24 --each 6 --max-minutes 9; "
    "python -m ci calibrate collect --set pr --max-minutes 9 --resume"
)
def collect(  # the options are the documentation
    case_set: Annotated[str, typer.Option("--set", help="Set of cases (benchmarks/cases.py).")] = "pr",
    pattern: Annotated[str, typer.Option("--case", metavar="GLOB", help="Only cases whose names match.")] = "*",
    processes: Annotated[int, typer.Option(min=0, help="Processes of the code as it is.")] = 24,
    delays: Annotated[
        str, typer.Option(metavar="PCT,...", help="Percent by which windows are made longer on purpose.")
    ] = "1,2,3,5,10",
    each: Annotated[int, typer.Option(min=0, help="Processes for each of these delays.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for the state of the collection.")] = Path("out/calibrate"),
    store: Annotated[str, typer.Option(help="Folder of records; not one of nights.")] = "out/calibration",
    gpus: Annotated[str | None, typer.Option(help="all, cpu, or UUIDs with commas; the first GPU if left out.")] = None,
    commit: CommitOption = None,
    seed: Annotated[int | None, typer.Option(help="Orders and inputs; at random when left out.")] = None,
    wait: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Wait so long for a GPU in use.")] = 0.0,
    fork: Annotated[str, typer.Option(metavar="no|yes|mixed", help="Fork measuring processes.")] = "yes",
    precompile: Annotated[bool, typer.Option(help="Compile what the set launches first, in parallel.")] = True,
    max_minutes: Annotated[float | None, typer.Option(min=0, help="Start no process later; --resume goes on.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the collection in --out.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Collect processes of the same code on one occasion, some of them slowed down by a known amount.

    One collection is one occasion: one start of one machine. Every process leaves one record, which no night counts.
    """
    with errors(as_json):
        from ci import preview
        from ci.config import choose_fork, load_nightly
        from ci.nightly import Options

        from .collect import Asked
        from .collect import collect as measure

        case_set, cases = preview.select_cases(case_set, pattern)
        options = Options(
            case_set=case_set,
            pattern=pattern,
            selected=[case.name for case in cases],
            store=store,
            out=out,
            processes=processes,
            seed=random.randrange(2**31) if seed is None else seed,
            gpus=gpus,
            commit=commit,
            resume=resume,
            wait_s=wait,
            fork=choose_fork(fork, load_nightly()),
            precompile=precompile,
        )
        done = measure(Asked(options, _percents(delays), each, max_minutes), Console(stderr=True))
        if as_json:
            print_json(asdict(done) | {"code": int(done.code)})
        else:
            print(*done.messages, sep="\n")
        raise typer.Exit(int(done.code))


@app.command(
    epilog="Examples: python -m ci calibrate publish out/calibration; "
    "python -m ci calibrate publish downloads/aa --out reports/aa/v1"
)
def publish(
    sources: Annotated[list[str], typer.Argument(help="Stores of collections, or folders of another A/A set.")],
    out: Annotated[Path, typer.Option(help="Folder of the A/A set; what it holds stays.")] = AA_SET,
    as_json: JsonFlag = False,
) -> None:
    """Add collected processes, with every sample, to the public A/A set. Doing it again changes nothing."""
    with errors(as_json):
        from .dataset import fingerprint
        from .publish import publish as add

        found = add(sources, out)
        lines = [*found.counts(), f"{out}: {len(found.series)} series, SHA-256 {fingerprint(out)}"]
        print_json({"exit_code": 0, "lines": lines}) if as_json else print(*lines, sep="\n")


def _percents(text: str) -> list[float]:
    try:
        found = [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        found = [0.0]
    if any(not 0.1 <= pct <= 100 for pct in found) or len(set(found)) < len(found):
        raise UsageError(f"--delays: expected different percentages from 0.1 to 100 with commas, got {text!r}")
    return found
