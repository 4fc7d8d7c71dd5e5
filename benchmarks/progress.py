"""How far a process is: a bar on a terminal, plain lines elsewhere (in a log, or under ``ci nightly``)."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar


class Progress:
    """Context manager that tells of cases as they start and end."""

    def __init__(self, console: Console) -> None:
        self._console, self._total, self._done = console, 0, 0
        self._started_s = time.monotonic()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Bar(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("starting", total=None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def expect(self, total: int) -> None:
        """Say how many cases will end."""
        self._total = total
        self._bar.update(self._task, total=total)

    def case_started(self, name: str) -> None:
        """Show what is being worked on."""
        self._bar.update(self._task, description=name)

    def case_ended(self, name: str, outcome: str) -> None:
        """Print a line that stays."""
        self._done += 1
        self._bar.advance(self._task)
        elapsed_s = time.monotonic() - self._started_s
        self._console.print(
            f"[{self._done}/{self._total}] {elapsed_s:.1f} s {name}: {outcome}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
