"""The page of what was compiled."""

from pathlib import Path

import pytest

from benchmarks.harness.store import Store
from reports.pages.page import Site
from reports.pages.static import load, static_document
from reports.sources import History, read_stores
from tests.reports.browsing import opened
from tests.reports.golden_static import write_static_night
from tests.reports.reading import column, shown_rows, table, texts


@pytest.fixture
def compiled(tmp_path: Path) -> Path:
    store = Store(tmp_path / "store")
    write_static_night(store, "sm_90", 1)
    write_static_night(store, "sm_90", 2, registers=130.0)
    write_static_night(store, "sm_100", 2)
    return tmp_path / "store"


def figures(document):
    return table(document, "Figures of the code")


def test_architectures_stand_below_each_other_with_their_newest_figures(compiled, now):
    document = static_document(Site(read_stores([str(compiled)]), now))

    assert column(table(document, "Newest compilation"), "architecture") == ["sm_90", "sm_100"]
    assert column(table(document, "Newest compilation"), "ptxas") == ["12.8", "12.8"]
    assert column(figures(document), "architecture") == ["sm_90", "sm_100"]
    assert column(figures(document), "registers") == ["130", "128"]
    assert column(figures(document), "code, B") == ["25,344", "25,344"]


def test_cases_with_the_same_figures_share_a_row_and_are_all_named(compiled, now):
    found = figures(static_document(Site(read_stores([str(compiled)]), now)))

    assert found.rows[0][1].text == "case_b32_bf16 and 1 more"
    assert found.rows[0][1].hint == "case_b32_bf16\ncase_b32_fp32"


def test_figures_that_nobody_has_take_no_column_and_launches_have_a_table(compiled, now):
    document = static_document(Site(read_stores([str(compiled)]), now))

    assert [head.label for head in figures(document).heads[2:]] == ["barriers", "registers", "code"]
    assert texts(table(document, "Kernels that one call launches")) == [
        ["step", "recoverssm", "72", "72"],
        ["verify", "recoverssm", "1", "1"],
    ]


def test_a_change_says_what_it_was_and_is(compiled, now):
    rows = texts(table(static_document(Site(read_stores([str(compiled)]), now)), "Changed since the base night"))

    assert rows[0][:4] == ["sm_90", "case_b32_fp32", "verify", "recoverssm"]
    assert rows[0][4:] == ["registers a thread", "128", "130", "▲ regressed", "more than the base has"]


def test_a_figure_that_failed_says_so_and_why(tmp_path, now):
    write_static_night(Store(tmp_path), "sm_90", 1, failed="barriers")
    found = figures(static_document(Site(read_stores([str(tmp_path)]), now)))

    assert (found.rows[0][2].text, found.rows[0][2].hint) == ("failed", "ptxas is missing")


def test_without_compiled_nights_the_page_says_how_to_get_them(now):
    assert "python -m ci nightly" in load(Site(History(), now)).missing


def test_the_page_in_a_browser(browser, compiled, tmp_path):
    from reports.site import build_site

    build_site(read_stores([str(compiled)]), tmp_path / "site")

    with opened(browser, tmp_path / "site", "static.html") as page:
        assert [row[3] for row in shown_rows(page, "Figures of the code")] == ["130", "128"]
        links = [link.get_attribute("href") for link in page.locator("main a[href]").all()]
        assert links
        assert [link for link in links if not (tmp_path / "site" / link).exists()] == []
