"""``python -m ci post``: publish what a gate of a pull request found, in the workflow that GitHub starts for it."""

import os
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.harness.command_line import CommandLine
from ci.exits import Exit, UsageError
from ci.shell import JsonFlag, errors, print_json

app = CommandLine(rich_markup_mode=None)


@app.command(epilog="Example: python -m ci post --dry-run")
def post(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Read all, write nothing.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Write check run and comment of a finished gate (.github/workflows/pr-gate-post.yml).

    Commit and pull request are those of GITHUB_EVENT_PATH, an event workflow_run; GITHUB_TOKEN may write checks and
    comments. 0: written; 4: the gate left no verdict that can be used, which the check run says.
    """
    with errors(as_json):
        from .event import read_event
        from .github import GitHub
        from .post import post as publish

        run = read_event(Path(_variable("GITHUB_EVENT_PATH")))
        api = os.environ.get("GITHUB_API_URL", "https://api.github.com")
        done = publish(run, GitHub(run.repository, _variable("GITHUB_TOKEN"), api), dry_run=dry_run)
        code = Exit.PASS if done.has_verdict else Exit.INVALID
        if as_json:
            print_json({"exit_code": int(code), "posted": done.lines})
        else:
            for line in done.lines:
                print(line)
        raise typer.Exit(int(code))


def _variable(name: str) -> str:
    value = os.environ.get(name, "")
    if not value:
        raise UsageError(f"{name}: not set; this command runs in a workflow started by workflow_run")
    return value
