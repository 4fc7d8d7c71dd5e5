"""Headline tiles of one case, with a sparkline over the nights of one GPU model."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from reports import derive, text
from reports.derive import Figure, Processes, Series, full_key
from reports.grid import Floats, Grid

SPARK_WIDTH, SPARK_HEIGHT, SPARK_MARGIN = 132.0, 34.0, 4.0


@dataclass(frozen=True, slots=True)
class Spark:
    """A line in SVG path syntax and where its last point lies."""

    path: str
    x: float
    y: float
    nights: int  # with a value
    caption: str


@dataclass(frozen=True, slots=True)
class Tile:
    key: str
    label: str
    value: str
    number: float | None  # the value itself, in the unit of the metric; None where there is none
    word: str  # what the value means, so that sign and colour never stand alone
    tone: str  # "good" | "bad" | "" (colour only repeats the word)
    detail: str  # range over processes, or why there is no value
    note: str  # what the value is made of
    spark: Spark | None


@dataclass(frozen=True)
class Past:
    """Nights of a GPU model, oldest first; the last one is shown.

    Attributes:
        labels: what each measured, in words.
        cuts: which environment facts changed before each.
    """

    labels: Sequence[str]
    processes: Sequence[Processes]
    cuts: Sequence[tuple[str, ...]]

    @cached_property
    def grid(self) -> Grid:
        return Grid([[record.columns for record in own.records] for own in self.processes])

    def values(self, case: str, series: Series, base: Series | None = None) -> Floats:
        """One per process: of a series, or how far it lies above its base, in percent."""
        key = full_key(series, case)
        return self.grid.values(key) if base is None else self.grid.ratio_pct(key, full_key(base, case))


def tiles_of(case: str, past: Past) -> list[Tile]:
    """The four headline tiles."""
    processes = past.processes[-1]
    now = processes.headline(case)
    return [
        _overhead(
            "verify_overhead",
            "Verify overhead",
            now.verify_overhead_pct,
            _pair(processes, case, derive.VERIFY, derive.FULL_VERIFY, "one layer"),
            _history(past, "pct", past.values(case, derive.VERIFY, derive.FULL_VERIFY)),
        ),
        _commit(processes, case, now.commit_us, _history(past, "us", past.values(case, derive.COMMIT))),
        _memory(processes, case, now, _history(past, "pct", past.values(case, derive.SAVED_PCT), exact=True)),
        _overhead(
            "step_overhead",
            "Step overhead",
            now.step_overhead_pct,
            _pair(processes, case, derive.STEP, derive.FULL_STEP, "all layers"),
            _history(past, "pct", past.values(case, derive.STEP, derive.FULL_STEP)),
        ),
    ]


def _overhead(key: str, label: str, figure: Figure, note: str, spark: Spark | None) -> Tile:
    value = figure.median
    if value is None:
        return Tile(key, label, text.MISSING, None, "no figure", "", figure.reason, note, spark)
    shown = text.percent(value, signed=True)
    even = shown == text.percent(0)
    word = "level with full state" if even else "slower than full state" if value > 0 else "faster than full state"
    tone = "" if even else "bad" if value > 0 else "good"
    return Tile(key, label, shown, value, word, tone, _range(figure, "pct"), note, spark)


def _commit(processes: Processes, case: str, figure: Figure, spark: Spark | None) -> Tile:
    parts = [("plan", derive.COMMIT_PLAN), ("state", derive.COMMIT_STATE), ("conv", derive.CONV)]
    named = [f"{name} {text.micros(processes.figure(series, case).median)}" for name, series in parts]
    note = f"measured alone: {', '.join(named)} µs"
    if figure.median is None:
        return Tile("commit", "Commit latency", text.MISSING, None, "no figure", "", figure.reason, note, spark)
    value = text.value_with_unit(figure.median, "us")
    return Tile(
        "commit", "Commit latency", value, figure.median, "per step, all layers", "", _range(figure, "us"), note, spark
    )


def _memory(processes: Processes, case: str, now: derive.Headline, spark: Spark | None) -> Tile:
    saved, share = now.memory_saved_bytes, now.memory_saved_pct
    ours, full = processes.exact(derive.CACHE, case).median, processes.exact(derive.FULL_CACHE, case).median
    note = f"{text.size(ours)} instead of {text.size(full)}"
    gain = processes.exact(derive.CAPACITY_GAIN, case).median
    if gain is not None:
        note += f"; cache capacity {text.percent(gain, signed=True, digits=2)}"
    if saved.median is None or share.median is None:
        return Tile(
            "memory", "Memory saved", text.MISSING, None, "no figure", "", saved.reason or share.reason, note, spark
        )
    word = f"{text.size(abs(saved.median))} {'less' if saved.median > 0 else 'more'} than full state"
    tone = "good" if saved.median > 0 else "bad"
    return Tile(
        "memory",
        "Memory saved",
        text.percent(share.median),
        share.median,
        word,
        tone,
        "exact, not measured",
        note,
        spark,
    )


def _pair(processes: Processes, case: str, ours: derive.Series, full: derive.Series, scope: str) -> str:
    left, right = (text.value_with_unit(processes.figure(series, case).median, "us") for series in (ours, full))
    return f"{left}, full state {right}, {scope}"


def _range(figure: Figure, unit: str) -> str:
    if figure.n == 1:
        return "1 process, so no range"
    return f"{text.span(figure, unit)}, {figure.n} processes"


def _history(past: Past, unit: str, values: Floats, *, exact: bool = False) -> Spark | None:
    """``exact``: processes that disagree have no value, as ``Processes.exact`` says."""
    medians: list[float | None] = [
        None if not own or (exact and len(set(own)) > 1) else statistics.median(own)
        for own in past.grid.by_night(values)
    ]
    known = [value for value in medians if value is not None]
    if not known:
        return None
    path, x, y = sparkline(medians, breaks={index for index, cut in enumerate(past.cuts) if cut})
    if len(known) == 1:
        return Spark(path, x, y, 1, "first night, no history yet")
    low, high = (_short(value, unit) for value in (min(known), max(known)))
    reach = f"all {low}" if low == high else f"{low} to {high}"
    return Spark(path, x, y, len(known), f"{len(known)} nights, {reach}")


def _short(value: float, unit: str) -> str:
    return text.percent(value, signed=True) if unit == "pct" else text.value_with_unit(value, unit)


def sparkline(values: Sequence[float | None], breaks: set[int] | None = None) -> tuple[str, float, float]:
    """SVG path over values, interrupted at None and before each index in ``breaks``; and the last known point."""
    known = [value for value in values if value is not None]
    low, spread = min(known), max(known) - min(known)
    pieces: list[str] = []
    x = y = 0.0
    pen_down = False
    for index, value in enumerate(values):
        if value is None:
            pen_down = False
            continue
        along = index / (len(values) - 1) if len(values) > 1 else 1.0
        height = (value - low) / spread if spread else 0.5
        x = SPARK_MARGIN + (SPARK_WIDTH - 2 * SPARK_MARGIN) * along
        y = SPARK_HEIGHT - SPARK_MARGIN - (SPARK_HEIGHT - 2 * SPARK_MARGIN) * height
        pieces.append(f"{'L' if pen_down and index not in (breaks or ()) else 'M'}{x:.1f} {y:.1f}")
        pen_down = True
    alone = [
        piece[0] == "M" and (not after or after[0] == "M")
        for piece, after in zip(pieces, [*pieces[1:], ""], strict=True)
    ]
    drawn = [
        piece + "h0" * is_alone for piece, is_alone in zip(pieces, alone, strict=True)
    ]  # a dot, where caps are round
    return "".join(drawn), round(x, 1), round(y, 1)
