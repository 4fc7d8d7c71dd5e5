"""A measuring process ends with the night that started it: no orphan measures on a GPU that is locked no longer."""

import ctypes
import os
import signal
import sys

PARENT_VARIABLE = "RECOVERSSM_PARENT_PID"
PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with_parent() -> None:
    """Have the kernel end this process when the parent named in ``PARENT_VARIABLE`` dies, however it dies.

    A process that was started by hand has no such variable and lives as long as it likes.
    """
    named = os.environ.pop(PARENT_VARIABLE, None)
    if named is None or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(named):  # it died before we could ask
        os.kill(os.getpid(), signal.SIGKILL)
