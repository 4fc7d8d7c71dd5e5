"""``python -m ci history``: look after a store of records and nights, and ask it for values."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from benchmarks.harness.command_line import CommandLine
from ci.exits import Exit, MissingDataError
from ci.shell import JsonFlag, errors, print_json

if TYPE_CHECKING:
    from .verify import Findings

app = CommandLine(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Look after stores of records and nights, and ask them for values.",
    epilog="Example: python -m ci history query --metric device_us --op verify",
)
OneStore = Annotated[
    str, typer.Option("--store", help="Folder of records and nights, branch:NAME, or a URL (s3://...).")
]
Stores = Annotated[
    list[str] | None,
    typer.Option("--store", help="As often as needed; out/store and reports/history, where they are, if left out."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]
GpuModel = Annotated[str, typer.Option(metavar="GLOB", help="GPU models, such as nvidia-h200.")]
CaseGlob = Annotated[str, typer.Option("--case", metavar="GLOB", help="Cases whose names match.")]


@app.command(epilog="Example: python -m ci history verify --store out/store")
def verify(stores: Stores = None, as_json: JsonFlag = False) -> None:
    """Check every record, its samples, and every night. 0: all is well; 3: nothing is there; 4: see the list."""
    with errors(as_json):
        from .layout import default_stores, open_whole
        from .verify import verify as examine

        found = {spec: examine(open_whole(spec).folder) for spec in stores or default_stores()}
        if not any(one.records or one.nights or one.problems for one in found.values()):
            raise MissingDataError(f"no record and no night in {', '.join(found)}", "python -m ci nightly --set smoke")
        code = Exit.INVALID if any(one.problems for one in found.values()) else Exit.PASS
        if as_json:
            print_json({"exit_code": int(code), "stores": {spec: _facts(one) for spec, one in found.items()}})
        else:
            for spec, one in found.items():
                _say(f"{spec}: {one.records} records, {one.nights} nights, {len(one.problems)} problems")
                _say(*(f"  {problem}" for problem in one.problems), *(f"  note: {note}" for note in one.notes))
        raise typer.Exit(int(code))


@app.command(
    "import",
    epilog="Examples: python -m ci history import artifact.zip --store out/store --dry-run; "
    "python -m ci history import downloads/ --store branch:perf-history",
)
def import_(
    source: Annotated[Path, typer.Argument(help="A folder, .zip, .tar or .tar.gz with records/ and nights/ in it.")],
    store: OneStore = "out/store",
    dry_run: DryRun = False,
    as_json: JsonFlag = False,
) -> None:
    """Bring in records and nights that another machine measured. Nothing in the source is trusted.

    All is checked first and written anew; after one problem nothing is imported (4). What the store holds stays as it
    is. Doing it again changes nothing, and sources may come in any order.
    """
    with errors(as_json):
        from benchmarks.harness.store import open_store

        from .importing import import_from

        done = import_from(source, open_store(store, writable=not dry_run), dry_run=dry_run)
        if as_json:
            print_json({"exit_code": 0, "dry_run": dry_run, **_fields(done)})
            return
        verb = "would be imported" if dry_run else "imported"
        new = f"{len(done.records)} records and {len(done.nights)} nights"
        _say(f"{store}: {new} {verb}, {done.already_there} were there")
        if done.passed_over:
            _say(f"{done.passed_over} files of the source belong to no store and were passed over")
        _say(*(f"note: {note}" for note in done.notes))


@app.command(epilog="Example: python -m ci history migrate --store out/store --dry-run")
def migrate(
    store: OneStore = "out/store",
    out: Annotated[Path | None, typer.Option(help="A new folder for the result; in place if left out.")] = None,
    dry_run: DryRun = False,
    as_json: JsonFlag = False,
) -> None:
    """Rewrite records and nights of older schema versions in the newest; samples stay. 4: a file cannot be read."""
    with errors(as_json):
        from .layout import open_whole
        from .migrate import migrate as rewrite

        done = rewrite(open_whole(store, writable=out is None and not dry_run), out=out, dry_run=dry_run)
        if as_json:
            print_json({"exit_code": 0, "dry_run": dry_run, **_fields(done)})
            return
        _say(*(f"  {name}" for name in done.rewritten))
        verb = "would be rewritten" if dry_run else "rewritten"
        _say(f"{out or store}: {len(done.rewritten)} files {verb}, {done.newest_already} of the newest version already")


@app.command(
    epilog="Examples: python -m ci history prune --store out/store --keep-nights 30 --dry-run; "
    "python -m ci history prune --store s3://kernels/nights --keep-days 90"
)
def prune(
    store: OneStore = "out/store",
    keep_nights: Annotated[int | None, typer.Option(min=1, help="Whole: the newest nights of each GPU model.")] = None,
    keep_days: Annotated[float | None, typer.Option(min=0, help="Whole: nights of so many days, up to now.")] = None,
    samples: Annotated[int, typer.Option(min=0, help="What older nights keep of each series.")] = 8,
    dry_run: DryRun = False,
    as_json: JsonFlag = False,
) -> None:
    """Thin the raw samples of old nights, but of none that is pinned or cited. Values are never removed."""
    with errors(as_json):
        from .layout import open_existing
        from .prune import Keep
        from .prune import prune as thin

        keep = Keep(keep_nights, keep_days, samples)
        done = thin(open_existing(store, writable=not dry_run), keep, dry_run=dry_run)
        if as_json:
            print_json({"exit_code": 0, "dry_run": dry_run, **_fields(done)})
            return
        _say(*(f"  night {night}" for night in done.nights))
        _say(*(f"  old, and keeps all samples: night {night}: {why}" for night, why in done.cited.items()))
        _say(*(f"  left alone, unreadable: {path}" for path in done.left_alone))
        verb = "would be thinned" if dry_run else "thinned"
        _say(
            f"{store}: samples of {len(done.records)} records of {len(done.nights)} nights {verb} "
            f"({done.freed_bytes / 1e6:.1f} MB), {done.kept_nights} nights keep theirs, no value goes"
        )


@app.command(
    epilog="Examples: python -m ci history query --gpu-model nvidia-h200 --op verify --case '*_b32_*' --json; "
    "python -m ci history query --metric verify_overhead"
)
def query(
    gpu_model: GpuModel = "*",
    metric: Annotated[
        str, typer.Option(metavar="GLOB", help="device_us, verify_overhead, control_pct, u_error, ...")
    ] = "*",
    op: Annotated[str, typer.Option(metavar="GLOB", help="verify, commit, step, ...")] = "*",
    provider: Annotated[str, typer.Option(metavar="GLOB", help="recoverssm, full_state, ...")] = "*",
    case: CaseGlob = "*",
    passed: Annotated[
        bool, typer.Option("--passed", help="Also of nights that passed with too few processes to be accepted.")
    ] = False,
    nights: Annotated[int, typer.Option(min=1, help="How many of the newest of each GPU model to look at.")] = 400,
    stores: Stores = None,
    as_json: JsonFlag = False,
) -> None:
    """Print the newest accepted value of every series that fits. 3: none fits; 4: some files could not be used."""
    with errors(as_json):
        from .layout import default_stores
        from .query import Filters
        from .query import query as ask

        filters = Filters(gpu_model, metric, op, provider, case)
        answer = ask(stores or default_stores(), filters, nights=nights, passed=passed)
        for problem in answer.problems:
            typer.echo(f"left out: {problem}", err=True)
        if not answer.rows and not answer.problems:
            which = "night that passed" if passed else "accepted night"
            remedy = "python -m ci history query --help" + ("" if passed else ", or ask more nights: --passed")
            raise MissingDataError(f"no {which} has a value that fits", remedy)
        rows = [row.as_json() for row in answer.rows]
        if as_json:
            print_json(rows)
        else:
            shown = (
                *("gpu", "case", "provider", "op", "metric", "contract"),
                *("value", "low", "high", "unit", "n_processes", "commit"),
            )
            _table(shown, [[_text(row[name]) for name in shown] for row in rows])
        raise typer.Exit(int(Exit.INVALID if answer.problems else Exit.PASS))


@app.command(
    epilog="Examples: python -m ci history variance --store reports/history --gpu-model nvidia-h200; "
    "python -m ci history variance --store reports/history --write docs/measuring.md"
)
def variance(
    gpu_model: GpuModel = "*",
    case: CaseGlob = "*",
    metric: Annotated[str, typer.Option(metavar="GLOB", help="Metrics with samples.")] = "device_us",
    across_code: Annotated[
        bool,
        typer.Option("--across-code", help="Put nights of different sources together: you know it did not change."),
    ] = False,
    nights: Annotated[int, typer.Option(min=1, help="How many of the newest of each GPU model to look at.")] = 60,
    write: Annotated[Path | None, typer.Option(help="Write the table into this document, between its marks.")] = None,
    stores: Stores = None,
    as_json: JsonFlag = False,
) -> None:
    """Print how much values differ within a process, between processes, and between nights, as standard deviations.

    Processes whose controls disagree do not count; the notes name them.
    """
    with errors(as_json):
        from ci.marked import write_between_marks

        from .layout import default_stores
        from .variance import HEADINGS, MARK, markdown, share_lines, summary_rows
        from .variance import variance as estimate

        table = estimate(
            stores or default_stores(),
            gpu_model=gpu_model,
            case=case,
            metric=metric,
            across_code=across_code,
            nights=nights,
        )
        if write is not None:
            write_between_marks(write, MARK, markdown(table))
        if as_json:
            gpus = dict.fromkeys(spread.gpu for spread in table.spreads)
            shares = {gpu: [_fields(share) for share in table.shares(gpu)] for gpu in gpus}
            print_json(
                {"series": [_fields(spread) for spread in table.spreads], "shares": shares, "notes": table.notes}
            )
            return
        _table(HEADINGS, summary_rows(table))
        _say(*share_lines(table), *(f"note: {note}" for note in table.notes))


def _facts(found: "Findings") -> dict[str, object]:
    return {"records": found.records, "nights": found.nights, "problems": found.problems, "notes": found.notes}


def _fields(obj: object) -> dict[str, object]:
    return {name: getattr(obj, name) for name in obj.__dataclass_fields__}  # type: ignore[attr-defined]  # dataclasses all


def _say(*lines: str) -> None:
    for line in lines:
        print(line)


def _text(value: object) -> str:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def _table(headings: tuple[str, ...], rows: list[list[str]]) -> None:
    console = Console()
    if not console.is_terminal:
        _say("\t".join(headings), *("\t".join(row) for row in rows))
        return
    table = RichTable(*headings)
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    console.print(table)
