"""``python -m ci trends``: what the nights of a store say together, and the confirmations that they ask for."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.harness.command_line import CommandLine
from ci.exits import Exit, MissingDataError
from ci.gate.plan import PLAN_FILE
from ci.shell import JsonFlag, errors, print_json

app = CommandLine(rich_markup_mode=None)


@app.command(
    epilog="Examples: python -m ci trends --store branch:perf-history; "
    "python -m ci trends --store out/store --gpu-model nvidia-h200 --json; "
    "python -m ci trends --store branch:perf-history --confirm"
)
def trends(
    store: Annotated[
        str, typer.Option(help="Folder of records and nights, branch:NAME, or a URL (s3://...).")
    ] = "out/store",
    gpu_model: Annotated[str, typer.Option(metavar="GLOB", help="GPU models, such as nvidia-h200.")] = "*",
    confirm: Annotated[
        bool,
        typer.Option("--confirm", help="Run the gates that confirm what this machine's newest night is suspected of."),
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Look at the newest night of each GPU model together with those before it, as every night does.

    Change points with three nights on both sides are alarms where they are new; a first night out of line asks for a
    gate between the commits of two nights, which --confirm runs here; once a week a night is held against the pinned
    one (ci/nightly.toml). 0: no alarm; 1: an alarm; 3: no night. With --confirm the worst exit code of the gates; what
    is suspected on GPU models that this machine has not is left to others.
    """
    with errors(as_json):
        from benchmarks.harness.environment import gpu_slug
        from ci.gpus import find_gpus

        from .report import as_json as to_json
        from .report import bisections, confirmations
        from .stored import examine_store

        console = Console(stderr=as_json or confirm)
        found = examine_store(store, gpu_model)
        if not found:
            raise MissingDataError(f"{store}: no night of a GPU model that fits", "python -m ci nightly --set nightly")
        if as_json:
            print_json([to_json(one, case_set) for one, case_set in found])
        for one, case_set in [] if as_json else found:
            tell = f"{one.gpu_model}: {one.num_nights} nights, {len(one.series)} series of night {one.night}"
            asked = [" ".join(gate["command"]) for gate in confirmations(one, case_set)]
            alarms = [f"alarm: {alarm}" for alarm in one.alarms]
            for line in (
                tell,
                *alarms,
                *bisections(one, case_set),
                *one.notes,
                *(f"confirm: {command}" for command in asked),
            ):
                console.print(line, markup=False, highlight=False, soft_wrap=True)
        if not confirm:
            raise typer.Exit(int(max(one.code for one, _ in found)))
        here = {gpu_slug(gpu.name) for gpu in find_gpus()}
        own = [(one, case_set) for one, case_set in found if one.gpu_model in here]
        gates = [gate["command"] for one, case_set in own for gate in confirmations(one, case_set)]
        codes = [subprocess.run(_going_on(command), check=False).returncode for command in gates]
        console.print(f"{len(codes)} gates run for {', '.join(sorted(here))}", highlight=False)
        raise typer.Exit(max(codes, default=int(Exit.PASS)))


def _going_on(command: Sequence[str]) -> list[str]:
    """The gate, or what goes on with it, or judges it again, where it was begun before."""
    out = command[command.index("--out") + 1]
    begun = ["-m", "ci", "gate", "--resume", "--out", out]
    return [sys.executable, *(begun if (Path(out) / PLAN_FILE).exists() else command[1:])]
