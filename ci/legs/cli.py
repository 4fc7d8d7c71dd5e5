"""``python -m ci collect`` and ``overdue``: nights of several runners, and the runners from which none came."""

import re
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.harness.command_line import CommandLine
from ci.exits import WORST_FIRST, Exit, UsageError
from ci.shell import JsonFlag, errors, print_json

LEG = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
app = CommandLine(rich_markup_mode=None)
StoreOption = Annotated[str, typer.Option(help="Folder of records and nights, branch:NAME, or a URL.")]


@app.command(epilog="Example: python -m ci collect out/artifacts --expect h100,h200 --store branch:perf-history")
def collect(
    folder: Annotated[
        Path, typer.Argument(exists=True, file_okay=False, help="Has RUN/night-NAME/night.tar.gz of each leg.")
    ],
    expect: Annotated[str, typer.Option(metavar="NAMES", help="Legs that should be there, with commas.")],
    store: StoreOption = "out/store",
    as_json: JsonFlag = False,
) -> None:
    """Bring the nights of several runners into one store. Nothing in them is trusted.

    0: all are there, whatever they say; 3: a leg is missing from the newest run; 4: one was refused, and the others
    were taken in. Earlier runs are brought in as well, and fail nothing.
    """
    with errors(as_json):
        from ci.nightly import open_to_write

        from .collect import collect as bring_in

        names = _names("--expect", expect)
        if odd := [name for name in names if not LEG.fullmatch(name)]:
            raise UsageError(f"--expect: expected names such as h100,h200; got {odd[0]!r}")
        legs = bring_in(folder, names, open_to_write(store))
        code = min((leg.code for leg in legs), key=WORST_FIRST.index)
        if as_json:
            facts = [{"leg": leg.name, "code": int(leg.code), "said": leg.said, "nights": leg.nights} for leg in legs]
            print_json({"exit_code": int(code), "legs": facts})
        else:
            for leg in legs:
                print(f"{leg.name}: {leg.said}" + (f": {', '.join(leg.nights)}" if leg.nights else ""))
        raise typer.Exit(int(code))


@app.command(epilog="Example: python -m ci overdue --gpu-model 'nvidia-h200*' --hours 24 --store branch:perf-history")
def overdue(
    gpu_model: Annotated[str, typer.Option(metavar="GLOBS", help="Of each of which a night is due; with commas.")],
    hours: Annotated[float, typer.Option(min=0, help="How old the newest may be.")] = 24.0,
    store: StoreOption = "out/store",
    as_json: JsonFlag = False,
) -> None:
    """Say of which GPU models no night has arrived. 0: all have one; 3: one has not; nothing else may tell."""
    with errors(as_json):
        from ci.history.layout import open_existing

        from .collect import overdue as late

        told = late(open_existing(store), _names("--gpu-model", gpu_model), hours)
        code = Exit.MISSING if told else Exit.PASS
        if as_json:
            print_json({"exit_code": int(code), "overdue": told})
        else:
            for line in told or ["no night is overdue"]:
                print(line)
        raise typer.Exit(int(code))


def _names(option: str, text: str) -> list[str]:
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise UsageError(f"{option}: expected names with commas, got {text!r}")
    return names
