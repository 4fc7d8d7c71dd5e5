"""Exit codes of every command here, and the errors that carry them.

One number answers one question: 1 means "slower", never "could not tell". When several apply, the one that casts most
doubt on the measurement wins: 5, then 4, 3, 1.
"""

from enum import IntEnum


class Exit(IntEnum):
    """What a command says to the shell. ``new``, ``inconclusive`` and ``blind`` series pass."""

    PASS = 0
    REGRESSED = 1
    USAGE = 2
    MISSING = 3
    INVALID = 4
    BROKEN = 5
    INTERRUPTED = 130


WORST_FIRST = (Exit.BROKEN, Exit.INVALID, Exit.MISSING, Exit.REGRESSED, Exit.PASS)  # of what nights and gates end with


class CommandError(Exception):
    """Ends a command with a message, the next step for the reader, and an exit code."""

    code = Exit.BROKEN

    def __init__(self, message: str, next_step: str = "") -> None:
        super().__init__(message)
        self.next_step = next_step


class UsageError(CommandError):
    """The command line or a configuration file asks for something that does not exist."""

    code = Exit.USAGE


class MissingDataError(CommandError):
    """Nothing was selected, or the data asked for do not exist."""

    code = Exit.MISSING


class BrokenEnvironmentError(CommandError):
    """The machine cannot do it now: no GPU, a lock held, a disk full."""

    code = Exit.BROKEN


class InUseError(BrokenEnvironmentError):
    """Another run has the GPU or the folder: the machine is well, and can do it later."""


class Interrupted(Exception):
    """SIGINT or SIGTERM arrived; what was measured is kept."""
