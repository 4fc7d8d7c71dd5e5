"""Counts what Triton compiles in this process, and what it finds compiled in its cache on disk."""

from types import TracebackType
from typing import Any, Self

from .records import Compilations


class CompilationCounter:
    """Context manager; ``summary`` says what was compiled inside it, None where Triton does not tell."""

    def __init__(self) -> None:
        self._num_cached, self._total_us = 0, 0
        self._compiled: list[str] = []
        self._knobs: Any = None
        self._before: Any = None

    def __enter__(self) -> Self:
        try:
            from triton import knobs
        except ImportError:  # no Triton, or one that has no listener
            return self
        self._knobs, self._before = knobs.compilation, knobs.compilation.listener
        self._knobs.listener = self._listen
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._knobs is not None:
            self._knobs.listener = self._before

    def summary(self) -> Compilations | None:
        """So far; the time is that of compiling alone, loads from the cache left out."""
        if self._knobs is None:
            return None
        return Compilations(
            num_compiled=len(self._compiled),
            num_cached=self._num_cached,
            compile_s=round(self._total_us / 1e6, 3),
            compiled=sorted(set(self._compiled)),
        )

    def _listen(self, *, metadata: Any, times: Any, cache_hit: bool, **others: Any) -> None:
        if cache_hit:
            self._num_cached += 1
        else:
            self._compiled.append(str(metadata.get("name", "unnamed")))
            self._total_us += times.total
        if self._before is not None:
            self._before(metadata=metadata, times=times, cache_hit=cache_hit, **others)
