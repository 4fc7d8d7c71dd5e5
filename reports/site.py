"""Writes the static site: pages, their scripts and styles, data as classic scripts, raw files as links only.

Everything is addressed relatively, so the site works from ``file://`` and under any path prefix.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.harness.record_files import json_schema
from reports import text
from reports.kept import Kept
from reports.pages.page import Content, Data, Page, Part, Site
from reports.pages.registry import PAGES
from reports.sources import CPU, History
from reports.templates import TEMPLATES
from reports.trust_records import Trust
from reports.views import raw_place

MARKER = ".recoverssm-site"  # says that a folder is ours to overwrite
OWNED = ("assets", "data", "figures", "files", "raw")
GLOBAL = b"recoverssm_data"
VENDORED = ("plotly-basic.min.js", "plotly-LICENSE.txt")  # of the folder of this name


class ForeignFolderError(Exception):
    """--out holds files that this command did not write."""


@dataclass(frozen=True, slots=True)
class Built:
    """What a build wrote."""

    index: Path
    num_gpu_nights: int
    num_cpu_nights: int
    num_compiled_nights: int
    num_files: int


def build_site(
    history: History,
    out: Path,
    *,
    trust: Trust | None = None,
    raw: bool = True,
    now: datetime | None = None,
    kept: Kept | None = None,
) -> Built:
    """Write the whole site. ``raw=False`` leaves out the raw files, which name card and host.

    Args:
        kept: what the last build wrote; parts that would be the same are left alone, and the others told to it.
    Raises:
        ForeignFolderError: before anything is written.
    """
    _claim(out)
    files, kept = _Files(out), kept or Kept(None)
    site = Site(history, now or datetime.now(UTC), raw, trust=trust or Trust(), kept=kept)
    contents = {page: page.load(site) for page in PAGES}
    for page in contents:
        _write_page(page, contents, site, files)
    _write_assets(files)
    if raw:
        _copy_raw(history.paths.values(), files)
    files.write("schema.json", json.dumps(json_schema(), indent=1).encode() + b"\n")
    files.remove_others()
    gpu, cpu, compiled = (
        sum(len(history.of(model)) for model in models) for models in (history.gpu_models(), [CPU], history.archs())
    )
    return Built(out / "index.html", gpu, cpu, compiled, files.num_written)


def build_today(
    history: History, out: Path, *, newest: int | None = None, raw: bool = True, now: datetime | None = None
) -> Path:
    """Write the first page alone, into a new folder or over that of a whole site, whose other pages stay; returns it.

    Args:
        newest: how many nights of each GPU model ``history`` holds at most, as the page says; None for all.
    Raises:
        ForeignFolderError: before anything is written.
    """
    _claim(out)
    files, site = _Files(out), Site(history, now or datetime.now(UTC), raw, newest=newest)
    today, *others = PAGES
    absent = Content(missing="This page was not built: python -m reports build")
    there = Content()
    contents = {today: today.load(site)}
    contents |= {page: there if (out / f"{page.name}.html").exists() else absent for page in others}
    _write_page(today, contents, site, files)
    _write_assets(files)
    if raw:
        _copy_raw((history.paths[history.of(view.model)[-1].id] for view in site.models), files)
    return out / "index.html"


def _write_page(page: Page, contents: dict[Page, Content], site: Site, files: "_Files") -> None:
    for item in contents[page].data:
        if isinstance(item, Part):
            _write_part(item, files, site.kept)
        else:
            _write_data(item, files)
    for place, body in contents[page].files:
        files.write(place, body)
    files.write(f"{page.name}.html", _render(page, contents, site).encode())


def _write_assets(files: "_Files") -> None:
    for asset in (Path(__file__).parent / "assets").iterdir():
        files.copy(f"assets/{asset.name}", asset)
    for vendored in VENDORED:
        files.copy(f"assets/{vendored}", Path(__file__).parent / "vendor" / vendored)


def _copy_raw(paths: Iterable[Path], files: "_Files") -> None:
    for path in paths:
        for source in (path, path.with_suffix(".parquet")):
            if source.is_file():
                files.copy(str(raw_place(source)), source)


def _write_part(part: Part, files: "_Files", kept: Kept) -> None:
    places = kept.unchanged(part.name, part.inputs, files.out)
    if places is None:
        kept.made(part.name, part.inputs, dict(_write_data(item, files) for item in part.data))
    else:
        for place in places:
            files.keep(place)


def _write_data(item: Data, files: "_Files") -> tuple[str, bytes]:
    """Returns its place and SHA-256."""
    place, content = f"data/{item[0]}.js", _script(*item)
    files.write(place, content)
    return place, hashlib.sha256(content).digest()


def _claim(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise ForeignFolderError(f"--out: expected a folder, got the file {out}")
    if out.is_dir() and any(out.iterdir()) and not (out / MARKER).exists():
        raise ForeignFolderError(f"--out: {out} holds files that no build of this site wrote; name an empty folder")
    out.mkdir(parents=True, exist_ok=True)
    (out / MARKER).touch()


class _Files:
    """The files of a site. One that is already there as it is to be is left alone, so that a rebuild is quick."""

    def __init__(self, out: Path) -> None:
        self.out, self._wanted = out, {out / MARKER}
        self._folders: set[Path] = set()

    @property
    def num_written(self) -> int:
        return len(self._wanted)

    def write(self, place: str, content: bytes) -> None:
        path = self._place(place)
        if not (path.is_file() and path.stat().st_size == len(content) and path.read_bytes() == content):
            path.write_bytes(content)

    def keep(self, place: str) -> None:
        """It is there as it is to be."""
        self._wanted.add(self.out / place)

    def copy(self, place: str, source: Path) -> None:
        """With the time of its last change, by which the next build knows it again."""
        path, facts = self._place(place), source.stat()
        if path.is_file():
            have = path.stat()
            if (have.st_size, have.st_mtime_ns) == (facts.st_size, facts.st_mtime_ns):
                return
        shutil.copyfile(source, path)
        os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))

    def remove_others(self) -> None:
        """What an earlier build wrote and this one did not, and the folders that it leaves empty."""
        for name in OWNED:
            for place, _, names in os.walk(self.out / name, topdown=False):
                folder = Path(place)
                for path in {folder / own for own in names} - self._wanted:
                    path.unlink()
                if not any(folder.iterdir()):
                    folder.rmdir()
        for page in self.out.glob("*.html"):
            if page not in self._wanted:
                page.unlink()

    def _place(self, place: str) -> Path:
        path = self.out / place
        if path.parent not in self._folders:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._folders.add(path.parent)
        self._wanted.add(path)
        return path


def _render(page: Page, contents: dict[Page, Content], site: Site) -> str:
    return TEMPLATES.get_template(f"{page.template or page.name}.html.j2").render(
        page=page,
        view=contents[page].view,
        missing=contents[page].missing,
        navigation=[(other, contents[other].missing) for other in contents],
        raw=site.raw,
        built=text.utc(site.now.isoformat()),
    )


def _script(key: str, data: Any) -> bytes:
    # A classic script, because pages opened from file:// may not fetch JSON. Its encoding is the page's, UTF-8.
    name = json.dumps(key).encode()
    return b"(window.%b=window.%b||{})[%b]=%b;\n" % (GLOBAL, GLOBAL, name, msgspec.json.encode(data))
