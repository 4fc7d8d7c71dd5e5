"""Rules that every page keeps: where it may lie, what may run in it, what it does with odd stores, how it is used."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from benchmarks.harness.store import Store
from reports.pages.registry import PAGES
from reports.site import build_site
from reports.sources import read_stores
from tests.reports.browsing import FULLEST, opened, whole
from tests.reports.golden import NightPlan, golden_cases, write_night
from tests.reports.golden_static import write_static_night
from tests.reports.serving import serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = [page.name for page in PAGES]
ATTACK = "</script><img src=x onerror=\"document.title='owned'\">'&<svg onload=alert(1)>"


# ---- where it lies


@pytest.fixture(scope="module")
def served(golden_site: Path) -> Iterator[str]:
    with serving(golden_site) as address:
        yield address


@pytest.mark.parametrize("name", NAMES)
def test_a_page_works_below_a_prefix_of_a_server(browser, served, name):
    problems, page = [], browser.new_page()
    mine = (served, "data:", "blob:")
    page.on("console", lambda message: problems.append(message.text))
    page.on("response", lambda response: problems.append(response.url) if response.status >= 400 else None)
    page.on("request", lambda request: problems.append(request.url) if not request.url.startswith(mine) else None)
    page.goto(f"{served}/{name}.html{FULLEST.get(name, '')}")

    assert whole(page).locator("h1").inner_text()
    assert problems == []
    page.close()


# ---- what may run in it


@pytest.mark.parametrize("name", NAMES)
def test_no_page_holds_a_script_or_a_handler_of_its_own_and_none_would_run(browser, golden_site, name):
    html = (golden_site / f"{name}.html").read_text()
    assert re.findall(r"<script(?! src=\"assets/[a-z_.]+\"(?: defer)?></script>)", html) == []
    assert re.findall(r"<[^>]+\son[a-z]+\s*=", html) == []
    assert "script-src 'self'" in html

    page = browser.new_page()
    page.goto((golden_site / f"{name}.html").as_uri())
    page.evaluate(
        """() => {
            window.blocked = 0;
            document.addEventListener("securitypolicyviolation", () => { window.blocked += 1; });
            const script = document.createElement("script");
            script.textContent = "document.title = 'owned'";
            document.body.append(script);
            const image = document.createElement("div");
            image.innerHTML = `<img src="data:," onerror="document.title = 'owned'">`;
            document.body.append(image);
        }"""
    )
    page.wait_for_function("window.blocked >= 2")
    assert "owned" not in page.title()
    page.close()


# ---- odd stores


@pytest.fixture(scope="module")
def hostile_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nights whose every free text is an attack, on three kinds of machine."""
    folder = tmp_path_factory.mktemp("hostile")
    store = Store(folder / "store")
    case = msgspec.structs.replace(golden_cases()[0], name=ATTACK, stands_for=ATTACK)
    for day in (1, 2):
        for model in ("nvidia-h200", "nvidia-h100", "cpu"):
            write_night(store, NightPlan(day, model, processes=2, driver=ATTACK, base=1), [case])
    write_static_night(store, "sm_90", 1)
    for path in (folder / "store").rglob("nights/*/*.json"):
        night = msgspec.json.decode(path.read_bytes())
        night |= {"notes": [ATTACK], "alarms": [ATTACK], "quarantined": [ATTACK], "exit_code": 1, "case_set": ATTACK}
        for verdict in night["verdicts"]:
            verdict |= {"verdict": "regressed", "reason": ATTACK, "known_reason": ATTACK}
        path.write_bytes(msgspec.json.encode(night))
    (folder / "store" / "records" / "nvidia-h200" / "<img src=x>.json").write_text("{")
    build_site(read_stores([str(folder / "store")]), folder / "site")
    return folder / "site"


@pytest.mark.parametrize("name", NAMES)
def test_whatever_a_store_says_stays_text(browser, hostile_site, name):
    with opened(browser, hostile_site, f"{name}.html{'#show=all' if name == 'regressions' else ''}") as page:
        whole(page)

        assert page.title().endswith("RecoverSSM nights")
        assert page.locator("img, main svg[onload]").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.fixture(scope="module")
