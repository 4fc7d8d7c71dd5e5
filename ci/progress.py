"""Tells people how far a night is: a live line on a terminal, plain lines elsewhere; always on standard error."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class NightProgress:
    """Context manager around the measuring processes of one GPU.

    Args:
        live: keep a line up to date on a terminal; one at a time can.
        console: writes to standard error, so that standard output holds results alone.
        total: processes to run; ``done`` of them were measured before.
    """

    def __init__(self, console: Console, name: str, *, done: int, total: int, live: bool = True) -> None:
        self._console, self._name, self._done, self._total = console, name, done, total
        self._started = 0.0
        self._is_live = live and console.is_terminal
        self._live = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("[dim]{task.fields[line]}"),
            console=console,
            transient=True,
            disable=not self._is_live,
        )
        self._task = self._live.add_task(f"{name}: processes", total=total, completed=done, line="")

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def process_started(self, seed: int, how: str = "") -> None:
        self._started = time.monotonic()
        self._say(f"process {self._done + 1} of {self._total} starts, seed {seed}{how}")

    def line(self, text: str) -> None:
        """One line of the running process."""
        if self._is_live:
            self._live.update(self._task, line=escape(text[: max(20, self._console.width - 60)]))
        else:
            self._say(text)

    def process_ended(self, what: str) -> None:
        self._done += 1
        self._live.update(self._task, completed=self._done, line="")
        self.warn(f"{what} after {time.monotonic() - self._started:.0f} s")

    def warn(self, text: str) -> None:
        """A line that stays, on a terminal too."""
        where = f"[{self._name} {min(self._done, self._total)}/{self._total}] "
        self._console.print(where + text, markup=False, highlight=False, soft_wrap=True)

    def _say(self, text: str) -> None:
        if not self._is_live:
            self.warn(text)
