"""The commands of ``python -m reports``: build, table, screenshot. All read stores; none measures."""

import atexit
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer

from benchmarks.harness.closed_pipes import outlive_readers
from benchmarks.harness.command_line import CommandLine
from benchmarks.harness.errors import StoreError
from reports.digests import Digests
from reports.kept import Kept
from reports.sources import History, read_stores
from reports.trust_records import TRUST_FOLDER, Trust, read_trust

OK, OUTDATED, USAGE, MISSING_DATA, INVALID, ENVIRONMENT = 0, 1, 2, 3, 4, 5

app = CommandLine(
    help="Turn recorded nights into a static site, the README's table and a picture.",
    epilog="Example: `python -m reports build --store reports/history --out site`",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)

Form = Literal["html", "markdown"]
Stores = Annotated[
    list[str],
    typer.Option(
        "--store",
        help="Folder with recorded nights, branch:NAME, or a URL; may be given more than once.",
        show_default=False,
    ),
]


def _fail(message: object, code: int) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(code)


def _open(stores: list[str], digests: Digests | None = None) -> History:
    return _read(lambda: read_stores(stores, digests))


def _read(read: Callable[[], History]) -> History:
    try:
        history = read()
    except FileNotFoundError as error:
        _fail(error, USAGE)
    except StoreError as error:
        _fail(f"--store: {error}", ENVIRONMENT)
    for line in history.damaged:
        typer.echo(f"left out, unreadable: {line}", err=True)
    return history


def _open_trust(folder: Path) -> Trust:
    if folder != TRUST_FOLDER and not folder.is_dir():
        _fail(
            f"--trust: expected a folder of trust records, got {folder}; python -m ci calibrate score writes one", USAGE
        )
    trust = read_trust(folder)
    for line in trust.damaged:
        typer.echo(f"left out, unreadable: {line}", err=True)
    return trust


def _nights(number: int, kind: str) -> str:
    return f"{number} {kind} night{'' if number == 1 else 's'}"


@app.command()
def build(
    store: Stores,
    out: Annotated[
        Path, typer.Option(help="Folder of the site, empty or written by an earlier build; with Markdown a file.")
    ],
    form: Annotated[
        Form, typer.Option("--format", help="The site, or one file in short, for the page of a job.")
    ] = "html",
    page: Annotated[
        list[str] | None, typer.Option(help="With Markdown: a page of tables to append, more than once.")
    ] = None,
    trust: Annotated[Path, typer.Option(help="Folder of trust records (ci calibrate score).")] = TRUST_FOLDER,
    cache: Annotated[
        Path | None,
        typer.Option(help="Folder of what the next build need not read or write again; beside the site when left out."),
    ] = None,
    public: Annotated[
        bool, typer.Option("--public", help="Leave out the raw records: they name card and host in full.")
    ] = False,
) -> None:
    """Write the static site. It needs no server and no network.

    A store without any night gives a page that says so. Unreadable files are named, left out, and give exit code 4.

    Example: `python -m reports build --store reports/history --store .nights --out site`;
    `python -m reports build --store reports/history --format markdown --page trust --out summary.md`
    """
    try:
        from reports.site import ForeignFolderError, build_site
    except ModuleNotFoundError as error:
        _fail(f"{error}: pip install 'recoverssm[report]', or run: make setup", ENVIRONMENT)
    if page and form == "html":
        _fail("--page: the site has every page; expected --format markdown beside it", USAGE)
    cache = cache or _cache(out)
    digests = Digests(cache / "records" if form == "html" else None)
    history, records = _open(store, digests), _open_trust(trust)
    damaged = bool(history.damaged or records.damaged)
    if form == "markdown":
        _write_summary(history, records, out, page or [])
        raise typer.Exit(INVALID if damaged else OK)
    try:
        kept = Kept(cache / "parts.json")
        built = build_site(history, out, trust=records, raw=not public, kept=kept)
    except ForeignFolderError as error:
        _fail(error, USAGE)
    except OSError as error:
        _fail(f"--out: {error}", ENVIRONMENT)
    _save(digests, kept)
    if not history.nights:
        typer.echo("notice: no night is recorded in these stores; the page says so", err=True)
    elif not built.num_gpu_nights:
        typer.echo("notice: no GPU night is recorded in these stores; the page shows the CPU alone", err=True)
    kinds = {"GPU": built.num_gpu_nights, "CPU": built.num_cpu_nights, "compiled": built.num_compiled_nights}
    nights = ", ".join(_nights(number, kind) for kind, number in kinds.items())
    typer.echo(f"{nights}, {built.num_files} files", err=True)
    typer.echo(built.index)
    if damaged:
        raise typer.Exit(INVALID)


@app.command()
def today(
    store: Stores,
    out: Annotated[Path, typer.Option(help="Folder of the page: empty, or of a site whose other pages stay.")],
    nights: Annotated[int, typer.Option(min=2, help="The newest of each GPU model.")] = 60,
    public: Annotated[
        bool, typer.Option("--public", help="Leave out raw files: they name card and host in full.")
    ] = False,
) -> None:
    """Write the first page alone, from the newest nights: as quick for three years of a fleet as for a month.

    What was read is kept beside the folder, so that the next time only what is new is read.

    Example: `python -m reports today --store s3://kernels/nights --out site`
    """
    from reports.site import ForeignFolderError, build_today
    from reports.sources import read_newest

    digests = Digests(_cache(out) / "newest-records")
    history = _read(lambda: read_newest(store, nights, digests))
    try:
        index = build_today(history, out, newest=nights, raw=not public)
    except ForeignFolderError as error:
        _fail(error, USAGE)
    except OSError as error:
        _fail(f"--out: {error}", ENVIRONMENT)
    _save(digests)
    typer.echo(index)
    if history.damaged:
        raise typer.Exit(INVALID)


