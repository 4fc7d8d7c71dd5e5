"""What every page has: navigation, address, themes, width, and words where there is no data."""

from itertools import pairwise

import pytest

from reports.pages.registry import PAGES
from tests.reports.browsing import is_light, opened, settled
from tests.reports.golden import SKIPPED

CHOICES = {  # an address of each page that has choices, with none of them its first
    "commit": "gpu=nvidia-h100&case=kimi_k3_tp8_b1_t8_a3.84_fp32&figure=step&by=T",
    "series": f"gpu=nvidia-h100&case={SKIPPED}&x=order",
    "compare": "a=night:20260101T020000Z-h200-abc123&b=night:20260102T020000Z-h200-abc123&least=5&show=unsure&words=b8",
    "cases": f"model=nvidia-h200&case={SKIPPED}&verdict=unchanged&words=b8&figure=verify&op=commit",
    "regressions": "show=all&gpu=nvidia-h200&words=verify",
}
NAMES = [page.name for page in PAGES]


def test_pages_have_names_and_titles_of_their_own_and_the_first_is_the_index():
    assert len(set(NAMES)) == len({page.title for page in PAGES}) == len(PAGES)
    assert NAMES[0] == "index"


@pytest.mark.parametrize("name", NAMES)
def test_every_page_fits_a_desk_in_the_light_and_a_phone_in_the_dark(browser, golden_site, name):
    for scheme, width in (("light", 1440), ("dark", 390)):
        with opened(browser, golden_site, f"{name}.html", scheme=scheme, width=width) as page:
            page.wait_for_load_state()

            assert is_light(page) == (scheme == "light")
            assert page.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.parametrize("name", NAMES)
def test_every_page_of_an_empty_store_says_that_nothing_is_there(browser, empty_site, name):
    with opened(browser, empty_site, f"{name}.html") as page:
        assert page.locator("main .banner").count() == (name != "about")
        assert page.evaluate("window.Plotly === undefined")


@pytest.mark.parametrize("name", NAMES)
def test_everything_that_takes_a_key_has_a_name_and_headings_descend_in_steps(browser, golden_site, name):
    with opened(browser, golden_site, f"{name}.html") as page:
        page.wait_for_load_state()
        nameless = page.evaluate(
            """() => [...document.querySelectorAll("a, button, select, input, [role=img], [role=figure], "
                    + "[role=region]")]
                .filter((e) => e.checkVisibility() && !(e.getAttribute("aria-label") || e.innerText
                    || [...(e.labels ?? [])].some((label) => label.innerText.trim())))
                .map((e) => e.outerHTML)"""
        )
        levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3,h4')].map((e) => Number(e.tagName[1]))")

        assert nameless == []
        assert levels[0] == 1
        assert levels.count(1) == 1
        assert all(after <= before + 1 for before, after in pairwise(levels))


def test_the_navigation_leads_to_every_page_by_the_keyboard_and_marks_where_one_is(browser, golden_site):
    with opened(browser, golden_site, "index.html") as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        for index, other in enumerate(PAGES):
            link = page.locator("header nav a").nth(index)
            link.focus()
            page.keyboard.press("Enter")
            page.wait_for_url(f"**/{other.name}.html")

            assert page.locator("h1").inner_text() == other.title
            assert page.locator("header nav a[aria-current=page]").inner_text().startswith(other.title)


def test_state_in_the_address_is_followed_back_and_forth(browser, golden_site):
    with opened(browser, golden_site, "index.html#a=1&b=x%20y%26") as page:
        assert page.evaluate("pageState.get()") == {"a": "1", "b": "x y&"}

        page.evaluate("pageState.set({ a: '2', b: null })")
        assert page.evaluate("pageState.get()") == {"a": "2"}

        page.go_back()
        assert page.evaluate("pageState.get()") == {"a": "1", "b": "x y&"}


@pytest.mark.parametrize(("name", "choices"), CHOICES.items())
def test_what_a_page_shows_depends_on_its_address_alone_and_not_on_the_one_before(browser, golden_site, name, choices):
    shown = "JSON.stringify([...document.querySelectorAll('main :is(select, input)')].map((e) => [e.name, e.value]))"
    with opened(browser, golden_site, f"{name}.html") as page:
        settled(page)
        first = page.evaluate(shown)

        page.evaluate("location.hash = '#' + " + repr(choices))
        page.wait_for_function(f"first => {shown} !== first", arg=first)
        settled(page)
        page.go_back()

        page.wait_for_function(f"first => {shown} === first", arg=first)


def test_names_of_rows_stay_beside_their_numbers_on_a_phone(browser, golden_site):
    with opened(browser, golden_site, "numerics.html", width=390) as page:
        table = page.locator(".scroll:visible:has(tbody th)").first
        table.evaluate("element => { element.scrollLeft = 200; }")
        scroll, name = (one.bounding_box() for one in (table, table.locator("tbody th").first))

        assert table.evaluate("element => element.scrollLeft") == 200
        assert abs(name["x"] - scroll["x"]) <= 1
        assert name["width"] < scroll["width"] / 2
