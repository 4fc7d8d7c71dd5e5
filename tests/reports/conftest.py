from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.reports.browsing import PATIENCE_MS
from tests.reports.golden import write_history
from tests.reports.golden_trust import write_trust

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from reports.sources import History


@pytest.fixture(scope="module")  # one Playwright at a time: pictures are taken by one of their own
def browser() -> Iterator["Browser"]:
    from playwright.sync_api import expect, sync_playwright

    from reports.screenshot import FLAGS, find_browser

    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser(), args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def empty_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of a store without any night."""
    from reports.site import build_site
    from reports.sources import History

    out = tmp_path_factory.mktemp("empty")
    build_site(History(), out)
    return out


@pytest.fixture(scope="session")
def golden_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with golden nights, for reading only."""
    return write_history(tmp_path_factory.mktemp("golden") / "store")


@pytest.fixture(scope="session")
def golden_history(golden_store: Path) -> "History":
    """The nights of that store."""
    from reports.sources import read_stores

    return read_stores([str(golden_store)])


@pytest.fixture(scope="session")
def now() -> datetime:
    """The morning after the newest golden night."""
    return datetime(2026, 1, 4, 8, tzinfo=UTC)


@pytest.fixture(scope="session")
def golden_site(golden_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site built from it, for reading only."""
    from reports.site import build_site
    from reports.sources import read_stores
    from reports.trust_records import read_trust

    trust = read_trust(write_trust(tmp_path_factory.mktemp("trust")))
    out = tmp_path_factory.mktemp("site")
    build_site(read_stores([str(golden_store)]), out, trust=trust)
    return out
