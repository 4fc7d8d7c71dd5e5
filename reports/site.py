"""Writes the static site: pages, their scripts and styles, data as classic scripts, raw files as links only.

Everything is addressed relatively, so the site works from ``file://`` and under any path prefix.
"""

import json
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.harness.records import json_schema
from reports import text
from reports.pages.page import Content, Page, Site
from reports.pages.registry import PAGES
from reports.sources import CPU, History
from reports.templates import TEMPLATES
from reports.trust_records import Trust
from reports.views import raw_place

MARKER = ".recoverssm-site"  # says that a folder is ours to overwrite
OWNED = ("assets", "data", "figures", "files", "raw")
GLOBAL = "recoverssm_data"


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
    history: History, out: Path, *, trust: Trust | None = None, raw: bool = True, now: datetime | None = None
) -> Built:
    """Write the whole site. ``raw=False`` leaves out the raw files, which name card and host.

    Raises:
        ForeignFolderError: before anything is written.
    """
    _claim(out)
    site = Site(history, now or datetime.now(UTC), raw, trust=trust or Trust())
    contents = {page: page.load(site) for page in PAGES}
    for page, content in contents.items():
        for key, data in content.data:
            _write_script(out / "data" / f"{key}.js", key, data)
        for place, body in content.files:
            (out / place).parent.mkdir(parents=True, exist_ok=True)
            (out / place).write_bytes(body)
        (out / f"{page.name}.html").write_text(_render(page, contents, site), encoding="utf-8")
    _copy_assets(out)
    if raw:
        _copy_raw(history, out)
    (out / "schema.json").write_text(json.dumps(json_schema(), indent=1) + "\n")
    gpu, cpu, compiled = (
        sum(len(history.of(model)) for model in models) for models in (history.gpu_models(), [CPU], history.archs())
    )
    files = sum(path.is_file() for path in out.rglob("*"))
    return Built(out / "index.html", gpu, cpu, compiled, files)


def _claim(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise ForeignFolderError(f"--out: expected a folder, got the file {out}")
    if out.is_dir() and any(out.iterdir()) and not (out / MARKER).exists():
        raise ForeignFolderError(f"--out: {out} holds files that no build of this site wrote; name an empty folder")
    out.mkdir(parents=True, exist_ok=True)
    (out / MARKER).touch()
    for name in OWNED:
        shutil.rmtree(out / name, ignore_errors=True)
    for page in out.glob("*.html"):
        page.unlink()


def _render(page: Page, contents: dict[Page, Content], site: Site) -> str:
    return TEMPLATES.get_template(f"{page.template or page.name}.html.j2").render(
        page=page,
        view=contents[page].view,
        missing=contents[page].missing,
        navigation=[(other, contents[other].missing) for other in contents],
        raw=site.raw,
        built=text.utc(site.now.isoformat()),
    )


def _write_script(path: Path, key: str, data: Any) -> None:
    # A classic script, because pages opened from file:// may not fetch JSON. ensure_ascii also escapes U+2028.
    body = json.dumps(data, allow_nan=False, separators=(",", ":"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"(window.{GLOBAL}=window.{GLOBAL}||{{}})[{json.dumps(key)}]={body};\n", encoding="ascii")


def _copy_assets(out: Path) -> None:
    shutil.copytree(Path(__file__).parent / "assets", out / "assets")
    shutil.copyfile(_plotly_script(), out / "assets" / "plotly.min.js")
    (out / "assets" / "plotly.version.txt").write_text(
        f"plotly.js from the Python package plotly {version('plotly')}\n"
    )


def _plotly_script() -> Path:
    # Found without importing plotly, which takes a second.
    spec = find_spec("plotly")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("plotly is not installed; pip install 'recoverssm[report]', or run: make setup")
    return Path(spec.origin).parent / "package_data" / "plotly.min.js"


def _copy_raw(history: History, out: Path) -> None:
    for path in history.paths.values():
        for source in (path, path.with_suffix(".parquet")):
            if source.is_file():
                target = out / raw_place(source)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
