"""The page of cases in real headless Chromium, opened from the disk."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.reports.browsing import is_light, opened
from tests.reports.golden import HEADLINE, SKIPPED, NightPlan, golden_cases, write_night

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

PAGE = "cases.html"


@pytest.fixture(scope="module")
def desk(browser: "Browser", golden_site: Path) -> Iterator["Page"]:
    """The golden page on a desk, shared by tests that each set what they look at: loading plotly takes a second."""
    with opened(browser, golden_site, PAGE) as page:
        yield page


def h200(page: "Page", selector: str) -> "Locator":
    return page.locator(f"#nvidia-h200 {selector}")


def visible_cases(page: "Page") -> list[str]:
    return page.eval_on_selector_all(
        "#nvidia-h200 tr[data-case]", "rows => rows.filter(row => !row.hidden).map(row => row.dataset.case)"
    )


def tile_value(page: "Page", key: str) -> str:
    return h200(page, f"[data-tile={key}] [data-field=value]").inner_text().replace("\N{NO-BREAK SPACE}", " ")


def draw(page: "Page", chart: str) -> "Locator":
    """Bring a figure into view and wait until it has points."""
    figure = h200(page, f"[data-chart={chart}]")
    figure.scroll_into_view_if_needed()
    figure.locator(".scatterlayer .point").first.wait_for(state="attached")
    return figure


def test_the_page_shows_tiles_forty_cases_and_figures_in_the_light(desk):
    h200(desk, "[data-case-choice]").select_option(HEADLINE)

    assert is_light(desk)
    assert tile_value(desk, "verify_overhead") == "+27.2 %"
    assert len(visible_cases(desk)) == 40
    draw(desk, "history")
    labels = draw(desk, "cases").locator(".ytick text").all_text_contents()
    assert {f"kimi_k3_{label}" for label in labels} == set(visible_cases(desk)) - {SKIPPED}


def test_the_page_follows_a_dark_system_and_its_button_and_so_do_figures(browser, golden_site):
    from playwright.sync_api import expect

    with opened(browser, golden_site, PAGE, scheme="dark") as page:
        drawing = draw(page, "history").locator(".main-svg").first
        draw(page, "cases")
        assert not is_light(page)
        expect(drawing).to_have_css("background-color", "rgb(23, 27, 33)")

        page.click("#theme")

        assert is_light(page)
        assert page.inner_text("#theme") == "Dark theme"
        expect(drawing).to_have_css("background-color", "rgb(255, 255, 255)")


def test_a_page_without_nights_says_so_and_does_not_load_plotly(browser, tmp_path):
    from reports.site import build_site
    from reports.sources import read_stores

    (tmp_path / "store").mkdir()
    build_site(read_stores([str(tmp_path / "store")]), tmp_path / "site")

    with opened(browser, tmp_path / "site", PAGE) as page:
        assert "No night is recorded" in page.locator("main").inner_text()
        assert page.evaluate("window.Plotly === undefined")


def test_a_chosen_case_fills_tiles_series_checks_and_reproduction(desk):
    other = golden_cases()[1].name

    h200(desk, f"tr[data-case='{other}'] [data-select]").click()
    h200(desk, f"tr.selected[data-case='{other}']").wait_for()

    assert h200(desk, "[data-case-choice]").input_value() == other
    assert h200(desk, "[data-series] tr").filter(has_text="commit_state").count() == 1
    assert h200(desk, "[data-reproduce]").text_content().endswith(f"--case '{other}'")
    assert "✓ pass" in h200(desk, "[data-checks]").text_content()


def test_a_chosen_case_that_was_skipped_has_no_time_and_its_exact_memory(desk):
    h200(desk, "[data-case-choice]").select_option(SKIPPED)
    h200(desk, f"tr.selected[data-case='{SKIPPED}']").wait_for()

    assert tile_value(desk, "verify_overhead") == "–"
    assert tile_value(desk, "memory") == "85.9 %"
    assert "No verify overhead is recorded" in h200(desk, "[data-chart=history] p").inner_text()


def test_a_link_chooses_case_and_verdict_and_the_back_button_undoes_a_choice(browser, golden_site):
    with opened(browser, golden_site, f"{PAGE}#model=nvidia-h200&case={SKIPPED}&verdict=unchanged") as page:
        h200(page, f"tr.selected[data-case='{SKIPPED}']").wait_for()
        assert HEADLINE not in visible_cases(page)
        assert page.locator("#nvidia-h100 tr.selected").get_attribute("data-case") == HEADLINE

        h200(page, "[data-case-choice]").select_option(golden_cases()[1].name)
        h200(page, f"tr.selected[data-case='{golden_cases()[1].name}']").wait_for()
        assert f"case={golden_cases()[1].name}" in page.url
        page.go_back()

        h200(page, f"tr.selected[data-case='{SKIPPED}']").wait_for()


def test_the_table_sorts_both_ways_with_missing_values_last(desk):
    heading = h200(desk, "table[data-cases] thead tr:nth-child(2) th").nth(2)
    column = "rows => rows.map(row => row.cells[2].dataset.sort).filter(x => x !== undefined).map(Number)"
    rows = "#nvidia-h200 tr[data-case]"

    heading.locator("button").click()
    h200(desk, "th[aria-sort=ascending]").wait_for()
    rising, last_rising = desk.eval_on_selector_all(rows, column), visible_cases(desk)[-1]
    heading.locator("button").click()
    h200(desk, "th[aria-sort=descending]").wait_for()
    falling, last_falling = desk.eval_on_selector_all(rows, column), visible_cases(desk)[-1]

    assert len(rising) == 39
    assert rising == sorted(rising)
    assert falling == sorted(rising, reverse=True)
    assert last_rising == last_falling == SKIPPED
    assert heading.get_attribute("aria-sort") == "descending"


def test_order_and_figures_stand_in_the_address_and_the_back_button_undoes_them(browser, golden_site):
    from playwright.sync_api import expect

    with opened(browser, golden_site, "cases.html#model=nvidia-h200&sort=2-down&figure=commit&op=step") as page:
        draw(page, "history")
        expect(h200(page, "th[aria-sort=descending]")).to_have_count(1)
        expect(h200(page, "[data-history-choice]")).to_have_value("commit")
        expect(h200(page, "[data-op-choice]")).to_have_value("step")

        h200(page, "th[aria-sort=descending] button").click()
        h200(page, "[data-history-choice]").select_option("verify")
        h200(page, "[data-op-choice]").select_option("commit")
        page.wait_for_url("**#*sort=2-up*figure=verify*op=commit*")
        for _ in range(3):
            page.go_back()

        expect(h200(page, "th[aria-sort=descending]")).to_have_count(1)
        expect(h200(page, "[data-history-choice]")).to_have_value("commit")
        expect(h200(page, "[data-op-choice]")).to_have_value("step")


def test_the_filter_takes_words_and_verdicts(desk):
    words, verdict = h200(desk, "[data-filter]"), h200(desk, "select[data-verdict]")

    words.fill("BF16 b1")
    by_words, said = visible_cases(desk), h200(desk, "[data-shown]").inner_text()
    words.fill("")
    verdict.select_option("regressed")
    by_verdict = visible_cases(desk)
    verdict.select_option("")

    assert len(by_words) == 3
    assert all("_b1_" in name and "bf16" in name for name in by_words)
    assert said == "3 of 40 cases"
    assert by_verdict == [HEADLINE]


@pytest.mark.parametrize(("metric", "lines"), [("verify", 2), ("commit", 1), ("step", 2), ("step_overhead", 1)])
def test_every_history_figure_draws_one_dot_per_process(desk, metric, lines):
    from playwright.sync_api import expect

    h200(desk, "[data-case-choice]").select_option(HEADLINE)
    h200(desk, f"tr.selected[data-case='{HEADLINE}']").wait_for()
    h200(desk, "[data-history-choice]").select_option(metric)
    chart = draw(desk, "history")

    expect(chart.locator(".scatterlayer .trace")).to_have_count(2 * lines + 1)  # dots and medians; the red night
    dots = "element => element.data.filter(trace => trace.name === 'single processes').map(trace => trace.y.length)"
    assert chart.evaluate(dots) == [4 * 5] * lines


def test_a_phone_scrolls_only_downwards(browser, golden_site):
    with opened(browser, golden_site, PAGE, width=390) as page:
        draw(page, "history")

        assert page.evaluate("document.documentElement.scrollWidth") == 390


@pytest.mark.parametrize("width", [1280, 1440])
def test_a_desk_shows_every_column_of_the_wide_tables(browser, golden_site, width):
    with opened(browser, golden_site, PAGE, width=width) as page:
        h200(page, "[data-series] td").first.wait_for(state="attached")
        page.evaluate("document.querySelectorAll('details').forEach(element => { element.open = true; })")

        for table in ("table.cases", "[data-series]"):
            assert h200(page, table).evaluate("table => table.offsetWidth - table.parentElement.clientWidth") <= 0


def test_a_table_that_goes_on_to_the_right_fades_there_until_its_end(browser, golden_site):
    from playwright.sync_api import expect

    with opened(browser, golden_site, PAGE, width=390) as page:
        box = h200(page, ".scroll:has(> table.cases)")
        expect(box).to_have_class("scroll more")

        box.evaluate("box => { box.scrollLeft = box.scrollWidth; }")

        expect(box).to_have_class("scroll")


def test_the_sentence_of_a_verdict_stands_whole_below_its_series(browser, golden_site):
    with opened(browser, golden_site, PAGE, width=390) as page:
        h200(page, "[data-series] td").first.wait_for(state="attached")
        page.evaluate("document.querySelectorAll('details').forEach(element => { element.open = true; })")
        sentence = h200(page, "[data-series] .remark p").first
        sentence.scroll_into_view_if_needed()

        assert "since the base night" in sentence.inner_text()
        assert sentence.evaluate("element => element.getBoundingClientRect().right") <= 390


def test_a_single_night_draws_no_line_over_nights(browser, golden_site, tmp_path):
    from benchmarks.harness.store import Store
    from reports.site import build_site
    from reports.sources import read_stores

    write_night(Store(tmp_path / "store"), NightPlan(1), golden_cases())
    build_site(read_stores([str(tmp_path / "store")]), tmp_path / "site")

    for site, is_drawn in ((tmp_path / "site", False), (golden_site, True)):
        with opened(browser, site, PAGE) as page:
            assert h200(page, ".spark svg").first.is_visible() == is_drawn
            h200(page, "[data-series] td").first.wait_for(state="attached")
            assert h200(page, ".spark svg").first.is_visible() == is_drawn


def test_hostile_strings_run_nowhere(browser, tmp_path):
    import msgspec

    from benchmarks.harness.store import Store
    from reports.site import build_site
    from reports.sources import read_stores

    attack = f" </script><img src=x onerror=\"document.title='owned'\">'\n{'x' * 300}"
    cases = [msgspec.structs.replace(golden_cases()[0], name=attack, stands_for=attack)]
    write_night(Store(tmp_path / "store"), NightPlan(1, exit_code=1, red_case=attack), cases)
    build_site(read_stores([str(tmp_path / "store")]), tmp_path / "site")

    with opened(browser, tmp_path / "site", PAGE) as page:
        h200(page, "[data-series] td").first.wait_for(state="attached")
        draw(page, "history")
        draw(page, "cases")

        assert page.title() == "Cases · RecoverSSM nights"
        assert page.locator("img").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("form", ["png", "svg"])
def test_a_figure_is_saved_for_slides(browser, golden_site, form):
    with opened(browser, golden_site, "cases.html") as page:
        chart = draw(page, "cases")
        chart.hover()
        with page.expect_download() as download:
            chart.locator(f"[data-title='save as {form.upper()}']").click()

        assert download.value.suggested_filename == f"recoverssm-cases-cases.{form}"
        assert download.value.path().read_bytes().lstrip()[:4] in (b"\x89PNG", b"<svg")
