"""``python -m ci compare|reproduce|backfill|bisect|trends``: commits and nights held against each other."""

import random
import re
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.harness.command_line import CommandLine
from ci.exits import MissingDataError, UsageError
from ci.gate.plan import USUAL_BLOCKS
from ci.shell import JsonFlag, end_with, errors, print_json

app = CommandLine()
Stores = Annotated[
    list[str] | None,
    typer.Option("--store", help="As often as needed; out/store and reports/history, where they are, if left out."),
]
GpuModel = Annotated[str, typer.Option("--gpu-model", metavar="GLOB", help="GPU models, such as nvidia-h200.")]
CaseGlob = Annotated[str, typer.Option("--case", metavar="GLOB", help="Cases whose names match.")]


@app.command(
    epilog="Examples: python -m ci compare latest~1 latest; python -m ci compare 1a2b3c4 9f8e7d6 --op verify --json; "
    "python -m ci compare --static out/main/report.json out/static/report.json"
)
def compare(
    a: Annotated[str, typer.Argument(help="A night's or record's id or its end, a commit, latest~N; or a report.")],
    b: Annotated[str, typer.Argument(help="What is held against it.")],
    static: Annotated[bool, typer.Option("--static", help="A and B are reports of ci static, or folders.")] = False,
    case: CaseGlob = "*",
    metric: Annotated[str, typer.Option(metavar="GLOB", help="device_us, cache_bytes, ...")] = "*",
    op: Annotated[str, typer.Option(metavar="GLOB", help="verify, commit, step, ...")] = "*",
    provider: Annotated[str, typer.Option(metavar="GLOB", help="recoverssm, full_state, ...")] = "*",
    gpu_model: GpuModel = "*",
    anyway: Annotated[bool, typer.Option(help="Compare although GPU model or environment differ.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Also list what did not change.")] = False,
    stores: Stores = None,
    as_json: JsonFlag = False,
) -> None:
    """Print how every series changed from A to B: the ratio B / A with its 95 % interval over processes.

    Judged by ci/thresholds.toml as if A were B's base night; a commit stands for its newest night, and two commits that
    one backfill measured for its records. 0: nothing worse; 1: regressed; 2: not comparable (GPU model, environment),
    or a name that fits several; 3: no such night, record or commit, no series that fits, or one that vanished;
    4: invalid. With --static kernels are compared, nothing is judged, and 0 says that it was told.
    """
    with errors(as_json):
        if static:
            _compare_static(Path(a), Path(b), as_json)
            return
        from ci.history.layout import default_stores

        from .compare import Filters, show
        from .compare import as_json as to_json
        from .compare import compare as hold
        from .stored import read_named

        history = read_named(stores or default_stores(), (a, b), gpu_model)
        found = hold(history, a, b, Filters(case, metric, op, provider), gpu_model=gpu_model, anyway=anyway)
        print_json(to_json(found)) if as_json else show(found, Console(), everything=everything)
        raise typer.Exit(int(found.code))


def _compare_static(a: Path, b: Path, as_json: bool) -> None:
    from ci import static_compare

    found = static_compare.compare(static_compare.load(a), static_compare.load(b))
    print_json(static_compare.as_json(found)) if as_json else static_compare.show(found, Console())


