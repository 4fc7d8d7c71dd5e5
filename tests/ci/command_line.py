"""``python -m ci`` in this process."""

from click.testing import Result
from typer.testing import CliRunner

from ci.__main__ import app


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])
