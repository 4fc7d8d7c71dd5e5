"""The GPUs of one host, measured at once: a thread for each, and none is left when the night ends."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

from .exits import CommandError, Interrupted
from .gpus import Gpu
from .processes import POLL_S


def side_by_side(measure: Callable[[Gpu], None], gpus: Sequence[Gpu], stop: threading.Event) -> None:
    """Call ``measure`` for all GPUs at once and wait for all. What one of them raises does not end the others.

    Args:
        stop: is set when a signal arrives here; then ``measure`` raises Interrupted soon.
    Raises:
        CommandError, Exception: the first that a GPU raised, when all have ended; the others' messages stand behind it.
        Interrupted: the signal.
    """
    with ThreadPoolExecutor(len(gpus), thread_name_prefix="gpu") as pool:
        try:
            running = [pool.submit(measure, gpu) for gpu in gpus]
            while wait(running, timeout=POLL_S).not_done:
                pass  # a signal that another thread was given reaches this one between two waits
        except Interrupted:  # also of a signal that arrives while threads start
            stop.set()
            raise
    errors = [error for one in running if (error := one.exception()) is not None]
    if not errors:
        return
    first, *others = errors
    if isinstance(first, CommandError) and others:
        raise type(first)("; ".join(map(str, errors)), first.next_step) from first
    raise first
