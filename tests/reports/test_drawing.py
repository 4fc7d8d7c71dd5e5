"""Figures laid out in Python: axes, gaps, shapes and the file for slides."""

import math
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from reports.drawing import WIDTH, Chart, Line, Point, draw
from reports.pages.documents import svg

CHART = Chart(
    "key",
    "A title",
    "time, µs",
    "share, %",
    (
        Line("ours", (Point(1, 10), Point(2, None), Point(3, 30), Point(4, 40, "last"))),
        Line("full", (Point(1, 5), Point(4, 20)), joined=False),
    ),
)


def test_a_gap_interrupts_the_line_and_has_no_mark():
    ours, full = draw(CHART).strokes

    assert [piece for piece in ours.path if piece.isalpha()] == ["M", "M", "L"]
    assert len(ours.marks) == 3
    assert ours.marks[-1].hint == "ours: last"
    assert full.path == ""


def test_larger_values_lie_higher_and_inside_the_axes():
    drawing = draw(CHART)
    ours = drawing.strokes[0].marks

    assert ours[0].y > ours[1].y > ours[2].y
    assert all(drawing.left <= mark.x <= drawing.right and drawing.top <= mark.y <= drawing.bottom for mark in ours)


def test_a_linear_axis_begins_at_zero_unless_told_otherwise():
    assert draw(CHART).y_ticks[0].text == "0"
    assert draw(replace(CHART, y_zero=False)).y_ticks[0].text != "0"


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([1, 1000], ["1", "10", "100", "1,000"]),
        ([1.3, 4.4], ["2", "3", "4"]),
        ([1e-7, 1e-4], ["1e−7", "1e−6", "1e−5", "1e−4"]),
    ],
)
def test_a_log_axis_has_round_labels_over_any_span(values, texts):
    chart = replace(CHART, x_log=True, lines=(Line("one", tuple(Point(value, 1) for value in values)),))

    found = [tick.text for tick in draw(chart).x_ticks]

    assert [text for text in texts if text not in found] == []
    assert len(found) <= 16


def test_what_an_axis_cannot_show_is_left_out_and_nothing_is_no_figure():
    points = (Point(0, 1), Point(1, math.nan), Point(2, math.inf), Point(3, None))
    chart = replace(CHART, x_log=True, lines=(Line("one", points),))

    assert draw(chart) is None
    assert draw(replace(chart, lines=())) is None


def test_one_point_is_drawn():
    assert len(draw(replace(CHART, lines=(Line("one", (Point(3, 7),)),))).strokes[0].marks) == 1


def test_lines_differ_by_shape_and_dash_and_the_legend_breaks_before_the_edge():
    lines = tuple(Line(f"a rather long name of line {index}", (Point(1, index),)) for index in range(6))
    drawing = draw(replace(CHART, lines=lines))

    marks = [stroke.legend for stroke in drawing.strokes]
    assert len({stroke.dash for stroke in drawing.strokes}) == 6
    assert len({mark.path.count("L") for mark in marks}) >= 4
    assert all(mark.x < WIDTH - 100 for mark in marks)
    assert drawing.top > marks[-1].y


def test_the_file_stands_alone_and_escapes_what_it_shows():
    hostile = '</text><script>alert(1)</script>"&'
    chart = replace(CHART, title=hostile, x_label=hostile, lines=(Line(hostile, (Point(1, 1, hostile),)),))

    root = ET.fromstring(svg(draw(chart)))  # well-formed

    names = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert "script" not in names
    assert "style" in names
    assert root.get("aria-label") == hostile
