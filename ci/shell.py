"""What every command line here shares: an option, errors as a message with a next step and an exit code, JSON out."""

import json
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn

import typer

from benchmarks.harness.errors import CorruptRecordError, StoreError

from .exits import CommandError, Exit

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON; progress stays on standard error.")]


@contextmanager
def errors(as_json: bool) -> Iterator[None]:
    """Turn any error into a message, a next step and an exit code; Python's own code would say "regressed"."""
    try:
        yield
    except typer.Exit:
        raise
    except CommandError as error:
        _fail(error.code, str(error), error.next_step, as_json)
    except KeyboardInterrupt:
        _fail(Exit.INTERRUPTED, "interrupted before or after measuring; what was measured is kept", "", as_json)
    except StoreError as error:
        _fail(Exit.INVALID if isinstance(error, CorruptRecordError) else Exit.BROKEN, str(error), "", as_json)
    except (OSError, ImportError) as error:
        _fail(Exit.BROKEN, f"{type(error).__name__}: {error}", "python -m ci doctor", as_json)
    except Exception as error:
        traceback.print_exc()
        _fail(Exit.BROKEN, f"a mistake in this program: {type(error).__name__}: {error}", "report it", as_json)


def print_json(value: Any) -> None:
    """Strict JSON on standard output."""
    print(json.dumps(value, indent=1, allow_nan=False, default=str))


def end_with(facts: dict[str, Any], as_json: bool) -> NoReturn:
    """Print facts, one a line or as JSON, and end the command well."""
    from rich.console import Console

    from .preview import show

    print_json(facts) if as_json else show(facts, Console())
    raise typer.Exit(0)


def _fail(code: Exit, message: str, next_step: str, as_json: bool) -> NoReturn:
    steps = [next_step] if next_step else []
    if as_json:
        print_json({"exit_code": int(code), "error": message, "next": steps})
    for line in (f"error: {message}", *(f"next: {step}" for step in steps)):
        print(line, file=sys.stderr)
    raise typer.Exit(int(code)) from None
