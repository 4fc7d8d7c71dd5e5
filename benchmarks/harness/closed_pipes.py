"""A reader that goes away (`| head -1`, a pager that is quit) neither ends a command nor changes its exit code.

Python's own way would: an unhandled ``BrokenPipeError`` exits 1, which here means "regressed", and one in the middle
of a night would end its measuring.
"""

import errno
import io
import os
import sys

GONE = (errno.EPIPE, errno.EIO)  # the reader of a pipe, the terminal


class _Outlet(io.FileIO):
    """A file descriptor that is turned to nowhere once nobody reads it."""

    # Any buffer, as io.RawIOBase has it.
    def write(self, data: "bytes | bytearray | memoryview") -> int:  # type: ignore[override]
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in GONE:
                raise
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return len(data)


def outlive_readers() -> None:
    """Make standard output and standard error of this process survive the end of whoever reads them."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, io.TextIOWrapper):  # closed from the start, or a test's
            continue
        stream.flush()
        outlet = io.BufferedWriter(_Outlet(stream.fileno(), "wb", closefd=False))  # type: ignore[type-var]  # see write
        lines = name == "stderr" or stream.line_buffering
        setattr(sys, name, io.TextIOWrapper(outlet, stream.encoding, stream.errors, line_buffering=lines))
