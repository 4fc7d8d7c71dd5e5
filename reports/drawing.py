"""Figures without a script: lines and dots over two axes, laid out here and drawn as SVG by a template.

The same drawing stands in the page and, with its own style, in a file for slides.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from reports import text

WIDTH, HEIGHT = 620.0, 340.0
LEFT, RIGHT, BOTTOM = 74.0, 16.0, 52.0
LEGEND_LINE = 20.0
CHARACTER = 7.2  # px of the font's 13 px letters, on the wide side


def _around(corners: int, *radii: float) -> tuple[tuple[float, float], ...]:
    """Corners of a star about the origin, the first above it; of one radius, of a polygon."""
    turns = ((index, 2 * math.pi * index / corners) for index in range(corners))
    return tuple(
        (radii[index % len(radii)] * math.sin(turn), -radii[index % len(radii)] * math.cos(turn))
        for index, turn in turns
    )


CIRCLE, DIAMOND, TRIANGLE, STAR = _around(12, 4), _around(4, 5.5), _around(3, 5.5), _around(10, 6, 2.5)
SQUARE, CROSS = ((-4, -4), (4, -4), (4, 4), (-4, 4)), _around(8, 6, 1.5)
SHAPES = (CIRCLE, DIAMOND, SQUARE, TRIANGLE, CROSS, STAR)
DASHES = ("", "6 4", "2 3", "9 3 2 3", "1 4", "12 4")


@dataclass(frozen=True, slots=True)
class Point:
    """``y`` None is a gap; ``hint`` is said when the dot is pointed at."""

    x: float
    y: float | None
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """``joined`` False: dots alone."""

    name: str
    points: tuple[Point, ...]
    joined: bool = True


@dataclass(frozen=True, slots=True)
class Chart:
    """Axis labels carry unit and direction; ``key`` names its file and is unique in its page."""

    key: str
    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    x_log: bool = False
    y_log: bool = False
    y_zero: bool = True  # a linear axis begins at zero
    x_ticks: tuple[float, ...] = ()  # where the axis is labelled; round values when left out
    note: str = ""

    @property
    def points(self) -> list[Point]:
        """With a value."""
        return [point for line in self.lines for point in line.points if point.y is not None]


@dataclass(frozen=True, slots=True)
class Tick:
    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Mark:
    x: float
    y: float
    path: str  # in SVG path syntax, around (x, y)
    hint: str


@dataclass(frozen=True, slots=True)
class Stroke:
    """One line as drawn: ``number`` picks its colour, and shape and dash say the same."""

    name: str
    number: int
    path: str
    dash: str
    marks: tuple[Mark, ...]
    legend: Mark


@dataclass(frozen=True, slots=True)
class Drawing:
    chart: Chart
    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    strokes: tuple[Stroke, ...]


def draw(chart: Chart) -> Drawing | None:
    """None where the chart has no point. Values that a log axis cannot show are left out."""
    shown = [point for point in chart.points if _fits(point, chart)]
    if not shown:
        return None
    legend = _legend([line.name for line in chart.lines])
    top = 14.0 + LEGEND_LINE * (1 + max(y for _, y in legend))
    height = HEIGHT + top
    xs, ys = [point.x for point in shown], [point.y for point in shown if point.y is not None]
    x_axis = _Axis(xs, LEFT, WIDTH - RIGHT, log=chart.x_log, zero=False)
    y_axis = _Axis(ys, height - BOTTOM, top, log=chart.y_log, zero=chart.y_zero)
    strokes = tuple(
        _stroke(line, number, x_axis, y_axis, chart, (8.0 + x, 16.0 + LEGEND_LINE * y))
        for number, (line, (x, y)) in enumerate(zip(chart.lines, legend, strict=True))
    )
    x_ticks = x_axis.ticks(chart.x_ticks)
    return Drawing(chart, WIDTH, height, LEFT, WIDTH - RIGHT, top, height - BOTTOM, x_ticks, y_axis.ticks(), strokes)


def _fits(point: Point, chart: Chart) -> bool:
    finite = point.y is not None and math.isfinite(point.x) and math.isfinite(point.y)
    return finite and not (chart.x_log and point.x <= 0) and not (chart.y_log and (point.y or 0) <= 0)


def _legend(names: Sequence[str]) -> list[tuple[float, int]]:
    """Left edge and line of each entry."""
    places, x, line = [], 0.0, 0
    for name in names:
        width = 30 + CHARACTER * len(name)
        if x and x + width > WIDTH - 16:
            x, line = 0.0, line + 1
        places.append((x, line))
        x += width
    return places or [(0.0, 0)]


class _Axis:
    """From values to pixels."""

    def __init__(self, values: Sequence[float], start: float, end: float, *, log: bool, zero: bool) -> None:
        self.start, self.end, self.log = start, end, log
        low, high = (math.log10(min(values)), math.log10(max(values))) if log else (min(values), max(values))
        if zero and not log:
            low, high = min(low, 0.0), max(high, 0.0)
        if low == high:
            low, high = (low - 0.3, high + 0.3) if log else (low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2)
        margin = 0.04 * (high - low)
        self.low = low if zero and not log and low == 0 else low - margin
        self.high = high + margin

    def at(self, value: float) -> float:
        share = ((math.log10(value) if self.log else value) - self.low) / (self.high - self.low)
        return round(self.start + (self.end - self.start) * share, 1)

    def ticks(self, wanted: Sequence[float] = ()) -> tuple[Tick, ...]:
        values = wanted or (self._log_values() if self.log else _even_values(self.low, self.high))
        return tuple(Tick(self.at(value), _tick(value)) for value in values)

    def _log_values(self) -> list[float]:
        span = self.high - self.low
        if span < 1:  # too narrow for 1, 2, 5
            return _even_values(10**self.low, 10**self.high)
        factors = (1, 2, 5) if span < 3 else (1,)
        decades = range(math.floor(self.low), math.ceil(self.high) + 1)
        found = [factor * 10.0**decade for decade in decades for factor in factors]
        found = [value for value in found if self.low <= math.log10(value) <= self.high]
        return found[:: max(1, len(found) // 8)]


def _even_values(low: float, high: float) -> list[float]:
    step = _nice((high - low) / 6)
    first = math.ceil(low / step - 1e-9)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def _nice(step: float) -> float:
    base = 10.0 ** math.floor(math.log10(step))
    return next(factor * base for factor in (1, 2, 2.5, 5, 10) if factor * base >= step * (1 - 1e-9))


def _tick(value: float) -> str:
    if value and not 1e-3 <= abs(value) < 1e7:
        return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e").replace("-", text.MINUS)
    return f"{value:,.10g}".replace("-", text.MINUS)


def _stroke(line: Line, number: int, x_axis: _Axis, y_axis: _Axis, chart: Chart, legend: tuple[float, float]) -> Stroke:
    pieces, marks, pen_down = [], [], False
    for point in line.points:
        if not _fits(point, chart) or point.y is None:
            pen_down = False
            continue
        x, y = x_axis.at(point.x), y_axis.at(point.y)
        pieces.append(f"{'L' if pen_down else 'M'}{x} {y}")
        marks.append(Mark(x, y, _shape(number, x, y), f"{line.name}: {point.hint}" if point.hint else line.name))
        pen_down = True
    path = "".join(pieces) if line.joined else ""
    sample = Mark(legend[0], legend[1], _shape(number, *legend), "")
    return Stroke(line.name, number, path, DASHES[number % len(DASHES)], tuple(marks), sample)


def _shape(number: int, x: float, y: float) -> str:
    """A closed path of the line's own shape."""
    corners = SHAPES[number % len(SHAPES)]
    return "M" + "L".join(f"{x + dx:.1f} {y + dy:.1f}" for dx, dy in corners) + "Z"
