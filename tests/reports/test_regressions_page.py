"""The page of regressions: rows from nights, and the page in Chromium."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from benchmarks.harness.store import Store
from ci.policy import KnownRegression, KnownRegressions
from reports.pages import regressions
from reports.pages.page import Site
from reports.sources import read_stores
from tests.reports.browsing import opened
from tests.reports.golden import HEADLINE, NightPlan, golden_cases, write_night

PAGE = "regressions.html"
NOW = datetime(2026, 1, 9, 2, 59, tzinfo=UTC)


@pytest.fixture(scope="module")
def spoilt_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One regression that was fixed, one that is open, on two GPU models."""
    from reports.site import build_site

    store = Store(tmp_path_factory.mktemp("spoilt") / "store")
    one = [case for case in golden_cases() if case.name == HEADLINE]
    for model, red_days in (("nvidia-h200", (2, 3)), ("nvidia-h100", (4,))):
        for day in range(1, 5):
            red = HEADLINE if day in red_days else ""
            base = 1 if day > 1 else None
            write_night(store, NightPlan(day, model, exit_code=int(bool(red)), red_case=red, base=base), one)
    out = tmp_path_factory.mktemp("spoilt_site")
    build_site(read_stores([str(store.folder)]), out, now=NOW)
    return out


def rows_of(store: Path, known: KnownRegressions | None = None) -> list[regressions.EventRow]:
    site = Site(read_stores([str(store)]), NOW, known=known or KnownRegressions())
    return list(regressions.load(site).view.events)


def test_a_row_tells_size_age_commits_owner_and_what_measures_it_again(golden_store):
    (row,) = rows_of(golden_store)

    assert row.size.replace("\N{NO-BREAK SPACE}", " ") == "+6.0 % (95 %: +5.1 % to +6.9 %)"
    assert (row.since, row.age, row.state, row.owner) == ("2026-01-04 02:59 UTC", "5 days", "new", "nobody yet")
    assert row.commits == "after 0303030303, up to 0404040404"
    what = f"--case {HEADLINE} --op verify --metric device_us"
    assert row.reproduce == f"python -m ci reproduce 20260104T020000Z-h200-abc123 {what}"
    assert row.bisect == f"python -m ci bisect {'03' * 20} {'04' * 20} {what}"
    assert [link.href for link in row.evidence] == ["raw/nights/nvidia-h200/20260104T020000Z-h200-abc123.json"]


def test_who_took_a_regression_on_is_its_owner(golden_store):
    entry = KnownRegression(
        metric="device_us",
        op="verify",
        provider="recoverssm",
        case="*",
        expected_pct=(2.0, 8.0),
        reason="a better kernel comes",
        owner="kernels",
        date="2026-01-04",
        expires="2026-02-01",
    )
    (row,) = rows_of(golden_store, KnownRegressions(regression=[entry]))

    assert row.owner == "kernels, until 2026-02-01"


def test_what_a_shell_would_take_apart_is_quoted(tmp_path):
    import msgspec

    name = "a'; rm -rf ~ #"
    case = msgspec.structs.replace(golden_cases()[0], name=name)
    write_night(Store(tmp_path), NightPlan(1, processes=1, exit_code=1, red_case=name), [case])
    (row,) = rows_of(tmp_path)

    assert """--case 'a'"'"'; rm -rf ~ #'""" in row.reproduce
    assert row.bisect == ""  # no base, no range


def shown(page) -> list[str]:
    return page.eval_on_selector_all(".event", "all => all.filter(e => !e.hidden).map(e => e.dataset.state)")


def test_open_events_are_shown_first_and_choices_stand_in_the_address(browser, spoilt_site):
    with opened(browser, spoilt_site, PAGE) as page:
        assert shown(page) == ["new"]

        page.locator("[name=show]").select_option("all")
        page.wait_for_function("location.hash === '#show=all'")
        assert shown(page) == ["new", "fixed"]
        page.locator("[name=gpu]").select_option("nvidia-h200")
        page.wait_for_function("document.querySelector('[data-shown]').textContent === '1 of 2 events'")
        assert shown(page) == ["fixed"]

        page.go_back()
        page.wait_for_function("document.querySelector('[data-shown]').textContent === '2 of 2 events'")
        assert page.locator("[name=gpu]").input_value() == ""


def test_a_link_opens_its_event_though_the_filter_would_hide_it(browser, spoilt_site):
    with opened(browser, spoilt_site, PAGE + "#event=20260102T020000Z-h200-abc123-nvidia-h200") as page:
        event = page.locator("details.event[open]")

        assert event.count() == 1
        assert "ci bisect" in event.inner_text()
        assert event.get_by_role("link", name=HEADLINE).get_attribute("href").startswith("cases.html#model=nvidia-h200")


def test_words_find_events_and_the_keyboard_opens_one(browser, spoilt_site):
    with opened(browser, spoilt_site, PAGE) as page:
        page.locator("[name=words]").fill("nothing of the kind")
        page.wait_for_function("document.querySelector('[data-shown]').textContent === '0 of 2 events'")
        page.locator("[name=words]").fill("verify")
        page.wait_for_function("document.querySelector('[data-shown]').textContent === '1 of 2 events'")

        page.locator(".event:not([hidden]) summary").press("Enter")
        page.wait_for_function("location.hash.includes('event=')")
        assert page.locator("details.event[open]").count() == 1


def test_nights_without_a_regression_say_so(tmp_path):
    from reports.site import build_site

    write_night(Store(tmp_path / "store"), NightPlan(1, processes=1), golden_cases()[:1])
    build_site(read_stores([str(tmp_path / "store")]), tmp_path / "site")

    assert "No gated series has ever regressed" in (tmp_path / "site" / PAGE).read_text()
