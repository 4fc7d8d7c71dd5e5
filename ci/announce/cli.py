"""``python -m ci announce``: what nights found, as files that other programs post or serve. Posts nothing itself."""

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.harness.command_line import CommandLine
from ci.exits import MissingDataError
from ci.shell import JsonFlag, errors, print_json

app = CommandLine(rich_markup_mode=None)


@app.command(epilog="Example: python -m ci announce --store branch:perf-history --out out/site --url https://...")
def announce(
    stores: Annotated[
        list[str] | None,
        typer.Option("--store", help="As often as needed; out/store and reports/history, where they are, if left out."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the files.")] = Path("out/announce"),
    url: Annotated[str, typer.Option(help="Address of the page, for the feed's links.")] = "",
    as_json: JsonFlag = False,
) -> None:
    """Write feed.xml (Atom), a badge for each card's last night, and an issue's text where a regression is confirmed.

    Posts nothing. The first line of an issue's file is its title, the rest its body.
    """
    with errors(as_json):
        from ci.gate.outputs.machine import as_bytes
        from ci.history.layout import default_stores, open_existing

        from .feed import badge, feed, newest
        from .issue import confirmed, issue, records_of

        opened = [open_existing(spec) for spec in stores or default_stores()]
        nights = list({night.id: night for store in opened for night in store.recent_nights()}.values())
        if not nights:
            raise MissingDataError("no night in any store", "python -m ci nightly --set smoke")
        contents = {"feed.xml": feed(nights, url)}
        for model, night in newest(nights).items():
            contents[f"badge-{model}.json"] = as_bytes(badge(night))
            if confirmed(night):
                records = (records_of(opened, model, one) for one in (night.id, night.base_night))
                contents[f"issue-{model}.md"] = issue(night, *records).as_file().encode()
        out.mkdir(parents=True, exist_ok=True)
        for stale in out.glob("issue-*.md"):
            stale.unlink()  # of a regression that is confirmed no more
        for name, content in contents.items():
            (out / name).write_bytes(content)
        files = [str(out / name) for name in sorted(contents)]
        if as_json:
            print_json({"exit_code": 0, "files": files})
            return
        for name in files:
            print(name)
