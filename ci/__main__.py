"""``python -m ci``: the commands of the nightly job. Exit codes: ci/exits.py."""

import sys

from .exits import Exit

try:
    import rich  # noqa: F401  # both are asked for here, where their absence can be told
    import typer  # noqa: F401
except ImportError as missing:
    print(f"error: {missing}\nnext: make setup", file=sys.stderr)
    sys.exit(int(Exit.BROKEN))

from benchmarks.harness.closed_pipes import outlive_readers
from benchmarks.harness.command_line import CommandLine

from .accept.cli import app as accept
from .announce.cli import app as announce
from .asv_commands import app as asv
from .calibrate.cli import app as calibrate
from .commits.cli import app as commits
from .gate.cli import app as gate
from .history.cli import app as history
from .kernel_commands import app as kernels
from .legs.cli import app as legs
from .night_commands import app as nights
from .posting.cli import app as posting
from .trends.cli import app as trends

app = CommandLine(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Run, judge and explain measurements. Exit codes: 0 pass, 1 regressed, 2 usage, 3 missing data, 4 invalid "
    "measurement, 5 broken environment, 130 interrupted with everything measured kept.",
    epilog="Example: python -m ci nightly --set smoke",
)

app.add_typer(nights)
app.add_typer(asv)
app.add_typer(kernels)
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


def main() -> None:
    """Entry of ``python -m ci``."""
    outlive_readers()
    app(prog_name="python -m ci")


if __name__ == "__main__":
    main()
