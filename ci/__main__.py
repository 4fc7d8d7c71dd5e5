"""``python -m ci``: the commands of the nightly job. Exit codes: ci/exits.py."""

import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

from .exits import Exit, Interrupted, UsageError

try:
    import typer
    from rich.console import Console
except ImportError as missing:
    print(f"error: {missing}\nnext: make setup", file=sys.stderr)
    sys.exit(int(Exit.BROKEN))

from benchmarks.harness.closed_pipes import outlive_readers
from benchmarks.harness.command_line import CommandLine, CommitOption, ProviderOption, ProvidersOption, peer_arguments

from .accept.cli import app as accept
from .announce.cli import app as announce
from .calibrate.cli import app as calibrate
from .commits.cli import app as commits
from .gate.cli import app as gate
from .history.cli import app as history
from .legs.cli import app as legs
from .posting.cli import app as posting
from .shell import JsonFlag, end_with, errors, print_json
from .trends.cli import app as trends

if TYPE_CHECKING:
    from .nightly import Result

app = CommandLine(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Run, judge and explain measurements. Exit codes: 0 pass, 1 regressed, 2 usage, 3 missing data, 4 invalid "
    "measurement, 5 broken environment, 130 interrupted with everything measured kept.",
    epilog="Example: python -m ci nightly --set smoke",
)

app.add_typer(history, name="history")
app.add_typer(gate, name="gate")
app.add_typer(accept, name="accept")
app.add_typer(announce)
app.add_typer(posting)
app.add_typer(legs)
app.add_typer(commits)
app.add_typer(trends)
app.add_typer(calibrate, name="calibrate")


@app.callback()
def _commands() -> None:
    """A callback makes typer keep subcommands while there are few of them."""


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
        from .config import choose_fork, load_nightly
        from .fleet.config import described, load_fleet
        from .nightly import Options, run_nightly
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
        config = load_nightly()
        count = processes if processes is not None else config.processes
        if dry_run or estimate:
            seen = preview.Preview(
                case_set, pattern, cases, store, count, gpus, seed, peer_arguments(providers, provider or ())
            )
            facts = seen.estimate() if estimate else seen.dry_run()
            end_with(facts | {"gpus": described(pools, cases)} if pools else facts, as_json)
        options = Options(
            case_set=case_set,
            pattern=pattern,
            selected=[case.name for case in cases],
            store=store,
            out=out,
            processes=count,
            seed=random.randrange(2**31) if seed is None else seed,
            shard=own_shard,
            gpus=gpus,
            commit=commit,
            resume=resume,
            wait_s=wait,
            exclusive=config.exclusive if exclusive is None else exclusive,
            page=page,
            fork=choose_fork(fork, config),
            precompile=precompile,
            static=static,
            counters=counters,
            providers=providers,
            provider_files=provider or (),
        )
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
        from .config import load_nightly
        from .nightly import Options
        from .preview import select_cases

        case_set, cases = select_cases(case_set, pattern)
        options = Options(
            case_set=case_set,
            pattern=pattern,
            selected=[case.name for case in cases],
            store=store,
            out=out,
            processes=processes if processes is not None else load_nightly().processes,
            seed=random.randrange(2**31) if seed is None else seed,
            gpus=gpus,
            commit=commit,
            resume=resume,
            wait_s=wait,
            precompile=True,
        )
        found = both.measure_neighbours(options, Console(stderr=True))
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

    Doing it again, when more shards have come, makes another night of the same records and the new ones.
    """
    with errors(as_json):
        from .nightly import Result, open_to_write
        from .shards import merge as merge_shards

        nights, messages, code = merge_shards(open_to_write(store), night, pattern, out)
        _finish(Result(code, nights, messages=messages), store, as_json)


@app.command("asv-machine", epilog="Example: asv run --python=same --machine $(python -m ci asv-machine)")
def asv_machine(
    file: Annotated[Path | None, typer.Option(help="asv's list of machines; ~/.asv-machine.json.")] = None,
) -> None:
    """Tell asv of this machine, its GPU and versions included, and print the name to give as --machine."""
    with errors(as_json=False):
        from benchmarks.harness.environment import collect_environment

        from .asv_machine import machine_file, write_machine

        print(write_machine(collect_environment(), file or machine_file()))


@app.command("asv-export", epilog="Example: python -m ci asv-export --store reports/history && asv publish")
def asv_export(
    store: Annotated[
        str, typer.Option(help="Folder of records and nights, branch:NAME, or a URL (s3://...); it is only read.")
    ],
    results_dir: Annotated[
        Path, typer.Option(help="asv's folder of results; what asv itself measured there is kept.")
    ] = Path("out/asv/results"),
    as_json: JsonFlag = False,
) -> None:
    """Write the store's nights as asv's result files, for commits that this repository has. Needs git and asv.

    Nights judged invalid are left out, and so are records that no night counts; how many is said.
    """
    with errors(as_json):
        from benchmarks.harness.store import open_store

        from .asv_export import counted_records, export
        from .setup_venv import ROOT

        opened = open_store(store, writable=False)
        records, left_out = counted_records(opened.records(), opened.nights())
        done = export(records, results_dir, ROOT, left_out)
        if as_json:
            print_json({"results": done.results, "benchmarks": done.benchmarks, "left_out": done.left_out})
            return
        for line in done.left_out:
            print(f"left out: {line}")
        print(f"{len(done.results)} result files, {len(done.benchmarks)} benchmarks in {results_dir}")
        print("next: asv publish")


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


def main() -> None:
    """Entry of ``python -m ci``."""
    outlive_readers()
    app(prog_name="python -m ci")


if __name__ == "__main__":
    main()