def damaged_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One night, of whose records one is cut and one has no samples that can be read."""
    folder = tmp_path_factory.mktemp("damaged")
    write_night(Store(folder / "store"), NightPlan(1), golden_cases()[:2])
    first, second = sorted((folder / "store").rglob("records/*/*.json"))[:2]
    first.write_bytes(first.read_bytes()[:200])
    second.with_suffix(".parquet").write_bytes(b"no table")
    build_site(read_stores([str(folder / "store")]), folder / "site")
    return folder / "site"


@pytest.mark.parametrize("name", NAMES)
def test_one_night_with_damaged_records_beside_good_ones_is_shown_on_every_page(browser, damaged_site, name):
    with opened(browser, damaged_site, f"{name}.html", width=390) as page:
        text = whole(page).locator("main").inner_text()

        assert "NaN" not in text.replace("NaN stands", "")
        assert "undefined" not in text
        if name in ("index", "runs"):
            assert text.count("could not be read") >= 1


# ---- how it is used


@pytest.fixture(scope="module", params=NAMES)
def shown(request: pytest.FixtureRequest, browser: "Browser", golden_site: Path) -> Iterator["Page"]:
    """Each page once, for all tests that look at it as it is."""
    with opened(browser, golden_site, f"{request.param}.html{FULLEST.get(request.param, '')}") as page:
        yield whole(page)


def test_every_link_leads_somewhere_and_measured_numbers_lead_to_their_files(shown, golden_site):
    links = shown.eval_on_selector_all("a[href]", "all => all.map((one) => one.getAttribute('href'))")
    name = Path(shown.url.partition("#")[0]).stem

    assert [link for link in links if not (golden_site / link.partition("#")[0]).exists()] == []
    if name not in ("about", "regressions", "static", "league"):  # the golden store has nothing for the last two
        assert any(link.startswith(("raw/", "files/")) for link in links)


def test_the_keyboard_goes_through_a_page_and_shows_where_it_is(shown):
    shown.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
    seen = []
    for _ in range(40):
        shown.keyboard.press("Tab")
        where, is_shown = shown.evaluate(
            """() => {
                const one = document.activeElement, style = getComputedStyle(one);
                const isShown = style.outlineStyle !== "none" || style.boxShadow !== "none";
                return [one.outerHTML.slice(0, 120), one === document.body || isShown];
            }"""
        )
        assert is_shown, where
        if where.startswith("<body"):
            break
        seen.append(where)

    assert len(seen) > len(PAGES)
    assert len(set(seen)) > len(PAGES)


def test_what_a_colour_says_is_said_in_words_or_marks_too(shown):
    silent = shown.eval_on_selector_all(
        "main .good, main .bad, main .warn, main .verdict, main .state",
        "all => all.filter((one) => one.checkVisibility() && !one.innerText.trim()).map((one) => one.outerHTML)",
    )

    assert silent == []


def test_an_axis_says_its_unit_and_which_way_is_better(shown):
    axes = "({ layout }) => Object.keys(layout).map((name) => layout[name].title?.text)"
    for chart in shown.locator("main .js-plotly-plot:visible").all():
        assert any(re.search("better|must not change", title or "") for title in chart.evaluate(axes))
    for figure in shown.locator("main figure.drawing svg").all():
        assert "better" in figure.text_content()


def test_every_figure_is_saved_as_png_and_svg(shown, golden_site):
    for chart in shown.locator("main .js-plotly-plot:visible").all():
        for form in ("PNG", "SVG"):
            chart.hover()
            with shown.expect_download() as download:
                chart.locator(f"[data-title='save as {form}']").click()
            assert download.value.suggested_filename.startswith("recoverssm-")
            assert_picture(Path(download.value.path()), form)
    for figure in shown.locator("main figure.drawing").all():
        assert_picture(golden_site / figure.get_by_role("link", name="SVG").get_attribute("href"), "SVG")
        with shown.expect_download() as download:
            figure.get_by_role("button", name="PNG").click()
        assert_picture(Path(download.value.path()), "PNG")


def assert_picture(path: Path, form: str) -> None:
    data = path.read_bytes()
    assert (data[:4] == b"\x89PNG") if form == "PNG" else (b"<svg" in data[:200])
    assert len(data) > 2000


# ---- from what is wrong to what was measured


@pytest.fixture(scope="module")
def suspicious_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three nights; in the last one the first case's verify is 6 % slower, and judged so."""
    folder = tmp_path_factory.mktemp("suspicious")
    store, (case, *_) = Store(folder / "store"), golden_cases()
    for day in (1, 2):
        write_night(store, NightPlan(day), [case])
    slow = lambda op, provider: 1.06 if (op, provider) == ("verify", "recoverssm") else 1.0  # noqa: E731  # as NightPlan wants it
    write_night(store, NightPlan(3, speed=slow, exit_code=1, red_case=case.name, base=2), [case])
    build_site(read_stores([str(folder / "store")]), folder / "site")
    return folder / "site"


def test_three_clicks_lead_from_today_to_the_raw_samples_of_a_suspicious_point(browser: "Browser", suspicious_site):
    case = golden_cases()[0].name
    with opened(browser, suspicious_site, "index.html") as page:
        page.get_by_role("link", name="new: verify recoverssm device_us").click()
        page.wait_for_url("**/regressions.html#event=*")
        page.locator("details.event[open]").get_by_role("link", name="verify recoverssm device_us").click()
        page.wait_for_url("**/series.html#*")
        samples = page.locator("[data-chart=samples]")
        samples.locator(".scatterlayer .point").first.wait_for(state="attached")

        # By now the samples are drawn; the third click is for the file that holds them all.
        assert page.inner_text("[data-part=samples-of]") == "Raw samples of 2026-01-03 02:59 UTC"
        assert page.locator("[data-choose=case]").input_value() == case
        assert samples.evaluate("(one) => Array.from(one.data[0].y)") == [1.0] * 5
        with page.expect_download() as download:
            page.locator("[data-part=processes]").get_by_role("link", name="Parquet").first.click()
        originals = (suspicious_site.parent / "store" / "records" / "nvidia-h200").glob("20260103*.parquet")
        assert Path(download.value.path()).read_bytes() in [path.read_bytes() for path in originals]
