"""Whether this process may fork measuring processes: it must have touched neither CUDA nor NVML, and run no threads."""

import sys
import threading
from pathlib import Path

SAFE_THREADS = ("jemalloc_bg_thd",)
"""Names of allocators' threads (pyarrow brings one); an allocator handles a fork itself."""


class NotCleanError(Exception):
    """Something is open or running here that forked children must not inherit."""


def require_clean(proc: Path = Path("/proc/self"), *, library_threads: bool = False) -> None:
    """Whatever a forked child would inherit half: CUDA, NVML, other threads.

    Args:
        library_threads: allow threads of libraries (BLAS keeps some, and makes new ones after a fork): good enough for
            children that measure nothing.
    Raises:
        NotCleanError: naming what is there.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise NotCleanError("CUDA is initialised in the parent; a forked child could not use it")
    devices = sorted({target for target in _open_files(proc / "fd") if target.startswith("/dev/nvidia")})
    if devices:
        # The driver opens these on cuInit and on nvmlInit, whoever calls them.
        raise NotCleanError(f"the parent has opened {', '.join(devices)}: CUDA or NVML is initialised in it")
    if threading.active_count() > 1:
        names = ", ".join(sorted(thread.name for thread in threading.enumerate()))
        raise NotCleanError(f"the parent runs threads ({names}); a forked child would inherit their locks, not them")
    others = [name for name in native_threads(proc) if not name.startswith(SAFE_THREADS)]
    if len(others) > 1 and not library_threads:
        raise NotCleanError(
            f"libraries run threads in the parent ({', '.join(others)}): a child would have none of them"
        )


def native_threads(proc: Path = Path("/proc/self")) -> list[str]:
    """Names of this process's threads as the system counts them, libraries' too; empty where it does not say."""
    names = []
    for comm in _entries(proc / "task"):
        try:
            names.append((comm / "comm").read_text().strip())
        except OSError:  # ended meanwhile
            continue
    return sorted(names)


def _open_files(folder: Path) -> list[str]:
    found = []
    for entry in _entries(folder):
        try:
            found.append(str(entry.readlink()))
        except OSError:  # closed meanwhile, such as the listing's own
            continue
    return found


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []
