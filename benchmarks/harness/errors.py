"""Exceptions of the harness.

HarnessError
├── MeasurementError            a number could not be taken under its contract; no other timer takes over
│   ├── BelowResolutionError    the timer read zero, or next to nothing
│   ├── HostLateError           the host could not keep ahead of the device, so launch cost entered the window
│   ├── MissingToolError        the contract is another program's, and that program cannot be used here
│   └── NoDeviceError           the contract needs a CUDA device and there is none
├── ContextLostError            a case broke the CUDA context; this process can measure nothing more
├── LockHeldError               another run owns this GPU
└── StoreError                  a record or night could not be stored or read
    ├── AlreadyStoredError      that id exists; a store is append-only
    ├── StoreFullError          no space left; nothing was left under a final name
    ├── CorruptRecordError      a file that was asked for by name cannot be read
    ├── BranchError             git could not check out, commit or push the store's branch
    ├── RemoteError             what is at a URL cannot be listed, read or written now
    ├── MissingPackageError     the Python package that speaks a URL's protocol is not installed
    └── UnsentError             stored on this machine, and not yet at the store's URL
"""

CONTEXT_LOST_EXIT = 75
"""Exit code (EX_TEMPFAIL) of a measuring process that ended with ContextLostError."""


class HarnessError(Exception):
    """Anything the harness raises on purpose."""


class MeasurementError(HarnessError):
    """A number could not be taken under its contract."""


class BelowResolutionError(MeasurementError):
    """The timer read zero, or next to nothing: the work is too short for it."""


class HostLateError(MeasurementError):
    """The host could not keep ahead of the device, so launch cost entered the timed window."""


class MissingToolError(MeasurementError):
    """The contract is defined by another program, and that program cannot be used here: its series are skipped."""


class NoDeviceError(MeasurementError):
    """The contract needs a CUDA device and there is none."""


class ContextLostError(HarnessError):
    """A case broke the CUDA context; only another process can go on."""


class LockHeldError(HarnessError):
    """Another run owns this GPU."""


class StoreError(HarnessError):
    """A record or night could not be stored or read."""


class AlreadyStoredError(StoreError):
    """That id exists already; a store is append-only."""


class StoreFullError(StoreError):
    """No space left; nothing was left under a final name."""


class CorruptRecordError(StoreError):
    """A file that was asked for by name cannot be read."""


class BranchError(StoreError):
    """Git could not check out, commit or push the store's branch; files written so far are safe."""


class RemoteError(StoreError):
    """What is at a URL cannot be listed, read or written now."""


class MissingPackageError(StoreError):
    """The Python package that speaks a URL's protocol is not installed; the message names it."""


class UnsentError(StoreError):
    """Stored on this machine, and not yet at the store's URL; a later command sends it."""
