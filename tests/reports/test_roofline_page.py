"""Achieved bandwidth, bytes of states, capacity of a budget."""

import json

import pytest

from reports.capacity import CAPACITY_FILE
from reports.pages.page import Site
from reports.pages.roofline import roofline_document
from reports.sources import History
from tests.reports.browsing import opened
from tests.reports.golden import HEADLINE, SKIPPED
from tests.reports.reading import column, shown_rows, table, texts, unfold

MOVED = (1 << 20) + (1 << 18)  # of every golden measurement of device time


def rows_of(found, case):
    return {row[1]: row for row in texts(found) if row[0] == case}


def test_achieved_bandwidth_is_bytes_over_time_in_each_process(golden_history, now):
    document = roofline_document(Site(golden_history, now))
    found = table(document, "Achieved, case by case", "nvidia-h200")
    (section,) = [one for one in document.sections if one.key == "nvidia-h200"]

    verify = rows_of(found, HEADLINE)["verify"]

    time_us = 60.0 * 1.06 * 1.002  # of the last night's middle process
    assert verify[2] == "1.25 MiB"
    assert float(verify[3]) == pytest.approx(time_us, abs=0.05)
    assert float(verify[4]) == pytest.approx(MOVED / time_us / 1e6, abs=0.005)
    assert verify[7] == "2026-01-04"
    (chart,) = section.charts
    assert [line.name for line in chart.lines][:2] == ["verify", "full-state verify"]
    assert any(point.hint.startswith(f"{HEADLINE}, ") for point in chart.lines[0].points)


def test_a_skipped_case_has_its_reason_and_no_dot(golden_history, now):
    document = roofline_document(Site(golden_history, now))
    found = table(document, "Achieved, case by case", "nvidia-h200")
    (section,) = [one for one in document.sections if one.key == "nvidia-h200"]

    row = next(row for row in found.rows if row[0].text == SKIPPED)

    assert [cell.text for cell in row[3:7]] == ["–"] * 4
    assert "153.2 GiB" in row[3].hint
    assert not any(SKIPPED in point.hint for point in section.charts[0].points)


def test_streams_are_shown_at_both_ends_or_said_to_be_missing(golden_history, now):
    document = roofline_document(Site(golden_history, now))
    (section,) = [one for one in document.sections if one.key == "nvidia-h200"]

    rows = texts(section.tables[0])

    assert [row[0] for row in rows] == ["copy", "read", "read4_write1"]
    assert rows[0][1:] == ["512.00 MiB read, 512.00 MiB written", "3.980 (3.980 to 3.980)", "–"]


def test_memory_is_listed_once_for_each_case(golden_history, now):
    found = table(roofline_document(Site(golden_history, now)), "Case by case")

    names = column(found, "case")
    assert len(names) == len(set(names)) == 40
    assert texts(found)[names.index(HEADLINE)][1:6] == ["12.94 GiB", "1.82 GiB", "11.12 GiB", "85.9 %", "+10.97 %"]


def test_capacity_holds_the_published_gain_and_falls_with_the_context():
    grid = json.loads(CAPACITY_FILE.read_bytes())
    setting = grid["published"]
    (point,) = [
        one
        for one in grid["points"]
        if (one["state_dtype"], one["spec_query_len"], one["tensor_parallel"]) == ("fp32", 8, 8)
    ]

    assert point["capacity_gain_pct"][grid["context_lens"].index(setting["context_len"])] == pytest.approx(
        10.973, abs=1e-3
    )
    assert point["capacity_gain_pct"] == sorted(point["capacity_gain_pct"], reverse=True)


def test_without_nights_capacity_is_still_there(now):
    document = roofline_document(Site(History(), now))

    assert [section.key for section in document.sections] == ["achieved", "capacity"]
    assert document.sections[0].missing == "No night of a GPU is recorded."


def test_a_public_page_links_no_raw_night(golden_history, now):
    document = roofline_document(Site(golden_history, now, raw=False))

    assert all(
        not cell.href
        for section in document.sections[:-1]
        for one in section.tables
        for row in one.rows
        for cell in row
    )
    assert all(section.links == () for section in document.sections[:-1])


def test_the_page_in_a_browser_has_its_figures_and_raw_files(browser, golden_site):
    with opened(browser, golden_site, "roofline.html") as page:
        unfold(page)

        assert len(shown_rows(page, "Case by case")) == 40
        assert page.locator("[data-figure=nvidia-h200-bandwidth] .s0 .mark").count() == 39 + 1
        links = [link.get_attribute("href") for link in page.locator("main a[href]").all()]
        assert [link for link in links if not (golden_site / link).exists()] == []
