"""``python -m benchmarks.tune``: the measuring process of ``ci tune``; what it finds is in its journal.

It takes no lock: ``ci tune`` holds it while it runs this.
"""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from .harness.command_line import CommandLine
from .harness.parent import end_with_parent
from .tuning_journal import JournalUnfitError, Point, TuningJournal

if TYPE_CHECKING:
    from .tuning_journal import Begun

PASS, USAGE, MISSING, INVALID, BROKEN = 0, 2, 3, 4, 5  # as in ci/exits.py, which this program must not import

app = CommandLine(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command(
    epilog="Example: python -m benchmarks.tune verify --dtype fp32 --heads 12 --batch 32 --tokens 8 --journal j"
)
def run(
    op: Annotated[str, typer.Argument(help="verify, full_state_verify or commit_state.")],
    dtype: Annotated[list[str], typer.Option(help="State dtypes.")],
    batch: Annotated[list[int], typer.Option(help="Numbers of requests.")],
    tokens: Annotated[list[int], typer.Option(help="Windows.")],
    heads: Annotated[int, typer.Option(help="Heads on this rank.")],
    journal: Annotated[Path, typer.Option(help="File that keeps what is found; what it has is not measured again.")],
    candidate: Annotated[str, typer.Option(help="Glob of candidates to try besides today's.")] = "*",
    rounds: Annotated[int, typer.Option(min=1, help="Times that each candidate is timed.")] = 2,
) -> None:
    """Check and time every candidate of every point. 0: done; 2: usage; 4: no timing; 5: no GPU; 75: lost context."""
    end_with_parent()
    import torch

    if not torch.cuda.is_available():
        typer.echo("no GPU: torch sees none; run `python -m ci doctor`", err=True)
        raise typer.Exit(BROKEN)
    if os.environ.get("TRITON_INTERPRET") == "1":
        typer.echo("TRITON_INTERPRET is set, but there is a GPU: unset it", err=True)
        raise typer.Exit(BROKEN)
    from .harness.environment import gpu_uuid
    from .harness.errors import CONTEXT_LOST_EXIT, ContextLostError, MeasurementError
    from .harness.gpu_monitor import GpuMonitor
    from .harness.quiet import QuietCard
    from .tuning import sweep
    from .tuning_bench import DeviceBench

    device = torch.device("cuda", torch.cuda.current_device())
    console = Console()

    def say(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    points = points_of(op, dtype, heads, batch, tokens)
    try:
        book = TuningJournal(journal)
        book.begin(_begun(op, device.index))
        with GpuMonitor(gpu_uuid(device)) as monitor:
            card = QuietCard(monitor.throttle_us)
            sweep(points, lambda point: DeviceBench(point, device, card, candidate), book, rounds, say)
    except JournalUnfitError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(USAGE) from None
    except ContextLostError as error:
        typer.echo(f"lost the CUDA context: {error}", err=True)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(CONTEXT_LOST_EXIT)  # an ordinary end would call into the lost context, and may hang there
    except MeasurementError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(INVALID) from None


def points_of(op: str, dtypes: list[str], num_heads: int, batches: list[int], windows: list[int]) -> list[Point]:
    """Every combination, in the order in which they are measured."""
    return [Point(op, dtype, num_heads, batch, window) for dtype in dtypes for window in windows for batch in batches]


def _begun(op: str, device_index: int) -> "Begun":
    import torch
    import triton

    import recoverssm

    from .harness.environment import gpu_uuid, source_hash
    from .harness.ids import utc_now
    from .tuning_journal import Begun

    properties = torch.cuda.get_device_properties(device_index)
    versions = {"torch": torch.__version__.split("+")[0], "triton": triton.__version__}
    identity = {"op": op, "gpu": str(gpu_uuid(device_index)), **versions}
    package = Path(recoverssm.__file__).parent  # without the launch table, which a tuning changes
    identity |= {part: source_hash(package / part) for part in ("kernels", "ops")}
    arch = properties.major * 10 + properties.minor
    return Begun(identity, properties.name, arch, **versions, date=utc_now()[:10])


if __name__ == "__main__":
    app()
