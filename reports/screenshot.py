"""A picture of a built site, taken in headless Chromium."""

import shutil
from pathlib import Path

BROWSERS = ("/usr/bin/chromium", "chromium", "chromium-browser", "google-chrome")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--force-color-profile=srgb")


class BrowserError(Exception):
    """No browser, or Playwright's Python package is absent."""


def find_browser() -> str:
    """The first Chromium that is installed; nothing is downloaded."""
    for name in BROWSERS:
        if found := shutil.which(name):
            return found
    raise BrowserError(f"no Chromium found, tried {', '.join(BROWSERS)}; on Debian: apt-get install chromium")


def take_screenshot(
    site: Path, out: Path, address: str, *, dark: bool, width: int, height: int, full_page: bool
) -> None:
    """Open a page of the site from the disk and write a PNG once its figures are drawn.

    ``address``: ``cases`` or ``cases#case=NAME``; what follows ``#`` is the page's state.

    Raises:
        FileNotFoundError: ``site`` holds no such page.
        BrowserError: what is missing and how to get it.
    """
    name, mark, state = address.partition("#")
    file = site / f"{name}.html"
    if not file.is_file():
        raise FileNotFoundError(f"expected the page {file}; build a site: python -m reports build --out {site}")
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError as error:
        raise BrowserError(
            "Playwright's Python package is absent; pip install playwright, or run: make setup"
        ) from error
    out.parent.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser(), args=list(FLAGS))
        page = browser.new_page(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
        )
        page.goto(file.resolve().as_uri() + mark + state)
        page.wait_for_load_state("networkidle")  # by then a page knows which of its figures it shows
        charts = page.locator("main [data-chart]:visible")
        for index_ in range(charts.count()):
            chart = charts.nth(index_)
            chart.scroll_into_view_if_needed()
            chart.locator(".main-svg, p").first.wait_for(state="attached")
        page.evaluate("scrollTo(0, 0)")
        page.screenshot(path=out, full_page=full_page)
        browser.close()
