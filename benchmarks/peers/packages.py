"""Kernel modules of other projects: of an installed package, or of a few files of its wheel in a folder.

A framework's package is large and imports half the world, its kernels are a few files. ``python -m
benchmarks.peers.unpack`` takes those files out of a wheel and puts them where the package would have them; the variable
``RECOVERSSM_PEERS`` names the folder. What the kernels' modules import of the rest of the framework is stood in for by
names of our own. An installed package is imported as it is, with nothing stood in for, and goes before the folder.
"""

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

from ..checks import COMPILED, INTERPRETED
from .protocol import NotInstalledError, Tolerance

FOLDER_VARIABLE = "RECOVERSSM_PEERS"

StandIns = Mapping[str, Mapping[str, object]]
"""By module of the framework, the names that kernel modules import from it."""


@dataclass(frozen=True, slots=True)
class Package:
    """A package that has kernels of ours' kind.

    Attributes:
        distribution: its name on PyPI.
        module: its name in imports.
        files: globs over a wheel's members that the kernels need; ``*`` goes across folders.
        stand_ins: makes what those files import besides. Called when the first of them is loaded, so that it may ask
            the device.
    """

    distribution: str
    module: str
    files: tuple[str, ...]
    stand_ins: Callable[[], StandIns] = dict


class BrokenPackageError(Exception):
    """The package is there, but its kernels cannot be loaded; the message has its version and why."""


@dataclass(frozen=True, slots=True)
class Found:
    """A package that is there: installed, or files of its wheel in ``folder``."""

    package: Package
    version: str
    folder: Path | None

    def load(self, name: str) -> ModuleType:
        """Import one of the package's modules by its full name.

        Raises:
            NotInstalledError: it needs another package that is not there.
            BrokenPackageError: the import failed in any other way.
        """
        if self.folder is not None:
            _find_in(self.folder, self.package)
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            if missing and missing != self.package.module:
                raise NotInstalledError(f"{self}: its {name} needs {missing}, which is not installed") from error
            raise BrokenPackageError(f"{self}: {error}") from error
        except Exception as error:  # whatever a framework raises while it is imported
            raise BrokenPackageError(f"{self}: {name}: {type(error).__name__}: {error}") from error

    def __str__(self) -> str:
        return f"{self.package.distribution} {self.version}"


def as_ours() -> Tolerance:
    """The limits of our own kernels, for others that sum in fp32 and round each result once, where Triton runs them."""
    limits = INTERPRETED if os.environ.get("TRITON_INTERPRET") == "1" else COMPILED
    return Tolerance(out=limits.out, correction=limits.fp32, state_fp32=limits.fp32, state_bf16=limits.bf16_state)


def find(package: Package) -> Found:
    """The installed package, or its files in the folder that ``RECOVERSSM_PEERS`` names.

    Raises:
        NotInstalledError: neither is there.
    """
    installed = _distribution(package, sys.path)
    if installed is not None:
        return Found(package, installed.version, None)
    folder = os.environ.get(FOLDER_VARIABLE)
    unpacked = _distribution(package, [folder]) if folder else None
    if unpacked is None:
        where = f"the folder {folder!r} of {FOLDER_VARIABLE} has no files of it" if folder else f"no {FOLDER_VARIABLE}"
        raise NotInstalledError(
            f"{package.distribution} is not installed ({where}); install it, or unpack its wheel's kernels with "
            "python -m benchmarks.peers.unpack"
        )
    return Found(package, unpacked.version, Path(folder or "").resolve())


def _distribution(package: Package, path: list[str]) -> metadata.Distribution | None:
    return next(iter(metadata.distributions(name=package.distribution, path=path)), None)


def _find_in(folder: Path, package: Package) -> None:
    """Have the package's modules found in ``folder`` from now on: kernels import some of them only when called."""
    if not any(isinstance(finder, _Finder) and finder.serves(folder, package) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(folder, package))


class _Finder(MetaPathFinder):
    """Finds modules of one package among its files in a folder, and what stands in for the others."""

    def __init__(self, folder: Path, package: Package) -> None:
        self._folder, self._package = folder, package
        self._stand_ins = package.stand_ins()

    def serves(self, folder: Path, package: Package) -> bool:
        return (self._folder, self._package) == (folder, package)

    def find_spec(self, fullname: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname.partition(".")[0] != self._package.module:
            return None
        if fullname in self._stand_ins:
            return ModuleSpec(fullname, _StandIn(self._stand_ins[fullname]), is_package=True)
        file = self._folder.joinpath(*fullname.split("."))
        if (file / "__init__.py").is_file():
            return spec_from_file_location(fullname, file / "__init__.py", submodule_search_locations=[str(file)])
        if file.with_suffix(".py").is_file():
            return spec_from_file_location(fullname, file.with_suffix(".py"))
        if file.is_dir() or any(name.startswith(f"{fullname}.") for name in self._stand_ins):
            return ModuleSpec(fullname, _StandIn({}), is_package=True)
        return None


class _StandIn(Loader):
    """Fills a module with given names; without any it is a package that only holds others."""

    def __init__(self, names: Mapping[str, object]) -> None:
        self._names = names

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update(self._names)
