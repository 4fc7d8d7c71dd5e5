"""``python -m ci doctor|nightly|neighbours|merge``: nights, and whether this machine can run one."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console

from benchmarks.harness.command_line import CommandLine, CommitOption, ProviderOption, ProvidersOption, peer_arguments
from ci.exits import UsageError
from ci.shell import JsonFlag, end_with, errors, print_json

if TYPE_CHECKING:
    from .nightly import Result

app = CommandLine(rich_markup_mode=None)


@app.command(epilog="Example: python -m ci doctor --json")
def doctor(
    store: Annotated[str, typer.Option(help="Where the nightly would keep its records.")] = "out/store",
    as_json: JsonFlag = False,
) -> None:
    """Say what will run on this machine, what will not, why, and the repair. 0: a nightly can run; 5: it cannot."""
    with errors(as_json):
        from .doctor import as_json as to_json
        from .doctor import examine, report

        examination = examine(store)
        if as_json:
            print_json(to_json(examination))
        else:
            report(examination, Console())
        raise typer.Exit(int(examination.code))


@app.command(
    epilog="Examples: python -m ci nightly --set smoke; python -m ci nightly --set nightly "
    "--store branch:perf-history; python -m ci nightly --set pr --case '*_b32_*' --dry-run; "
    "python -m ci nightly --set league --providers all"
)
def nightly(  # the options are the documentation
    case_set: Annotated[
        str | None,
        typer.Option(
            "--set", help="Set of cases: smoke, pr, nightly, roofline, league or published (benchmarks/cases.py)."
        ),
    ] = None,
    pattern: Annotated[str, typer.Option("--case", metavar="GLOB", help="Only cases whose names match.")] = "*",
    show_list: Annotated[bool, typer.Option("--list", help="Print the cases (without --set of all) and end.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would run and end; nothing starts.")] = False,
    estimate: Annotated[bool, typer.Option("--estimate", help="Print how long it would take and end.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the interrupted night in --out.")] = False,
    seed: Annotated[int | None, typer.Option(help="Orders of cases and inputs; at random when left out.")] = None,
    processes: Annotated[int | None, typer.Option(min=1, help="Fresh processes per GPU (ci/nightly.toml).")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the state of the night and its page.")] = Path("out/nightly"),
    store: Annotated[
        str, typer.Option(help="Folder of records and nights, branch:NAME, or a URL (s3://...).")
    ] = "out/store",
    gpus: Annotated[
        str | None, typer.Option(help="all, cpu, or UUIDs with commas; left out, the first GPU, else the CPU.")
    ] = None,
    shard: Annotated[
        str | None, typer.Option(metavar="I/N", help="Measure the Ith of N equal parts of the cases; needs --night.")
    ] = None,
    night: Annotated[
        str | None, typer.Option(metavar="NAME", help="What all shards of a night are told by; ci merge takes it.")
    ] = None,
    executor: Annotated[
        str, typer.Option(metavar="local|slurm", help="Measure here, or in shards on the nodes of a cluster.")
    ] = "local",
    fleet: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Of --executor slurm: its partitions."),
    ] = None,
    exclusive: Annotated[
        bool | None,
        typer.Option("--exclusive/--at-once", help="Measure one GPU at a time, or all at once (ci/nightly.toml)."),
    ] = None,
    commit: CommitOption = None,
    wait: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Wait so long for a GPU in use.")] = 0.0,
    page: Annotated[bool, typer.Option(help="Build the page where jinja2 is installed.")] = True,
    fork: Annotated[
        str | None, typer.Option(metavar="no|yes|mixed", help="Fork measuring processes (ci/nightly.toml).")
    ] = None,
    precompile: Annotated[bool, typer.Option(help="Compile what the set launches first, in parallel.")] = True,
    static: Annotated[
        bool, typer.Option(help="Compile kernels for every architecture (ci/nightly.toml) and judge their figures.")
    ] = True,
    counters: Annotated[bool, typer.Option(help="Also count one launch per op with Nsight Compute.")] = False,
    providers: ProvidersOption = "none",
    provider: ProviderOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Measure in fresh processes, judge against the last accepted night of the same environment, store, show the page.

    Interrupted, it keeps every finished process; --resume goes on. Without a GPU it does what a CPU can do.
    """
    with errors(as_json):
        from . import preview
        from .config import load_nightly
        from .fleet.config import described, load_fleet
        from .nightly import run_nightly
        from .options import asked
        from .shards import take_shard

        if show_list:
            end_with(preview.listing(case_set, pattern), as_json)
        case_set, cases = preview.select_cases(case_set, pattern)
        preview.require_peers(providers, provider or ())
        if executor not in ("local", "slurm"):
            raise UsageError(f"--executor: expected local or slurm, got {executor!r}")
        on_cluster = executor == "slurm"
        if on_cluster and shard is not None:
            raise UsageError("--shard: on a cluster the file of --fleet says how many shards there are")
        if fleet is not None and not on_cluster:
            raise UsageError("--fleet: expected with --executor slurm alone, and got --executor local")
        pools = load_fleet(fleet) if on_cluster else None
        own_shard, cases = (None, cases) if pools else take_shard(shard, night, cases)
        if dry_run or estimate:
            count = load_nightly().processes if processes is None else processes
            seen = preview.Preview(
                case_set, pattern, cases, store, count, gpus, seed, peer_arguments(providers, provider or ())
            )
            facts = seen.estimate() if estimate else seen.dry_run()
            end_with(facts | {"gpus": described(pools, cases)} if pools else facts, as_json)
        options = replace(
            asked(
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
            ),
            shard=own_shard,
            page=page,
            precompile=precompile,
            static=static,
            counters=counters,
            providers=providers,
            provider_files=provider or (),
        )
        options = options if exclusive is None else replace(options, exclusive=exclusive)
        console = Console(stderr=True)
        if pools:
            from .fleet.command import nightly_on_cluster

            result = nightly_on_cluster(options, cases, night, pools, console)
        else:
            result = run_nightly(options, console)
        _finish(result, options.store, as_json)


