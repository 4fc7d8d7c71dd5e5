"""The page of one series: what its data files hold, and the page itself in real headless Chromium."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from benchmarks.harness.samples import SampleSeries, samples_table
from benchmarks.harness.store import Store
from ci.config import load_thresholds
from reports.addresses import series_address
from reports.derive import COMMIT, VERIFY
from reports.pages.samples import SHOWN_NIGHTS, night_samples
from reports.pages.series import case_series
from reports.pages.timeline import Timeline, timeline, timeline_data
from reports.sources import History, read_records, read_stores
from reports.steps import segments
from tests.reports.browsing import is_light, opened
from tests.reports.golden import HEADLINE, SKIPPED, NightPlan, golden_cases, golden_record, write_night

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CASE = golden_cases()[:1]
NAME = CASE[0].name
KEY = "/".join(VERIFY)
LINK = f"series.html#gpu=nvidia-h200&case={HEADLINE}&series={KEY}"


def history_of(folder: Path, plans: list[NightPlan]) -> History:
    for plan in plans:
        write_night(Store(folder), plan, CASE)
    return read_stores([str(folder)])


def slower(op: str, provider: str) -> float:
    return 1.05 if (op, provider) == ("verify", "recoverssm") else 1.0


@pytest.fixture(scope="module")
def long_line(tmp_path_factory: pytest.TempPathFactory) -> Timeline:
    """Eighteen nights; verify is 5 % slower from the fourteenth on."""
    plans = [NightPlan(day, speed=slower if day > 13 else NightPlan(1).speed) for day in range(1, 19)]
    return timeline(history_of(tmp_path_factory.mktemp("long"), plans), "nvidia-h200")


def test_a_lasting_step_lies_at_its_first_night_between_two_levels(long_line):
    found = segments(long_line, VERIFY, NAME, limit_pct=1.5)

    (change,) = found.changes
    assert (change.night, change.nights_before, change.nights_after) == (13, 13, 5)
    assert change.change_pct == pytest.approx(5.0)
    assert [(level.first, level.last) for level in found.levels] == [(0, 12), (13, 17)]
    assert found.levels[1].value == pytest.approx(1.05 * found.levels[0].value)


def test_a_series_that_kept_its_level_has_no_step(long_line):
    assert segments(long_line, COMMIT, NAME, limit_pct=1.5).changes == ()


def test_a_change_of_environment_cuts_and_is_no_step(tmp_path):
    late = NightPlan(1, speed=slower, driver="590.00-synthetic")
    plans = [NightPlan(day) for day in range(1, 14)] + [replace(late, day=day) for day in range(14, 18)]
    plans += [NightPlan(18)]

    line = timeline(history_of(tmp_path / "store", plans), "nvidia-h200")
    found = segments(line, VERIFY, NAME, limit_pct=1.5)

    assert found.changes == ()
    assert [(level.first, level.last) for level in found.levels] == [(0, 17), (13, 16)]  # the first came back
    assert [place for place, moment in enumerate(line.moments) if moment.cut] == [13, 17]


def test_a_night_that_was_judged_invalid_makes_no_level(tmp_path):
    line = timeline(history_of(tmp_path / "store", [NightPlan(1), NightPlan(2, exit_code=4)]), "nvidia-h200")

    (level,) = segments(line, VERIFY, NAME, limit_pct=1.5).levels

    assert (level.first, level.last) == (0, 0)


def test_without_ruptures_levels_are_there_and_the_page_says_what_is_not(long_line, monkeypatch):
    def absent(values, limit_pct):
        raise ModuleNotFoundError("No module named 'ruptures'")

    monkeypatch.setattr("reports.steps.steps", absent)
    found = segments(long_line, VERIFY, NAME, limit_pct=1.5)

    assert len(found.levels) == 1
    assert "ruptures" in found.missing


def test_every_value_of_a_data_file_is_that_of_its_record(golden_store):
    history, stored = (read([str(golden_store)]) for read in (read_stores, read_records))
    line = timeline(history, "nvidia-h200")
    processes = timeline_data(history, line, raw=True)["processes"]

    data = case_series(line, HEADLINE, line.keys()[HEADLINE], load_thresholds(), {})

    for series in data["series"]:
        metric, op, provider, contract = series["key"].split("/")
        for process, value in zip(processes, series["values"], strict=True):
            measured = {item.key: item.value for item in stored.records[process["id"]].measurements}
            assert measured[metric, op, provider, HEADLINE, contract] == value
    assert {series["better"] for series in data["series"]} == {"lower", "higher"}


def test_a_skipped_case_has_its_reason_instead_of_values(golden_store):
    line = timeline(read_stores([str(golden_store)]), "nvidia-h200")

    data = case_series(line, SKIPPED, [VERIFY], load_thresholds(), {})["series"][0]

    assert set(data["values"]) == {None}
    assert "needs 153.2 GiB" in data["reasons"][0]


def test_samples_say_which_do_not_count_and_a_table_that_cannot_be_read_is_named(tmp_path):
    plan, store = NightPlan(1, processes=2), Store(tmp_path)
    night = write_night(store, plan, CASE)
    series = SampleSeries(
        *VERIFY[:3], NAME, VERIFY.contract, "us", (3.0, 9.0, 4.0), (1.0, 2.0, 3.0), (), (True, False, True)
    )
    store.add_record(msgspec.structs.replace(golden_record(plan, 2, CASE)), samples_table([series]))
    night = msgspec.structs.replace(
        night, id="20260101T030000Z-h200-x", records=[*night.records, "20260101T020000Z-h200-000002"]
    )
    history = read_stores([str(tmp_path)])
    history.paths[night.records[0]].with_suffix(".parquet").write_bytes(b"no table")

    found = night_samples(history, night)[NAME]

    assert found["series"][KEY][2] == {"values": [3.0, 9.0, 4.0], "dropped": [1]}
    assert list(found["unreadable"]) == [0]


def test_a_link_to_a_series_says_all_of_it():
    state = parse_qs(urlsplit(series_address("nvidia-h200", "a&b=c#d", VERIFY, "night")).fragment)

    assert state == {"gpu": ["nvidia-h200"], "case": ["a&b=c#d"], "series": [KEY], "night": ["night"]}


# ---- in the browser


@pytest.fixture(scope="module")
def desk(browser: "Browser", golden_site: Path) -> Iterator["Page"]:
    with opened(browser, golden_site, LINK) as page:
        shown(page)
        yield page


def shown(page: "Page", chart: str = "series") -> None:
    figure = page.locator(f"[data-chart={chart}]")
    figure.scroll_into_view_if_needed()
    figure.locator(".scatterlayer .point").first.wait_for(state="attached")


def traces(page: "Page", chart: str = "series") -> dict[str, list[float]]:
    script = "element => Object.fromEntries(element.data.map(trace => [trace.name, Array.from(trace.y)]))"
    return page.locator(f"[data-chart={chart}]").evaluate(script)


def nights_shown(page: "Page") -> list[str]:
    return page.locator("[data-part=nights] th").all_inner_texts()


def test_every_process_is_a_dot_and_every_night_a_median(desk, golden_store):
    line = timeline(read_stores([str(golden_store)]), "nvidia-h200")
    figures = [moment.processes.figure(VERIFY, HEADLINE) for moment in line.moments]
    drawn = traces(desk)

    (dots,) = (values for name, values in drawn.items() if name.startswith("card #"))
    assert dots == [value for figure in figures for value in figure.values]
    assert [value for value in drawn["median of the night"] if value is not None] == [f.median for f in figures]
    assert drawn["median of the night"][2] is None  # the driver changed before the third night
    assert drawn["▲ regressed"] == [figures[-1].median]
    assert len(drawn["SM clock, median"]) == len(dots)
    assert nights_shown(desk)[0] == "2026-01-04 02:59 UTC"


def test_a_chosen_night_shows_its_samples_and_the_back_button_undoes_it(browser, golden_site):
    from playwright.sync_api import expect

    case = golden_cases()[0].name  # the one with samples
    with opened(browser, golden_site, f"series.html#gpu=nvidia-h200&case={case}&series={KEY}") as page:
        shown(page)
        page.locator("[data-part=nights] button").first.click()
        shown(page, "samples")

        assert page.inner_text("[data-part=samples-of]") == "Raw samples of 2026-01-04 02:59 UTC"
        assert traces(page, "samples")["sample"] == [1.0] * 5
        assert page.locator("[data-part=processes] a").count() == 10
        address = page.locator("[data-part=processes] a").first.get_attribute("href")
        assert (golden_site / address).is_file()
        assert "night=20260104T020000Z-h200-abc123" in page.url

        page.go_back()
        expect(page.locator("[data-part=samples-of]")).to_have_text("Raw samples")
        expect(page.locator("[data-part=nights] tr[aria-current]")).to_have_count(0)


def test_a_click_on_a_dot_chooses_its_night(browser, golden_site):
    from playwright.sync_api import expect

    with opened(browser, golden_site, LINK) as page:
        shown(page)
        page.locator("[data-chart=series]").evaluate(
            "element => element.emit('plotly_click', { points: [{ customdata: 1 }] })"
        )
        expect(page).to_have_url(re.compile("night=20260102T020000Z"))


def test_choices_stand_in_the_address_and_come_back_from_it(browser, golden_site):
    from playwright.sync_api import expect

    with opened(browser, golden_site, LINK) as page:
        shown(page)
        page.select_option("[data-choose=x]", "order")
        page.select_option("[data-choose=gpu]", "nvidia-h100")
        expect(page.locator("[data-part=nights] tr")).to_have_count(1)

        assert "gpu=nvidia-h100" in page.url
        assert "x=order" in page.url
        assert page.input_value("[data-choose=series]") == KEY
        assert page.input_value("[data-choose=case]") == HEADLINE

        page.go_back()
        expect(page.locator("[data-part=nights] tr")).to_have_count(4)
        assert page.input_value("[data-choose=gpu]") == "nvidia-h200"


def test_an_address_that_names_what_is_not_there_says_so(browser, golden_site):
    with opened(browser, golden_site, "series.html#gpu=nvidia-h200&case=<b>none</b>") as page:
        said = page.locator("[data-part=unknown]")
        said.wait_for()

        assert said.inner_text() == "No case <b>none</b> is here."
        assert page.input_value("[data-choose=case]") == HEADLINE


def test_a_series_without_a_value_says_why_instead_of_an_empty_figure(browser, golden_site):
    with opened(browser, golden_site, f"series.html#gpu=nvidia-h200&case={SKIPPED}&series={KEY}") as page:
        page.locator("[data-chart=series] p").wait_for()

        assert "needs 153.2 GiB" in page.inner_text("[data-chart=series]")
        assert "needs 153.2 GiB" in page.inner_text("[data-part=nights]")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_scrolls_only_downwards_in_both_themes(browser, golden_site, scheme):
    with opened(browser, golden_site, LINK, scheme=scheme, width=390) as page:
        shown(page)

        assert page.evaluate("document.documentElement.scrollWidth") == 390
        assert is_light(page) == (scheme == "light")


def test_a_public_site_links_no_raw_file(browser, golden_store, tmp_path):
    from reports.site import build_site

    build_site(read_stores([str(golden_store)]), tmp_path, raw=False)
    with opened(browser, tmp_path, LINK + "&night=20260104T020000Z-h200-abc123") as page:
        shown(page)
        page.locator("[data-part=processes] tr").first.wait_for()

        assert page.locator("[data-part=processes] a, [data-part=nights] a").count() == 0


def test_hostile_names_run_nowhere(browser, tmp_path):
    from reports.site import build_site

    attack = "</script><img src=x onerror=\"document.title='owned'\">'&<svg onload=alert(1)>"
    write_night(
        Store(tmp_path / "store"), NightPlan(1), [msgspec.structs.replace(CASE[0], name=attack, stands_for=attack)]
    )
    build_site(read_stores([str(tmp_path / "store")]), tmp_path / "site")

    with opened(browser, tmp_path / "site", "series.html") as page:
        shown(page)

        assert page.title().startswith("Series")
        assert page.locator("img, main svg [onload]").count() == 0
        assert page.input_value("[data-choose=case]") == attack


def test_nights_too_old_for_samples_say_where_they_are(browser, tmp_path):
    from reports.site import build_site

    history = history_of(tmp_path / "store", [NightPlan(day) for day in range(1, SHOWN_NIGHTS + 2)])
    build_site(history, tmp_path / "site")
    link = f"series.html#gpu=nvidia-h200&case={NAME}&series={KEY}&night=20260101T020000Z-h200-abc123"
    with opened(browser, tmp_path / "site", link) as page:
        page.locator("[data-part=processes] tr").first.wait_for()

        assert "in the Parquet files below" in page.inner_text("[data-part=samples-said]")


def test_three_clicks_lead_from_today_to_the_raw_samples_and_files_of_a_suspicious_night(browser, golden_site):
    from playwright.sync_api import expect

    with opened(browser, golden_site, "index.html") as page:
        page.locator("#nvidia-h200 a[href^='regressions.html#event=']").first.click()
        page.locator("details[open] a[href^='series.html']").first.click()
        expect(page.locator("[data-part=samples-of]")).to_have_text("Raw samples of 2026-01-04 02:59 UTC")
        assert page.input_value("[data-choose=series]") == KEY
        shown(page)
        third = page.locator("[data-part=processes] a").first.get_attribute("href")

        assert (golden_site / third).is_file()


@pytest.mark.parametrize(("tile", "series"), [("commit", "/".join(COMMIT)), ("verify_overhead", KEY)])
def test_a_headline_figure_leads_to_its_series_and_night(browser, golden_site, tile, series):
    from playwright.sync_api import expect

    with opened(browser, golden_site, "index.html") as page:
        page.locator(f"#nvidia-h200 [data-tile={tile}] a").click()
        expect(page.locator("[data-part=samples-of]")).to_have_text("Raw samples of 2026-01-04 02:59 UTC")

        assert page.input_value("[data-choose=series]") == series
        assert page.input_value("[data-choose=case]") == HEADLINE
