from importlib import import_module
from typing import Any

from recoverssm.triton_compat import IS_TESTED


def gluon_kernel(name: str) -> Any:
    """``_NAME_kernel`` of the module NAME; None where nobody tried this Triton, which may lack what it needs."""
    return getattr(import_module(f"{__name__}.{name}"), f"_{name}_kernel") if IS_TESTED else None
