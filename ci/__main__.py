"""``python -m ci``: the commands of the nightly job. Exit codes: ci/exits.py."""

import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

from .exits import Exit

try:
    import typer
    from rich.console import Console
except ImportError as missing:
    print(f"error: {missing}\nnext: make setup", file=sys.stderr)
    sys.exit(int(Exit.BROKEN))

from .shell import JsonFlag, errors, print_json

if TYPE_CHECKING:
    from .nightly import Options, Result

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Run, judge and explain measurements. Exit codes: 0 pass, 1 regressed, 2 usage, 3 missing data, 4 invalid "
    "measurement, 5 broken environment, 130 interrupted with everything measured kept.",
)


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
    "--store branch:perf-history; python -m ci nightly --set pr --case '*_b32_*' --dry-run"
)
def nightly(  # the options are the documentation
    case_set: Annotated[str, typer.Option("--set", help="Set of cases: smoke, pr or nightly (benchmarks/cases.py).")],
    pattern: Annotated[str, typer.Option("--case", metavar="GLOB", help="Only cases whose names match.")] = "*",
    show_list: Annotated[bool, typer.Option("--list", help="Print the cases and end.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would run and end; nothing starts.")] = False,
    estimate: Annotated[bool, typer.Option("--estimate", help="Print how long it would take and end.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the interrupted night in --out.")] = False,
    seed: Annotated[int | None, typer.Option(help="Orders of cases and inputs; at random when left out.")] = None,
    processes: Annotated[int | None, typer.Option(min=1, help="Fresh processes per GPU (ci/nightly.toml).")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the state of the night and its page.")] = Path("out/nightly"),
    store: Annotated[str, typer.Option(help="Folder of records and nights, or branch:NAME.")] = "out/store",
    gpus: Annotated[str | None, typer.Option(help="all, cpu, or UUIDs with commas; the first GPU if left out.")] = None,
    commit: Annotated[str | None, typer.Option(metavar="SHA", help="The commit, where there is no git.")] = None,
    wait: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Wait so long for a GPU in use.")] = 0.0,
    page: Annotated[bool, typer.Option(help="Build the page where plotly is installed.")] = True,
    as_json: JsonFlag = False,
) -> None:
    """Measure in fresh processes, judge against the last accepted night of the same environment, store, show the page.

    Interrupted, it keeps every finished process; --resume goes on. Without a GPU it does what a CPU can do.
    """
    with errors(as_json):
        from . import preview
        from .config import load_nightly
        from .nightly import Options, run_nightly

        cases = preview.select_cases(case_set, pattern)
        count = processes if processes is not None else load_nightly().processes
        if show_list or dry_run or estimate:
            seen = preview.Preview(case_set, pattern, cases, store, count, gpus, seed)
            facts = seen.listing() if show_list else seen.estimate() if estimate else seen.dry_run()
            print_json(facts) if as_json else preview.show(facts, Console())
            raise typer.Exit(0)
        options = Options(
            case_set=case_set,
            pattern=pattern,
            selected=[case.name for case in cases],
            store=store,
            out=out,
            processes=count,
            seed=random.randrange(2**31) if seed is None else seed,
            gpus=gpus,
            commit=commit,
            resume=resume,
            wait_s=wait,
            page=page,
        )
        result = run_nightly(options, Console(stderr=True))
        _finish(result, options, as_json)


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
    store: Annotated[str, typer.Option(help="Folder of records and nights, or branch:NAME; it is only read.")],
    results_dir: Annotated[
        Path, typer.Option(help="asv's folder of results; what asv itself measured there is kept.")
    ] = Path("out/asv/results"),
    as_json: JsonFlag = False,
) -> None:
    """Write the store's records as asv's result files, for commits that this repository has. Needs git and asv."""
    with errors(as_json):
        from benchmarks.harness.store import open_store

        from .asv_export import export
        from .setup_venv import ROOT

        done = export(open_store(store, writable=False).records(), results_dir, ROOT)
        if as_json:
            print_json({"results": done.results, "benchmarks": done.benchmarks, "left_out": done.left_out})
            return
        for line in done.left_out:
            print(f"left out: {line}")
        print(f"{len(done.results)} result files, {len(done.benchmarks)} benchmarks in {results_dir}")
        print("next: asv publish")


def _finish(result: "Result", options: "Options", as_json: bool) -> NoReturn:
    import msgspec

    from .show import next_step, show_night

    steps = [step for night in result.nights if (step := next_step(night, options.store))]
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
    app(prog_name="python -m ci")


if __name__ == "__main__":
    main()