@app.command(epilog="Example: python -m ci neighbours --set pr --gpus all --store out/store")
def neighbours(
    case_set: Annotated[str, typer.Option("--set", help="Set of cases.")] = "pr",
    pattern: Annotated[str, typer.Option("--case", metavar="GLOB", help="Only cases whose names match.")] = "*",
    gpus: Annotated[str, typer.Option(help="all, or UUIDs with commas; two at least.")] = "all",
    processes: Annotated[int | None, typer.Option(min=2, help="Of each GPU and night (ci/nightly.toml).")] = None,
    store: Annotated[str, typer.Option(help="Folder of records and nights, branch:NAME, or a URL.")] = "out/store",
    out: Annotated[Path, typer.Option(help="Folder for the state of both nights.")] = Path("out/neighbours"),
    seed: Annotated[int | None, typer.Option(help="Orders of cases and inputs; at random when left out.")] = None,
    commit: CommitOption = None,
    wait: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Wait so long for a GPU in use.")] = 0.0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the interrupted run in --out.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Measure each GPU of this host alone, then all at once, and print what that does to every series, with intervals.

    Both are nights and stored. 0: told, whatever it is; 3: one GPU alone; 5: none; else as of the nights.
    """
    with errors(as_json):
        from . import neighbours as both
        from .options import asked
        from .preview import select_cases

        case_set, cases = select_cases(case_set, pattern)
        options = asked(
            case_set,
            pattern,
            cases,
            store=store,
            out=out,
            processes=processes,
            seed=seed,
            fork=None,
            gpus=gpus,
            commit=commit,
            resume=resume,
            wait_s=wait,
        )
        found = both.measure_neighbours(replace(options, precompile=True), Console(stderr=True))
        print_json(both.as_json(found)) if as_json else both.show(found, Console())
        raise typer.Exit(int(found.code))


@app.command(epilog="Example: python -m ci merge 20261130T011700Z --store out/store")
def merge(
    night: Annotated[str, typer.Argument(help="What the shards were told by: --night of ci nightly.")],
    pattern: Annotated[str, typer.Option("--case", metavar="GLOB", help="As of the shards.")] = "*",
    store: Annotated[str, typer.Option(help="Folder of records and nights, branch:NAME, or a URL.")] = "out/store",
    out: Annotated[Path, typer.Option(help="Folder for what the night says together with others.")] = Path(
        "out/nightly"
    ),
    as_json: JsonFlag = False,
) -> None:
    """Judge the shards of a night as one night and store it. A shard without a record is told, and ends it with 3.

    Doing it again, when more shards have come, makes another night of the same records and the new ones; when nothing
    has changed, none.
    """
    with errors(as_json):
        from .nightly import Result, open_to_write
        from .shards import merge as merge_shards

        nights, messages, code = merge_shards(open_to_write(store), night, pattern, out)
        _finish(Result(code, nights, messages=messages), store, as_json)


def _finish(result: "Result", store: str, as_json: bool) -> NoReturn:
    import msgspec

    from .show import next_step, show_night

    steps = [step for night in result.nights if (step := next_step(night, store))]
    if as_json:
        print_json(
            {
                "exit_code": int(result.code),
                "nights": [msgspec.to_builtins(night) for night in result.nights],
                "page": str(result.page) if result.page else None,
                "messages": result.messages,
                "next": steps,
            }
        )
    else:
        console = Console()
        for night in result.nights:
            show_night(night, console)
        lines = [*result.messages, *(f"next: {step}" for step in steps)]
        lines += [f"page: {result.page}"] if result.page else []
        for line in lines:
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(int(result.code))
