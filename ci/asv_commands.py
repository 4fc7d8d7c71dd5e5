"""``python -m ci asv-machine|asv-export``: our nights among asv's own results."""

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.harness.command_line import CommandLine
from ci.shell import JsonFlag, errors, print_json

app = CommandLine(rich_markup_mode=None)


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
    nights: Annotated[int, typer.Option(min=1, help="How many of the newest of each GPU model to write.")] = 400,
    as_json: JsonFlag = False,
) -> None:
    """Write the store's nights as asv's result files, for commits that this repository has. Needs git and asv.

    Older result files stay as they are. Nights judged invalid are left out, and so are records that no night counts;
    how many is said.
    """
    with errors(as_json):
        from benchmarks.harness.store import open_store

        from .asv_export import export, read_counted
        from .setup_venv import ROOT

        records, left_out = read_counted(open_store(store, writable=False), nights)
        done = export(records, results_dir, ROOT, left_out)
        if as_json:
            print_json({"results": done.results, "benchmarks": done.benchmarks, "left_out": done.left_out})
            return
        for line in done.left_out:
            print(f"left out: {line}")
        print(f"{len(done.results)} result files, {len(done.benchmarks)} benchmarks in {results_dir}")
        print("next: asv publish")
