"""``python -m ci compare|reproduce|backfill|bisect|trends``: commits and nights held against each other."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.harness.command_line import CommandLine
from ci.shell import JsonFlag, errors, print_json

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
        from reports.sources import read_stores

        from .compare import Filters, show
        from .compare import as_json as to_json
        from .compare import compare as hold

        history = read_stores(stores or default_stores())
        found = hold(history, a, b, Filters(case, metric, op, provider), gpu_model=gpu_model, anyway=anyway)
        print_json(to_json(found)) if as_json else show(found, Console(), everything=everything)
        raise typer.Exit(int(found.code))


def _compare_static(a: Path, b: Path, as_json: bool) -> None:
    from ci import static_compare

    found = static_compare.compare(static_compare.load(a), static_compare.load(b))
    print_json(static_compare.as_json(found)) if as_json else static_compare.show(found, Console())
