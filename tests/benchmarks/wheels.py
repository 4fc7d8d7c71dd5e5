"""Wheels of made-up packages, and a process that has loaded nothing of them."""

import sys
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.peers import packages
from benchmarks.peers.packages import Package

METADATA = "Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n"


def make_wheel(folder: Path, name: str, version: str, files: dict[str, str]) -> Path:
    """A wheel with these files, by path; folders and more metadata than anybody needs are in it, as in real ones."""
    stem = f"{name.replace('-', '_')}-{version}"
    wheel = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{stem}.dist-info/METADATA", METADATA.format(name=name, version=version))
        archive.writestr(f"{stem}.dist-info/licenses/LICENSE", "as they like\n")
        archive.writestr(f"{stem}.dist-info/RECORD", "")
        for path, text in files.items():
            archive.writestr(path, text)
    return wheel


@contextmanager
def forgotten(known: Sequence[Package]) -> Iterator[None]:
    """Afterwards nothing of these packages is loaded, and nothing is found in a folder any more."""
    try:
        yield
    finally:
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, packages._Finder)]
        modules = {package.module for package in known}
        for name in [name for name in sys.modules if name.partition(".")[0] in modules]:
            del sys.modules[name]
