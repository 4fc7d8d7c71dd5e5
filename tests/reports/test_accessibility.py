"""What axe-core finds on pages, on a desk in the light and on a phone in the dark, with everything folded out."""

from typing import TYPE_CHECKING

import pytest
from axe_playwright_python.sync_playwright import Axe

from reports.pages.registry import PAGES
from tests.reports.browsing import FULLEST, opened, whole

if TYPE_CHECKING:
    from playwright.sync_api import Page


def findings(page: "Page") -> list[str]:
    """Each rule that is broken, with the first elements that break it."""
    # Without preload: it would fetch the style sheet, which the pages' policy does not allow.
    found = Axe().run(page, options={"preload": False, "resultTypes": ["violations"]}).response["violations"]
    return [
        f"{one['impact']}: {one['id']} ({one['help']}): " + "; ".join(node["html"][:200] for node in one["nodes"][:3])
        for one in found
    ]


@pytest.mark.parametrize("name", [page.name for page in PAGES])
def test_axe_finds_nothing_on_any_page(browser, golden_site, name):
    with opened(browser, golden_site, f"{name}.html{FULLEST.get(name, '')}") as page:
        whole(page)
        for scheme, width in (("light", 1440), ("dark", 390)):
            page.emulate_media(color_scheme=scheme)
            page.set_viewport_size({"width": width, "height": 900})

            assert findings(page) == [], (scheme, width)


@pytest.mark.parametrize("name", [page.name for page in PAGES])
def test_axe_finds_nothing_on_a_page_without_data(browser, empty_site, name):
    with opened(browser, empty_site, f"{name}.html", width=390) as page:
        assert findings(page) == []
