"""``python -m benchmarks.controls_alone``: the controls of this GPU and nothing else, as JSON.

Started while the other GPUs of the host are idle, it says what theirs may be compared with once they are not.
"""

from pathlib import Path
from typing import Annotated

import msgspec
import torch
import typer

from .harness.command_line import CommandLine
from .harness.control import measure_controls
from .harness.parent import end_with_parent

app = CommandLine(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command(epilog="Example: python -m benchmarks.controls_alone --out out/controls.json")
def run(out: Annotated[Path, typer.Option(help="JSON file to write: a list of controls.")]) -> None:
    """Measure the controls once. Exit codes: 0 done, 2 usage, 5 no GPU."""
    end_with_parent()
    if not torch.cuda.is_available():
        typer.echo("no GPU: torch sees none", err=True)
        raise typer.Exit(5)
    out.write_bytes(msgspec.json.encode(measure_controls()))


if __name__ == "__main__":
    app()
