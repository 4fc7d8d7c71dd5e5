"""Other people's code in our process: it cannot end it by exiting, and leaves torch set as it was."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

SETTINGS: tuple[tuple[Callable[[], Any], Callable[[Any], object]], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
)
"""How each is read and written. The next one to be measured in the process is to find what the first one found."""


class ExitedError(Exception):
    """A peer called ``sys.exit``, or raised what else passes by those who handle errors."""


@contextmanager
def contained() -> Iterator[None]:
    """Around a peer's code. Raises what that raises, but an ExitedError where it would end the process."""
    before = [read() for read, _ in SETTINGS]
    try:
        yield
    except (Exception, KeyboardInterrupt):  # an interrupt is for the whole process
        raise
    except SystemExit as error:
        raise ExitedError(f"sys.exit({error.code!r})") from error
    except BaseException as error:
        raise ExitedError(f"{type(error).__name__}: {error}") from error
    finally:
        for value, (read, write) in zip(before, SETTINGS, strict=True):
            if read() != value:
                write(value)
