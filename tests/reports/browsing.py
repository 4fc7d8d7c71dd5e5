"""Pages in real headless Chromium, opened from the disk."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PATIENCE_MS = 60_000  # a busy machine is no fault of a page
FULLEST = {  # the state of golden pages that shows the most of them
    "series": "#gpu=nvidia-h200&night=20260104T020000Z-h200-abc123",
    "regressions": "#show=all",
}


@contextmanager
def opened(
    browser: "Browser", site: Path, address: str, *, scheme: str = "light", width: int = 1440
) -> Iterator["Page"]:
    """A page, checked on leaving: no console error, no exception, no failed request, nothing from a network.

    ``address``: file of the site, with its state after ``#``.
    """
    problems: list[str] = []
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce")
    page.set_default_timeout(PATIENCE_MS)
    page.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    # Leaving a page ends what it was still loading; that is no failure.
    page.on("requestfailed", lambda r: problems.append(f"failed: {r.url}") if r.failure != "net::ERR_ABORTED" else None)
    page.on("request", lambda request: problems.append(request.url) if not is_local(request.url) else None)
    name, mark, state = address.partition("#")
    page.goto((site / name).as_uri() + mark + state)
    yield page
    page.close()
    assert problems == []


SETTLED = """async () => {
    const frame = () => new Promise(requestAnimationFrame);
    for (let seen = -1; seen !== scripts.size; ) {
        seen = scripts.size;
        await Promise.allSettled(scripts.values());
        await frame().then(frame);
        await new Promise(requestIdleCallback);
    }
}"""


def settled(page: "Page") -> "Page":
    """The page once all data that it asked for have come, and what waited for them or for an idle moment is done."""
    page.evaluate(SETTLED)
    return page


def whole(page: "Page") -> "Page":
    """The page with everything folded out and every figure drawn."""
    settled(page)
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    for chart in page.locator("main [data-chart]:visible").all():
        chart.scroll_into_view_if_needed()
        chart.locator(".main-svg, p").first.wait_for(state="attached")
    return page


def is_local(url: str) -> bool:
    return url.startswith(("file:", "data:", "blob:"))


def is_light(page: "Page") -> bool:
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(map(int, background[4:-1].split(","))) > 3 * 128
