"""``python -m ci fetch-verdict`` and ``post``: what a gate of a pull request found, in the workflow that follows it."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benchmarks.harness.command_line import CommandLine
from ci.exits import Exit, UsageError
from ci.shell import JsonFlag, errors, print_json

if TYPE_CHECKING:
    from .event import FinishedRun
    from .github import GitHub

app = CommandLine(rich_markup_mode=None)


@app.command("fetch-verdict", epilog="Example: python -m ci fetch-verdict --out out/post/verdict.json")
def fetch_verdict(
    out: Annotated[Path, typer.Option(help="File for the verdict; empty where there is none that can be used.")],
    as_json: JsonFlag = False,
) -> None:
    """Take the verdict out of the archive that a finished gate left, check it, and write it anew.

    The run is that of GITHUB_EVENT_PATH, an event workflow_run; GITHUB_TOKEN needs to read alone. 0: it is there; 4:
    the gate left none, or one that is refused, with the reason.
    """
    with errors(as_json):
        from .post import fetch

        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(b"")
        out.write_bytes(fetch(*_run()))
        print_json({"exit_code": 0, "verdict": str(out)}) if as_json else print(f"verdict: {out}")


@app.command(epilog="Example: python -m ci post out/post/verdict.json --dry-run")
def post(
    verdict: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="What fetch-verdict wrote.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Read all, write nothing.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Write check run and comment of a finished gate (.github/workflows/pr-gate-post.yml).

    Commit and pull request are those of GITHUB_EVENT_PATH, an event workflow_run; GITHUB_TOKEN may write checks and
    comments. 0: written; 4: the gate left no verdict that can be used, which the check run says.
    """
    with errors(as_json):
        from .artifact import MAX_VERDICT_BYTES
        from .post import post as publish

        with verdict.open("rb") as file:
            content = file.read(MAX_VERDICT_BYTES + 1)
        done = publish(*_run(), content, dry_run=dry_run)
        code = Exit.PASS if done.has_verdict else Exit.INVALID
        if as_json:
            print_json({"exit_code": int(code), "posted": done.lines})
        else:
            for line in done.lines:
                print(line)
        raise typer.Exit(int(code))


def _run() -> "tuple[FinishedRun, GitHub]":
    from .event import read_event
    from .github import GitHub

    run = read_event(Path(_variable("GITHUB_EVENT_PATH")))
    api = os.environ.get("GITHUB_API_URL", "https://api.github.com")
    return run, GitHub(run.repository, _variable("GITHUB_TOKEN"), api)


def _variable(name: str) -> str:
    value = os.environ.get(name, "")
    if not value:
        raise UsageError(f"{name}: not set; this command runs in a workflow started by workflow_run")
    return value
