"""``python -m benchmarks.fork_server TOKEN``: imports once, then forks one measuring process for each line of stdin.

A line is the JSON list of a ``benchmarks.run`` command line. Lines that begin with TOKEN are for the program that
started this one: ``ready``, ``started PID``, ``ended CODE``. The parent never touches CUDA or NVML and runs no threads,
which it checks before every fork: children of a parent that has could not use the GPU.
"""

import gc
import json
import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from .harness.clean_parent import NotCleanError, require_clean
from .harness.parent import PARENT_VARIABLE, end_with_parent
from .own_library import StrangeLibraryError, require_own_library

BROKEN = 5  # as in ci/exits.py


def main(token: str) -> int:
    """Serve until stdin ends; exit code 5 when this process is not fit to fork."""
    end_with_parent()
    if not os.environ.get("CUDA_VISIBLE_DEVICES", "unset"):
        os.environ["TRITON_INTERPRET"] = "1"  # Triton decides at import, and to ask torch for a GPU would touch it
    from . import process  # noqa: F401  # torch, triton, the kernels: everything a measuring process imports

    try:
        require_own_library()
    except StrangeLibraryError as error:
        print(error, file=sys.stderr)
        return BROKEN
    gc.collect()
    gc.freeze()  # or the first collection in a child would copy every page that holds an object
    _say(token, "ready")
    while line := sys.stdin.readline():
        try:
            require_clean()
        except NotCleanError as error:
            print(error, file=sys.stderr)
            return BROKEN
        _say(token, f"ended {_run_forked(token, json.loads(line))}")
    return 0


def _run_forked(token: str, arguments: Sequence[str]) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        # Python 3.12 warns of every thread, those of libraries that are made for forking too; ours were looked at.
        warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*multi-threaded.*fork")
        pid = os.fork()
    if pid == 0:
        _measure(arguments)
    with suppress(OSError):  # the child does it too, and whoever comes first
        os.setpgid(pid, pid)
    _say(token, f"started {pid}")
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _measure(arguments: Sequence[str]) -> NoReturn:
    code = 1
    try:
        with suppress(OSError):
            os.setpgid(0, 0)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ[PARENT_VARIABLE] = str(os.getppid())
        from .run import app

        app(list(arguments))
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # the parent's exit handlers are not this process's


def _say(token: str, news: str) -> None:
    sys.stdout.write(f"\n{token}{news}\n")  # a killed process may have left half a line
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