@app.command(
    epilog="Examples: python -m ci backfill main~20..main --set pr --case '*_b32_*'; "
    "python -m ci backfill v0.1..main --every 5 --prepare --out out/backfill; python -m ci backfill --resume"
)
def backfill(
    commits: Annotated[
        str | None, typer.Argument(metavar="A..B", help="Commits after A up to B; not with --resume.")
    ] = None,
    case_set: Annotated[str, typer.Option("--set", help="Set of cases (benchmarks/cases.py).")] = "pr",
    case: CaseGlob = "*",
    rounds: Annotated[int, typer.Option("--processes", min=1, help="Fresh processes per commit: as many rounds.")] = 5,
    every: Annotated[int, typer.Option(min=1, help="Take every N-th commit only, B among them.")] = 1,
    program: Annotated[
        str | None,
        typer.Option(metavar="REF", help="Commit whose benchmarks measure all, or own: each its own. [B]"),
    ] = None,
    lean: Annotated[
        bool, typer.Option(help="Leave out what no gate judges; a program of its own has no such option.")
    ] = True,
    out: Annotated[Path, typer.Option(help="Folder of the trees and of the state.")] = Path("out/backfill"),
    store: Annotated[str, typer.Option(help="Where records go: a store that no night uses.")] = "out/backfill-store",
    gpus: Annotated[str | None, typer.Option(help="UUID of the one card, or cpu; the first if left out.")] = None,
    wait: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Wait so long for a GPU in use.")] = 0.0,
    max_minutes: Annotated[float | None, typer.Option(min=0, help="Start no process later; --resume goes on.")] = None,
    seed: Annotated[int | None, typer.Option(help="Orders of commits and cases; at random when left out.")] = None,
    show_list: Annotated[bool, typer.Option("--list", help="Print the commits and end.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would run and end.")] = False,
    estimate: Annotated[bool, typer.Option("--estimate", help="Print about how long it would take and end.")] = False,
    prepare: Annotated[bool, typer.Option("--prepare", help="Write the trees and end; --resume needs no git.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the backfill in --out.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Measure every commit of a range on one card, one process of each in turn, rounds in random order.

    Only what was measured so is comparable from commit to commit. A commit whose process does not start, or that lacks
    what the program calls, is skipped and named; commits of the same sources are measured once. 0: every commit that
    works has all its processes; 2: usage; 3: no commits, or none that works; 4: some processes left no record;
    5: no card; 130: interrupted, and --resume goes on.
    """
    with errors(as_json):
        from benchmarks.harness.store import open_store
        from ci.preview import select_cases

        from . import backfill as command
        from . import backfill_report

        console = Console(stderr=True)
        if resume:
            if commits is not None:
                raise UsageError("--resume: expected no A..B: the range is that of --out")
            state = command.load_state(out)
        else:
            if commits is None:
                raise UsageError("expected A..B, or --resume", "python -m ci backfill --help")
            case_set, selected = select_cases(case_set, case)
            drawn = random.randrange(2**31) if seed is None else seed
            request = command.Request(commits, case_set, case, store, rounds, drawn, every, program, lean)
            if show_list or dry_run or estimate:
                end_with(command.preview(request, len(selected), estimate=estimate, only_list=show_list), as_json)
            state = command.prepare(request, out, console)
        if prepare:
            end_with({"prepared": str(out), "next": f"python -m ci backfill --resume --out {out}"}, as_json)
        result = command.run(state, out, console, gpus=gpus, wait_s=wait, max_minutes=max_minutes)
        found = backfill_report.ratios(open_store(state.plan.store, writable=False), result)
        if as_json:
            print_json(backfill_report.as_json(result, found))
        else:
            backfill_report.show(result, found, Console())
        raise typer.Exit(int(result.code))


@app.command(
    epilog="Examples: python -m ci reproduce latest; python -m ci reproduce 1ca701 --case '*_b32_*' --op verify --run; "
    "python -m ci reproduce out/gate; python -m ci reproduce pr51855 --gpu-model nvidia-h200"
)
def reproduce(
    what: Annotated[
        str,
        typer.Argument(
            help="A night's or record's id or its end, a commit, latest~N; a gate's folder; or a published table: "
            "pr51855, pr52993 or pr56082."
        ),
    ],
    case: CaseGlob = "*",
    metric: Annotated[str, typer.Option(metavar="GLOB", help="device_us, out_error, cache_bytes, ...")] = "*",
    op: Annotated[str, typer.Option(metavar="GLOB", help="verify, commit, step, ...")] = "*",
    gpu_model: GpuModel = "*",
    execute: Annotated[bool, typer.Option("--run", help="Also run the commands; the exit code is theirs.")] = False,
    stores: Stores = None,
    as_json: JsonFlag = False,
) -> None:
    """Print the commands that measure again what a verdict is about: of a night its most urgent one that fits.

    Of a published table all of it, with what the newest nights have of it beside: each cell with its source, and
    whether its trend holds on this card.

    A change of time is measured as a gate between the base night's commit and the night's; a failed check with the seed
    of a process in which it failed, in a checkout of that commit; a gate's folder is judged again and measured anew.
    What this machine has otherwise is told first. 0: printed; 3: no such thing; with --run 5 on another GPU model.
    """
    with errors(as_json):
        from benchmarks.harness.store import RECENT_NIGHTS
        from ci.history.layout import default_stores
        from ci.published import tables
        from reports.sources import read_newest

        from . import reproduce as command
        from .stored import read_named

        if what in tables.TABLES:
            if execute:
                raise typer.Exit(command.run(tables.again(what)))
            try:
                shown = tables.table(read_newest(stores or default_stores(), RECENT_NIGHTS), what, gpu_model)
            except FileNotFoundError as error:
                raise MissingDataError(str(error)) from error
            print_json(tables.as_json(shown)) if as_json else tables.show(shown, Console())
            raise typer.Exit(0)
        is_folder = Path(what).is_dir()
        if re.fullmatch(r"pr\d+", what) and not is_folder:
            known = ", ".join(tables.TABLES)
            raise UsageError(
                f"{what}: expected a published table, {known}, or a night, record, commit or gate's folder"
            )
        history = None if is_folder else read_named(stores or default_stores(), [what], gpu_model, with_bases=True)
        found = command.reproduce(history, what, case=case, metric=metric, op=op, gpu_model=gpu_model)
        print_json(command.as_json(found)) if as_json else command.show(found, Console(stderr=execute))
        raise typer.Exit(command.run(found) if execute else 0)


@app.command(
    epilog="Examples: python -m ci bisect v0.1 main --case '*_b32_*_fp32' --op verify; "
    "python -m ci bisect 1a2b3c4 9f8e7d6 --case '*_b32_*' --prepare; python -m ci bisect --resume --max-seconds 540"
)
def bisect(
    good: Annotated[str | None, typer.Argument(help="A commit before the change; not with --resume.")] = None,
    bad: Annotated[str | None, typer.Argument(help="A commit after it, descending from GOOD.")] = None,
    case_set: Annotated[str, typer.Option("--set", help="Set of cases (benchmarks/cases.py).")] = "pr",
    case: CaseGlob = "*",
    metric: Annotated[str, typer.Option(metavar="GLOB", help="Follow only these: device_us, cache_bytes, ...")] = "*",
    op: Annotated[str, typer.Option(metavar="GLOB", help="verify, commit, step, ...")] = "*",
    provider: Annotated[str, typer.Option(metavar="GLOB", help="recoverssm, full_state, ...")] = "*",
    program: Annotated[
        str | None,
        typer.Option(metavar="REF", help="Commit whose benchmarks measure; GOOD, BAD or HEAD, the first with gates."),
    ] = None,
    blocks: Annotated[int, typer.Option(min=1, help="Blocks of four processes for a commit.")] = USUAL_BLOCKS["screen"],
    confirm_blocks: Annotated[int, typer.Option(min=1, help="Fresh blocks where it looks changed.")] = USUAL_BLOCKS[
        "confirm"
    ],
    out: Annotated[Path, typer.Option(help="Folder of the gates and of the state.")] = Path("out/bisect"),
    gpus: Annotated[str | None, typer.Option(help="UUID of one GPU; the first if left out.")] = None,
    wait: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Wait so long for a GPU in use.")] = 0.0,
    max_seconds: Annotated[
        float | None, typer.Option(min=0, help="Start no process that would end later; --resume goes on. Code 130.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of orders and inputs; at random when left out.")] = None,
    show_list: Annotated[bool, typer.Option("--list", help="Print the commits and end.")] = False,
    prepare: Annotated[
        bool, typer.Option("--prepare", help="Write every gate and end; --resume needs no git.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the bisection in --out.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Find the commit that made a series slower: a gate between GOOD and each of a few commits, at most log2(n) + 2.

    BAD is asked first; of what it is slower in, the series of the strongest evidence is followed (--case, --metric,
    --op and --provider narrow the choice). A commit that does not build is passed over, one that a gate does not decide
    stays undecided: the answer is a commit, or "between x and y" with the reasons. 0: answered; 2: usage; 3: BAD is
    not shown to be slower, or GOOD cannot be measured; 5: no card; 130: interrupted, and --resume goes on.
    """
    with errors(as_json):
        from ci.gate.running import Options
        from ci.measuring import ROOT
        from ci.trees import Repository

        from . import bisect as command
        from .bisect_report import as_json as to_json
        from .bisect_report import show
        from .bisect_state import load

        console, repository = Console(stderr=True), Repository(ROOT)
        if resume:
            if good is not None:
                raise UsageError("--resume: expected no commits: they are those of --out")
            state = load(out)
        else:
            if good is None or bad is None:
                raise UsageError("expected GOOD and BAD, or --resume", "python -m ci bisect --help")
            drawn = random.randrange(2**31) if seed is None else seed
            filters = (metric, op, provider)
            request = command.Request(good, bad, case_set, case, *filters, drawn, (blocks, confirm_blocks), program)
            if show_list:
                end_with(command.preview(request, repository), as_json)
            state = command.begin(request, out, repository)
        if prepare:
            command.prepare_all(state, out, repository, lambda text: console.print(text, markup=False, soft_wrap=True))
            end_with({"prepared": str(out), "next": f"python -m ci bisect --resume --out {out}"}, as_json)
        result = command.run(state, out, repository, Options(gpus, wait, max_seconds), console)
        print_json(to_json(result)) if as_json else show(result, Console())
        raise typer.Exit(int(result.code))
