"""The library that is measured is the one beside this program, never one that is installed or on some path."""

import sys
from pathlib import Path

TREE = Path(__file__).resolve().parent.parent


class StrangeLibraryError(ImportError):
    """Modules of recoverssm came from elsewhere."""


def require_own_library(tree: Path = TREE) -> None:
    """Look at every module of recoverssm that was imported so far.

    Raises:
        StrangeLibraryError: one lies outside ``tree``; both places are named.
    """
    own = (tree / "recoverssm").resolve()
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name.split(".")[0] == "recoverssm" and file is not None and own not in Path(file).resolve().parents:
            raise StrangeLibraryError(
                f"{name}: expected from {own}, imported from {file}; an installed package must not be measured in "
                "place of these sources: start from their folder, without PYTHONPATH"
            )
