"""``python -m ci calibrate``: how often the gate is wrong, and what it finds."""

import sys
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.harness.command_line import CommandLine, CommitOption
from ci.exits import UsageError
from ci.shell import JsonFlag, end_with, errors, print_json

AA_SET = Path("reports/aa/v1")
TRUST_MARK, RULES_MARK = "trust", "rules"
Data = Annotated[Path, typer.Option(help="Folder of the A/A set.")]
GpuModel = Annotated[str | None, typer.Option(help="Which of the set's GPU models; its only one if left out.")]
Write = Annotated[Path | None, typer.Option(help="Write the tables into this document, between their marks.")]

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
    show_list: Annotated[bool, typer.Option("--list", help="Print the cases and end.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would run and end; nothing starts.")] = False,
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
        from ci.options import asked

        from .collect import Asked
        from .collect import collect as measure

        if show_list:
            end_with(preview.listing(case_set, pattern), as_json)
        case_set, cases = preview.select_cases(case_set, pattern)
        percents = _percents(delays)
        if dry_run:
            count = processes + each * len(percents)
            seen = preview.Preview(case_set, pattern, cases, store, count, gpus, seed).dry_run()
            end_with(seen | {"slowed": f"{each} processes for each of {delays} %"}, as_json)
        options = asked(
            case_set,
            pattern,
            cases,
            store=store,
            out=out,
            processes=processes,
            seed=seed,
            fork=fork,
            gpus=gpus,
            commit=commit,
            resume=resume,
            wait_s=wait,
        )
        options = replace(options, precompile=precompile)
        done = measure(Asked(options, percents, each, max_minutes), Console(stderr=True))
        if as_json:
            print_json(asdict(done) | {"code": int(done.code)})
        else:
            print(*done.messages, sep="\n")
        raise typer.Exit(int(done.code))


@app.command(
    epilog="Examples: python -m ci calibrate publish out/calibration; "
    "python -m ci calibrate publish downloads/aa --out reports/aa/v1 --retire commit_plan@2026-11-30T00:05Z"
)
def publish(
    sources: Annotated[list[str], typer.Argument(help="Stores of collections, or folders of another A/A set.")],
    out: Annotated[Path, typer.Option(help="Folder of the A/A set; what it holds stays.")] = AA_SET,
    retire: Annotated[
        list[str] | None,
        typer.Option(metavar="OP@UTC", help="An op timed in another way since then: leave its older values out."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Add collected processes, with every sample, to the public A/A set. Doing it again changes nothing."""
    with errors(as_json):
        from .dataset import fingerprint
        from .publish import publish as add

        found = add(sources, out, [_retired(text) for text in retire or ()])
        lines = [*found.counts(), f"{out}: {len(found.series)} series, SHA-256 {fingerprint(out)}"]
        print_json({"exit_code": 0, "lines": lines}) if as_json else print(*lines, sep="\n")


@app.command(epilog="Examples: python -m ci calibrate score; python -m ci calibrate score --write docs/trust.md")
def score(
    data: Data = AA_SET,
    gpu_model: GpuModel = None,
    real: Annotated[
        list[Path] | None, typer.Option("--gate", help="verdict.json of a real gate: its unchanged binaries count.")
    ] = None,
    gates: Annotated[int, typer.Option(min=1, help="Gates of the code against itself, drawn at random.")] = 2000,
    trials: Annotated[int, typer.Option(min=1, help="Gates for each delay and occasion.")] = 200,
    seed: Annotated[int, typer.Option(help="Of all draws: the same seed gives the same record.")] = 1,
    out: Annotated[Path, typer.Option(help="Folder for the trust record.")] = Path("reports/trust"),
    write: Write = None,
    as_json: JsonFlag = False,
) -> None:
    """Write the trust record: how often the gate is wrong, what it finds, and which promises that keeps.

    Exit code 0 whether or not they are kept: the record says so.
    """
    with errors(as_json):
        from ci.marked import write_between_marks

        from . import text, trust
        from .score import Sizes
        from .score import score as judge

        record = judge(data, gpu_model, Sizes(gates, trials, seed), real or ())
        out.mkdir(parents=True, exist_ok=True)
        path = out / trust.file_name(record)
        path.write_bytes(trust.encode(record))
        if write is not None:
            write_between_marks(write, TRUST_MARK, text.trust_markdown(record))
        if as_json:
            print(trust.encode(record).decode(), end="")
        else:
            lines = [f"{text.MET[one.met]}: {one.name}: {one.found} (wanted: {one.wanted})" for one in record.targets]
            print(*lines, f"trust record: {path}", sep="\n")


@app.command(
    epilog="Examples: python -m ci calibrate benchmark; python -m ci calibrate benchmark --write docs/trust.md"
)
def benchmark(
    data: Data = AA_SET,
    gpu_model: GpuModel = None,
    pairs: Annotated[int, typer.Option(min=1, help="Pairs of each kind and occasion.")] = 100,
    seed: Annotated[int, typer.Option(help="Of all draws: the same seed gives the same table.")] = 1,
    write: Write = None,
    as_json: JsonFlag = False,
) -> None:
    """Score benchmark gates: ours and other tools' rules on the same pairs of the A/A set.

    Apache Otava joins in where it is installed: pip install --no-deps apache-otava; its analysis needs NumPy and SciPy.
    """
    with errors(as_json):
        from ci.marked import write_between_marks

        from . import text
        from .benchmark import benchmark as run
        from .rules import otava_version

        if otava_version() is None:
            print("note: Apache Otava is left out; to have it: pip install --no-deps apache-otava", file=sys.stderr)
        rows = run(data, gpu_model, pairs=pairs, seed=seed)
        table = text.rules_markdown(rows)
        if write is not None:
            write_between_marks(write, RULES_MARK, table)
        print_json([asdict(row) for row in rows]) if as_json else print(table)


def _retired(text: str) -> tuple[str, str]:
    op, _, since = text.partition("@")
    try:
        when = datetime.fromisoformat(since)
    except ValueError:
        when = None
    if not op or when is None or when.tzinfo is None:
        raise UsageError(f"--retire: expected OP@UTC as in commit_plan@2026-11-30T00:05Z, got {text!r}")
    return op, when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _percents(text: str) -> list[float]:
    try:
        found = [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        found = [0.0]
    if any(not 0.1 <= pct <= 100 for pct in found) or len(set(found)) < len(found):
        raise UsageError(f"--delays: expected different percentages from 0.1 to 100 with commas, got {text!r}")
    return found
