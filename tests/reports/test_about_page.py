"""The page that says what words mean."""

from typing import get_args

from benchmarks.harness.records import CONTRACTS, VerdictName
from reports.cases import VERDICT_MARKS
from reports.pages.about import about_document
from tests.reports.browsing import opened
from tests.reports.reading import column, table


def test_every_verdict_and_contract_is_explained():
    document = about_document()

    verdicts = table(document, "Of a series, against the base night")
    assert sorted(column(verdicts, "verdict")) == sorted(get_args(VerdictName))
    assert dict(zip(column(verdicts, "verdict"), column(verdicts, "mark"), strict=True)) == VERDICT_MARKS
    assert sorted(column(table(document, "How times and figures are taken"), "contract")) == sorted(CONTRACTS)


def test_every_figure_has_a_unit_a_direction_and_a_meaning():
    found = table(about_document(), "What is measured")

    assert set(column(found, "better")) == {"lower", "higher"}
    assert all(cell.text for row in found.rows for cell in row)


def test_the_page_needs_no_night(browser, empty_site):
    with opened(browser, empty_site, "about.html") as page:
        assert "verify overhead" in page.locator("main").inner_text()
