"""Whether this process may fork measuring processes: it must have touched neither CUDA nor NVML, and run no threads."""

import sys
import threading
from pathlib import Path


class NotCleanError(Exception):
    """Something is open or running here that forked children must not inherit."""


def require_clean(folder: Path = Path("/proc/self")) -> None:
    """Whatever a forked child would inherit half: CUDA, NVML, other threads.

    Raises:
        NotCleanError: naming what is there.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise NotCleanError("CUDA is initialised in the parent; a forked child could not use it")
    devices = sorted({target for target in _open_files(folder / "fd") if target.startswith("/dev/nvidia")})
    if devices:
        # The driver opens these on cuInit and on nvmlInit, whoever calls them.
        raise NotCleanError(f"the parent has opened {', '.join(devices)}: CUDA or NVML is initialised in it")
    if threading.active_count() > 1:
        names = ", ".join(sorted(thread.name for thread in threading.enumerate()))
        raise NotCleanError(f"the parent runs threads ({names}); a forked child would inherit their locks, not them")


def num_native_threads(folder: Path = Path("/proc/self/task")) -> int | None:
    """Threads of this process as the system counts them, Python's and libraries'; None where it does not say."""
    try:
        return len(list(folder.iterdir()))
    except OSError:
        return None


def _open_files(folder: Path) -> list[str]:
    found: list[str] = []
    try:
        entries = list(folder.iterdir())
    except OSError:
        return found
    for entry in entries:
        try:
            found.append(str(entry.readlink()))
        except OSError:  # closed meanwhile, such as the listing's own
            continue
    return found
