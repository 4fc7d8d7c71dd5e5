"""``python -m ci accept``: an owner's decision, with a reason, put where nights and gates look for it."""

import datetime as dt
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from benchmarks.harness.command_line import CommandLine, CommitOption
from ci.exits import UsageError
from ci.shell import JsonFlag, errors, print_json

app = CommandLine(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Decide, as an owner and with a reason, what nights and gates shall take as given.",
    epilog="Example: python -m ci accept night 1ca701 --owner kernels --reason 'slower by design, see decision 0031'",
)
Owner = Annotated[str, typer.Option(help="Who answers for it: a person or a team.")]
Why = Annotated[str, typer.Option("--reason", help="Why, in a sentence (20 characters or more).")]
StoreName = Annotated[
    str, typer.Option("--store", help="Folder of records and nights, branch:NAME, or a URL (s3://...).")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]
Glob = Annotated[str, typer.Option(metavar="GLOB")]


@app.command(epilog="Example: python -m ci accept night 1ca701 --owner kernels --reason 'the new gate costs this much'")
def night(
    name: Annotated[str, typer.Argument(metavar="NIGHT", help="Its id, or the end of it.")],
    owner: Owner,
    reason: Why,
    store: StoreName = "out/store",
    dry_run: DryRun = False,
    as_json: JsonFlag = False,
) -> None:
    """Hold later nights against this one, although it is regressed or lacks a case. 2: it is invalid, or accepted."""
    with errors(as_json):
        from ci.history.layout import open_existing

        from .night import accept_night

        _require(owner, reason)
        done = accept_night(open_existing(store, writable=not dry_run), name, owner, reason, dry_run=dry_run)
        if as_json:
            print_json({"exit_code": 0, "dry_run": dry_run, "night": done.id, "was_exit_code": done.exit_code})
            return
        print(f"night {done.id} {'would be' if dry_run else 'is'} accepted: later nights are judged against it")


@app.command(
    epilog="Examples: python -m ci accept regression 1ca701 --op verify --case '*_b1_*' --owner kernels --reason "
    "'a check that batches need until 0.3' --expires 2027-01-31; python -m ci accept regression out/gate/verdict.json "
    "--owner kernels --reason 'fp32 states are summed in order now'"
)
def regression(
    source: Annotated[str, typer.Argument(metavar="NIGHT|FILE", help="A night's id or its end, or a verdict.json.")],
    owner: Owner,
    reason: Why,
    expires: Annotated[
        str | None, typer.Option(metavar="DATE", help="Its last day; 60 days from now if left out, 180 at most.")
    ] = None,
    case: Annotated[str, typer.Option(metavar="GLOB", help="Only regressions of such cases.")] = "*",
    op: Glob = "*",
    provider: Glob = "*",
    metric: Glob = "*",
    commit: CommitOption = None,
    store: StoreName = "out/store",
    known: Annotated[Path | None, typer.Option(help="File of entries; that of this checkout if left out.")] = None,
    dry_run: DryRun = False,
    as_json: JsonFlag = False,
) -> None:
    """Take on regressions that a night or a gate found: an entry each, with the interval of the change as its band.

    Commit the file: nights and gates read it from there, gates from the base. Give --commit once the change has landed.
    """
    with errors(as_json):
        from ci.history.layout import open_existing
        from ci.policy import KNOWN_FILE, load_known

        from . import regression as entries_of
        from .night import find_night

        _require(owner, reason)
        today = dt.datetime.now(dt.UTC).date()
        decision = entries_of.Decision(
            owner,
            reason,
            today,
            today + dt.timedelta(days=entries_of.DAYS) if expires is None else _day(expires),
            case,
            metric,
            op,
            provider,
            commit,
        )
        if source.endswith(".json"):
            found = entries_of.of_gate(Path(source))
        else:
            found = entries_of.of_night(find_night(open_existing(store), source))
        path = known or KNOWN_FILE
        entries = entries_of.make_entries(found, decision, load_known(path))
        added = "".join(map(entries_of.as_toml, entries)) if dry_run else entries_of.write_entries(entries, path)
        if as_json:
            print_json({"exit_code": 0, "dry_run": dry_run, "file": str(path), "entries": msgspec.to_builtins(entries)})
            return
        print(added.lstrip("\n"))
        print(f"{len(entries)} entries {'would come' if dry_run else 'came'} into {path}")
        if not dry_run:
            print(f"next: commit {path}; nights and gates read it from there")


def _require(owner: str, reason: str) -> None:
    if not owner.strip():
        raise UsageError("--owner: expected a name, got nothing")
    if len(reason.strip()) < 20:
        raise UsageError(f"--reason: expected a sentence of 20 characters or more, got {reason!r}")


def _day(text: str) -> dt.date:
    try:
        return dt.date.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"--expires: expected a date such as 2027-01-31, got {text!r}") from error
