"""Today: what it says of made-up nights, and the page in Chromium."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from benchmarks.harness.store import Store
from ci.policy import KnownRegressions
from reports.pages import today
from reports.pages.page import Site
from reports.sources import read_stores
from reports.targets import TARGETS
from tests.reports.browsing import opened
from tests.reports.golden import HEADLINE, NightPlan, golden_cases, write_night

PAGE = "index.html"
NIGHT = datetime(2026, 1, 4, 2, 59, tzinfo=UTC)  # the newest golden one


def view_of(store: Path, now: datetime = NIGHT + timedelta(hours=6)) -> today.TodayView:
    return today.load(Site(read_stores([str(store)]), now, known=KnownRegressions())).view


def h200(view: today.TodayView) -> today.TodayModel:
    return next(item for item in view.gpus if item.model.model == "nvidia-h200")


def test_headlines_stand_beside_their_targets(golden_store):
    headlines = {item.tile.key: item for item in h200(view_of(golden_store)).headlines}

    assert headlines["commit"].tile.number == pytest.approx(1200 * 1.002)
    assert headlines["commit"].met is False
    assert headlines["commit"].target.endswith("✕ missed")
    assert headlines["verify_overhead"].target == "no target is set"
    assert set(TARGETS) <= set(headlines)


def test_a_target_of_one_card_is_none_of_another(golden_store):
    (h100,) = [item for item in view_of(golden_store).gpus if item.model.model == "nvidia-h100"]

    assert {item.target for item in h100.headlines} == {"no target is set"}


def test_verdicts_are_counted_and_absent_blind_and_missing_ones_are_told(golden_store):
    counts = {tile.name: tile.number for tile in h200(view_of(golden_store)).verdicts}

    assert counts["regressed"] == 1
    assert (counts["blind"], counts["missing"]) == (0, 0)
    assert counts["unchanged"] > 100


def test_open_regressions_tell_age_and_owner(golden_store):
    (row,) = h200(view_of(golden_store)).regressions

    assert (row.age, row.owner, row.state) == ("6 hours", "nobody yet", "new")


def test_what_the_environment_changed_since_the_night_before_is_named(tmp_path):
    store = Store(tmp_path)
    for plan in (NightPlan(1, processes=1), NightPlan(2, processes=1, driver="590.00-synthetic")):
        write_night(store, plan, golden_cases()[:1])

    assert h200(view_of(tmp_path)).environment == "driver 580.00-synthetic → 590.00-synthetic"


@pytest.mark.parametrize(
    ("factor", "problem", "state"),
    [
        (0.9, "outside the range of the nights before", ("✕ not as ever", "bad")),
        (1.001, "", ("✓ as ever", "good")),  # a new extreme is nothing new: one of twelve nights has each
    ],
)
def test_a_control_that_left_its_range_or_drifted_is_told(tmp_path, monkeypatch, factor, problem, state):
    import msgspec

    from tests.reports import golden

    store, usual = Store(tmp_path), golden._controls()
    for day in range(1, 8):
        slow = [msgspec.structs.replace(item, bytes_per_s=item.bytes_per_s * factor) for item in usual[:1]] + usual[1:]
        monkeypatch.setattr(golden, "_controls", lambda controls=slow if day == 7 else usual: controls)
        write_night(store, NightPlan(day, processes=2), golden_cases()[:1])

    model = h200(view_of(tmp_path))

    problems = {line.name: line.problem for line in model.controls}
    assert problems == {"copy": problem, "read": "", "read4_write1": ""}
    assert model.control_state == state


def test_a_night_of_36_hours_is_not_old_and_one_older_is(golden_store):
    edge = NIGHT + timedelta(hours=36)

    assert not h200(view_of(golden_store, edge)).is_stale
    assert h200(view_of(golden_store, edge + timedelta(seconds=1))).is_stale


def test_the_page_says_what_is_wrong_and_leads_to_it(browser, golden_site):
    with opened(browser, golden_site, PAGE) as page:
        section = page.locator("section#nvidia-h200")
        assert section.locator("[data-tile=verify_overhead] .figure").inner_text().startswith("+27.2")
        assert "1 of the 5 nights needed" in section.inner_text()

        section.get_by_role("link", name="1 regressed").click()
        page.wait_for_url("**/regressions.html#gpu=nvidia-h200")
        page.go_back()
        section.get_by_role("link", name=HEADLINE).first.click()
        page.wait_for_url("**/cases.html#model=nvidia-h200&case=*")


def test_the_banner_of_old_nights_looks_at_the_readers_clock(browser, golden_store, tmp_path):
    from reports.site import build_site

    build_site(read_stores([str(golden_store)]), tmp_path, now=NIGHT + timedelta(hours=1))

    for hours, is_shown in ((35, False), (37, True)):
        with opened(browser, tmp_path, PAGE) as page:
            page.clock.install(time=NIGHT + timedelta(hours=hours))
            page.reload()
            assert page.locator("[data-stale]").first.is_visible() == is_shown


def test_today_loads_neither_plotly_nor_a_megabyte(browser, golden_site):
    with opened(browser, golden_site, PAGE) as page:
        urls: list[str] = []
        page.on("request", lambda request: urls.append(request.url))
        page.reload()
        page.wait_for_load_state()

        files = [
            golden_site / url.split("#")[0].removeprefix(golden_site.as_uri() + "/") for url in urls if "file:" in url
        ]
        assert files
        assert not any("plotly" in file.name for file in files)
        assert sum(file.stat().st_size for file in files) < 1_000_000


def test_hostile_names_stay_text(browser, tmp_path):
    import msgspec

    from reports.site import build_site

    attack = "<img src=x onerror=\"document.title='owned'\">&model=x"
    case = msgspec.structs.replace(golden_cases()[0], name=attack, stands_for=attack)
    write_night(Store(tmp_path / "store"), NightPlan(1, processes=1, exit_code=1, red_case=attack), [case])
    build_site(read_stores([str(tmp_path / "store")]), tmp_path / "site")

    for name in (PAGE, "regressions.html#show=all"):
        with opened(browser, tmp_path / "site", name) as page:
            page.wait_for_load_state()
            assert "RecoverSSM nights" in page.title()
            assert page.locator("img").count() == 0
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