@app.command()
def publish(
    site: Annotated[Path, typer.Option(help="Folder of a built site.")],
    url: Annotated[
        str, typer.Option(help="Where it is to lie: s3://bucket/prefix or another URL, empty or of a site.")
    ],
) -> None:
    """Bring a built site to a URL: what differs is sent, pages last, and what the site no longer has is removed.

    Example: `python -m reports publish --site site --url s3://kernels/site`
    """
    from reports.publishing import publish as send
    from reports.site import ForeignFolderError

    try:
        done = send(site, url)
    except ForeignFolderError as error:
        _fail(error, USAGE)
    except StoreError as error:
        _fail(f"--url: {error}", ENVIRONMENT)
    sent = f"{done.num_sent} files sent ({done.sent_bytes / 1e6:.1f} MB), {done.num_as_before} as before"
    typer.echo(f"{url}: {sent}, {done.num_removed} removed")


def _cache(out: Path) -> Path:
    return out.resolve().parent / f".{out.resolve().name}.cache"


def _save(*caches: Digests | Kept) -> None:
    try:
        for cache in caches:
            cache.save()
    except OSError as error:
        typer.echo(f"notice: cache: {error}; the next build reads everything again", err=True)


def _write_summary(history: History, trust: Trust, out: Path, pages: list[str]) -> None:
    from datetime import UTC, datetime

    from reports.pages.page import Site
    from reports.summary import UnknownPageError, summary_markdown

    try:
        written = summary_markdown(Site(history, datetime.now(UTC), trust=trust), pages)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(written, encoding="utf-8")
    except UnknownPageError as error:
        _fail(f"--page: {error}", USAGE)
    except OSError as error:
        _fail(f"--out: {error}", ENVIRONMENT)
    typer.echo(out)


@app.command()
def table(
    store: Stores,
    readme: Annotated[Path, typer.Option(help="File with the two marker lines.")] = Path("README.md"),
    gpu_model: Annotated[str, typer.Option(help="Which GPU model's newest night.")] = "nvidia-h200",
    case: Annotated[
        list[str] | None, typer.Option(help="Glob of cases, more than once; default: batch 1, 32 and 128 at TP8.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit 1 when the README is out of date.")
    ] = False,
) -> None:
    """Write the tables of figures between the markers `figures:start` and `figures:end` of a README.

    Below ours stand other projects' kernels at the same cases: of the newest league, then those measured by hand
    (`reports/peers.toml`).

    Example: `python -m reports table --store reports/history --readme README.md --gpu-model nvidia-h200`
    """
    from reports.peers import PeersError, read_peers
    from reports.readme import (
        SELECTED_CASES,
        MarkersError,
        NothingToShowError,
        figures_table,
        read_readme,
        replace_figures,
    )

    history = _open(store)
    try:
        before = read_readme(readme)
        after = replace_figures(before, figures_table(history, gpu_model, case or SELECTED_CASES, read_peers()))
    except (FileNotFoundError, MarkersError) as error:
        _fail(error if isinstance(error, FileNotFoundError) else f"{readme}: {error}", USAGE)
    except NothingToShowError as error:
        _fail(error, MISSING_DATA)
    except PeersError as error:
        _fail(error, INVALID)
    if after == before:
        typer.echo(f"{readme}: figures are up to date", err=True)
    elif check:
        stores = " ".join(f"--store {folder}" for folder in store)
        fix = f"python -m reports table {stores} --readme {readme} --gpu-model {gpu_model}"
        _fail(f"{readme}: figures are out of date; run: {fix}", OUTDATED)
    else:
        readme.write_text(after, encoding="utf-8")
        typer.echo(f"{readme}: figures written", err=True)


@app.command()
def screenshot(
    site: Annotated[Path, typer.Option(help="Folder of a built site.")],
    out: Annotated[Path, typer.Option(help="PNG to write.")],
    page: Annotated[str, typer.Option(help="Name of the page; its state may follow a #.")] = "index",
    dark: Annotated[bool, typer.Option("--dark", help="Dark theme.")] = False,
    width: Annotated[int, typer.Option(min=320, max=4000, help="Of the window, in pixels.")] = 1440,
    height: Annotated[int, typer.Option(min=320, max=8000, help="Of the window, in pixels.")] = 1200,
    full_page: Annotated[bool, typer.Option("--full-page", help="The whole page instead of one window.")] = False,
) -> None:
    """Take a picture of a built site in headless Chromium.

    Example: `python -m reports screenshot --site site --page cases --out docs/pages/cases.png`
    """
    from reports.screenshot import BrowserError, take_screenshot

    try:
        take_screenshot(site, out, page, dark=dark, width=width, height=height, full_page=full_page)
    except FileNotFoundError as error:
        _fail(error, USAGE)
    except BrowserError as error:
        _fail(error, ENVIRONMENT)
    typer.echo(out)


def main() -> None:
    """Entry point of ``python -m reports``."""
    outlive_readers()
    # Millions of records' objects, none of them in a circle: looking for circles would take a third of the time, and
    # half a second more at the end.
    gc.disable()
    atexit.register(gc.freeze)
    sys.exit(app(standalone_mode=True))
