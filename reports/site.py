"""Writes the static site: one page, its scripts and styles, data as classic scripts, raw files as links only.

Everything is addressed relatively, so the site works from ``file://`` and under any path prefix.
"""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from benchmarks.harness.records import json_schema
from reports import derive, text
from reports.case_data import case_data
from reports.cases import VERDICT_MARKS
from reports.derive import Processes
from reports.sources import CPU, History
from reports.views import ModelView, model_view, raw_place, shown_past

HERE = Path(__file__).parent
MARKER = ".recoverssm-site"  # says that a folder is ours to overwrite
OWNED = ("assets", "data", "raw")
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


def build_site(history: History, out: Path, *, raw: bool = True) -> Built:
    """Write the whole site. ``raw=False`` leaves out the raw files, which name card and host.

    Raises:
        ForeignFolderError: before anything is written.
    """
    _claim(out)
    views = [model_view(history, model, raw=raw) for model in history.gpu_models()]
    cpu = model_view(history, CPU, raw=raw) if history.of(CPU) else None
    compiled = [model_view(history, arch, raw=raw) for arch in history.archs()]
    for view in [*views, *([cpu] if cpu else []), *compiled]:
        _write_data(history, view, out)
    _copy_assets(out)
    if raw:
        _copy_raw(history, out)
    (out / "schema.json").write_text(json.dumps(json_schema(), indent=1) + "\n")
    index = out / "index.html"
    index.write_text(_render(history, views, cpu, compiled, raw=raw), encoding="utf-8")
    gpu_nights, compiled_nights = (sum(len(history.of(view.model)) for view in some) for some in (views, compiled))
    files = sum(path.is_file() for path in out.rglob("*"))
    return Built(index, gpu_nights, len(history.of(CPU)), compiled_nights, files)


def _claim(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise ForeignFolderError(f"--out: expected a folder, got the file {out}")
    if out.is_dir() and any(out.iterdir()) and not (out / MARKER).exists():
        raise ForeignFolderError(f"--out: {out} holds files that no build of this site wrote; name an empty folder")
    out.mkdir(parents=True, exist_ok=True)
    (out / MARKER).touch()
    for name in OWNED:
        shutil.rmtree(out / name, ignore_errors=True)


def _render(
    history: History, views: Sequence[ModelView], cpu: ModelView | None, compiled: Sequence[ModelView], *, raw: bool
) -> str:
    templates = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    everything = [*views, *([cpu] if cpu else []), *compiled]
    return templates.get_template("index.html.j2").render(
        views=views,
        cpu=cpu,
        compiled=compiled,
        red=[view for view in everything if view.newest.red],
        damaged=history.damaged,
        raw=raw,
        marks=VERDICT_MARKS,
        built=text.utc(datetime.now(UTC).isoformat()),
    )


def _write_data(history: History, view: ModelView, out: Path) -> None:
    nights, past = shown_past(history, view.model)
    folder = out / "data" / view.slug
    folder.mkdir(parents=True)
    names = [row.name for row in view.rows]
    _write_script(folder / "night.js", f"{view.slug}/night", _night_data(names, view.prefix, past[-1].processes))
    for name in names:
        key = f"{view.slug}/case-{text.file_slug(name)}"
        _write_script(out / "data" / f"{key}.js", key, case_data(name, nights[-1], nights, past))


def _night_data(names: Sequence[str], prefix: str, processes: Processes) -> dict[str, Any]:
    """Device times of all cases, for the figure that compares them."""
    pairs = {
        "verify": (derive.VERIFY, derive.FULL_VERIFY),
        "commit": (derive.COMMIT, None),
        "step": (derive.STEP, derive.FULL_STEP),
    }
    files = {name: f"case-{text.file_slug(name)}" for name in names}
    data: dict[str, Any] = {"cases": list(names), "prefix": prefix, "files": files}
    for op, (ours, full) in pairs.items():
        data[op] = {"RecoverSSM": [_bar(processes, ours, name) for name in names]}
        if full is not None:
            data[op]["full state"] = [_bar(processes, full, name) for name in names]
    return data


def _bar(processes: Processes, series: derive.Series, case: str) -> dict[str, Any] | None:
    figure = processes.figure(series, case)
    if figure.median is None:
        return None
    shown = f"{text.micros(figure.median)} µs ({text.span(figure, 'us') or '1 process'})"
    return {"median": figure.median, "low": figure.low, "high": figure.high, "text": shown}


def _write_script(path: Path, key: str, data: Any) -> None:
    # A classic script, because pages opened from file:// may not fetch JSON. ensure_ascii also escapes U+2028.
    body = json.dumps(data, allow_nan=False, separators=(",", ":"))
    path.write_text(f"(window.{GLOBAL}=window.{GLOBAL}||{{}})[{json.dumps(key)}]={body};\n", encoding="ascii")


def _copy_assets(out: Path) -> None:
    shutil.copytree(HERE / "assets", out / "assets")
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
