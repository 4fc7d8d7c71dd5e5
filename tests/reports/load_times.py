"""How long pages of a built site take in real Chromium, and what they load. A measurement, no test.

    python -m tests.reports.load_times --site out/site [--times 5]

serves the site on this machine without compression, opens each page in a fresh browser context so that nothing is
cached, and prints as JSON: milliseconds from the navigation until the page is loaded (Today) or its figure is drawn
(Series), the least and the median; and the bytes that came, those of plotly apart.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.reports.serving import serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PAGES = {"index.html": "main section", "series.html": "[data-chart=series] .scatterlayer .point"}  # what is waited for


def load_times(site: Path, times: int) -> dict[str, dict[str, float]]:
    """By page; ``plotly_bytes`` is 0 where it is not loaded."""
    from playwright.sync_api import sync_playwright

    from reports.screenshot import FLAGS, find_browser

    with serving(site) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser(), args=list(FLAGS))
        found = {}
        for name, wanted in PAGES.items():
            runs = [_load(browser, f"{address}/{name}", wanted) for _ in range(times + 1)][1:]  # the first warms up
            loads = [run["ms"] for run in runs]
            found[name] = {
                "least_ms": round(min(loads)),
                "median_ms": round(statistics.median(loads)),
                "bytes": runs[-1]["bytes"],
                "plotly_bytes": runs[-1]["plotly_bytes"],
            }
        browser.close()
    return found


def _load(browser: "Browser", address: str, wanted: str) -> dict[str, float]:
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    sizes: dict[str, int] = {}
    page.on("requestfinished", lambda request: sizes.update({request.url: request.sizes()["responseBodySize"]}))
    started = time.perf_counter()
    page.goto(address)
    page.locator(wanted).first.wait_for(state="attached")
    took = time.perf_counter() - started
    page.wait_for_load_state("networkidle")
    plotly = sum(size for url, size in sizes.items() if "plotly" in url)
    context.close()
    return {"ms": 1000 * took, "bytes": sum(sizes.values()) - plotly, "plotly_bytes": plotly}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--site", type=Path, required=True, help="folder of a built site")
    arguments.add_argument("--times", type=int, default=5)
    chosen = arguments.parse_args()
    sys.stdout.write(json.dumps(load_times(chosen.site, chosen.times), indent=1) + "\n")


if __name__ == "__main__":
    main()
