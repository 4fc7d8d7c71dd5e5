"""The page that compares any two measurements: its data files, and the page in real headless Chromium."""

import math
import statistics
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from scipy import stats

from benchmarks.harness.records import Measurement
from benchmarks.harness.samples import samples_table
from benchmarks.harness.store import Store
from reports.derive import VERIFY
from reports.pages.compare import values_of
from reports.process import Process
from reports.sources import read_stores
from tests.reports.browsing import opened
from tests.reports.golden import HEADLINE, NightPlan, golden_cases, golden_record, write_night

if TYPE_CHECKING:
    from playwright.sync_api import Page

FIRST, SECOND, THIRD, FOURTH = (f"night:2026010{day}T020000Z-h200-abc123" for day in (1, 2, 3, 4))
NAMES = ["case", "outcome", "change", "what", "metric", "a", "n_a", "b", "n_b", "ratio", "interval"]


def rows(page: "Page") -> list[dict[str, str]]:
    """The table as shown, once it is there."""
    page.locator("[data-part=folded]", has_text="series").wait_for()
    cells = page.eval_on_selector_all(
        "[data-part=rows] tr", "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    )
    return [dict(zip(NAMES, (cell.replace("\N{NO-BREAK SPACE}", " ") for cell in row), strict=True)) for row in cells]


def folded(page: "Page") -> str:
    page.locator("[data-part=folded]", has_text="series").wait_for()
    return page.inner_text("[data-part=folded]")


def welch(before: list[float], after: list[float]) -> tuple[float, float, float]:
    """Ratio of geometric means and its 95 % interval, by SciPy: a second witness of the page's script."""
    a, b = ([math.log(value) for value in values] for values in (before, after))
    low, high = stats.ttest_ind(b, a, equal_var=False).confidence_interval(0.95)
    return math.exp(statistics.fmean(b) - statistics.fmean(a)), math.exp(low), math.exp(high)


def test_values_are_those_of_valid_measurements():
    record = golden_record(NightPlan(1), 0, golden_cases()[:1])
    broken = Measurement(
        metric="m", op="o", provider="p", case="c", contract="graph-cold", unit="us", status="failed", reason="why"
    )
    whole = Process.of(msgspec.structs.replace(record, measurements=[*record.measurements, broken]))
    places = {line.key: place for place, line in enumerate(whole.columns.shape.lines)}

    values = dict(values_of([whole], places))

    assert all(values[places[m.key]] == pytest.approx(m.value, rel=1e-6) for m in record.measurements)
    assert places[broken.key] not in values


def test_two_nights_show_what_changed_with_its_ratio_and_interval(browser, golden_site, golden_store):
    history = read_stores([str(golden_store)])
    nights = history.of("nvidia-h200")
    before, after = (list(history.processes(night).figure(VERIFY, HEADLINE).values) for night in (nights[2], nights[3]))
    ratio, low, high = welch(before, after)

    with opened(browser, golden_site, f"compare.html#a={THIRD}&b={FOURTH}&words={HEADLINE}") as page:
        (row,) = rows(page)

        assert (row["what"], row["outcome"]) == ("verify, recoverssm", "▲ worse")
        assert float(row["ratio"]) == pytest.approx(ratio, abs=5e-5)
        shown = [float(number) for number in row["interval"].split(" to ")]
        assert shown[1] - shown[0] == pytest.approx(high - low, rel=0.1)
        assert shown[0] <= low + 1e-4
        assert shown[1] >= high - 1e-4  # whole degrees of freedom: never narrower
        assert "= 14 unchanged" in folded(page)


def test_the_other_way_round_is_better_and_a_larger_least_change_folds_it(browser, golden_site):
    with opened(browser, golden_site, f"compare.html#a={THIRD}&b={FOURTH}&words={HEADLINE}") as page:
        rows(page)
        page.click("[data-part=swap]")
        page.locator(".outcome.better").wait_for()
        assert [row["outcome"] for row in rows(page)] == ["▼ better"]

        page.select_option("[data-choose=least]", "10")
        page.locator(".outcome.better").wait_for(state="detached")
        assert rows(page) == []
        assert "least=10" in page.url

        page.go_back()
        page.locator(".outcome.better").wait_for()


def test_another_driver_and_another_gpu_are_said_in_words(browser, golden_site):
    h100 = "night:20260104T020000Z-h100-abc123"
    with opened(browser, golden_site, f"compare.html#a={SECOND}&b={THIRD}") as page:
        rows(page)
        assert "driver" in page.inner_text("[data-part=differs]")
        assert "590.00-synthetic" in page.inner_text("[data-part=sides]")
        assert page.inner_text("[data-part=command]").endswith("--anyway")

        page.select_option("[data-choose=b]", h100)
        page.locator("[data-part=sides]", has_text="NVIDIA H100").wait_for()
        assert "GPU model" in page.inner_text("[data-part=differs]")


def test_nights_of_one_environment_are_not_said_to_differ(browser, golden_site):
    with opened(browser, golden_site, f"compare.html#a={FIRST}&b={SECOND}") as page:
        rows(page)

        assert page.locator("[data-part=differs]").is_hidden()


def test_a_commit_and_an_environment_mean_their_newest_night(browser, golden_site):
    a, b = f"commit:{'01' * 20}:nvidia-h200", "environment:nvidia-h200:1"
    with opened(browser, golden_site, f"compare.html#a={a}&b={b}") as page:
        rows(page)
        said = page.inner_text("[data-part=sides]")

        assert "2026-01-01 02:59 UTC" in said
        assert "2026-01-04 02:59 UTC" in said


def test_a_case_that_one_side_lacks_is_kept_apart_from_a_series_that_vanished(browser, golden_site):
    cpu = "night:20260104T020000Z-cpu-abc123"
    with opened(browser, golden_site, f"compare.html#a={FOURTH}&b={cpu}&words={HEADLINE}&show=all") as page:
        words = {row["what"] + row["metric"]: row["outcome"] for row in rows(page)}

    assert words["verify, recoverssmdevice_us, graph-cold"] == "∅ alone"
    assert words["state, recoverssmcache_bytes, exact"] == "= unchanged"


def test_a_number_leads_to_its_series_and_night(browser, golden_site):
    with opened(browser, golden_site, f"compare.html#a={THIRD}&b={FOURTH}&words={HEADLINE}") as page:
        rows(page)
        page.locator("[data-part=rows] a").last.click()
        page.locator("[data-part=nights] tr[aria-current]").wait_for()

        assert page.input_value("[data-choose=series]") == "/".join(VERIFY)
        assert page.inner_text("[data-part=samples-of]") == "Raw samples of 2026-01-04 02:59 UTC"


def test_a_backfill_compares_its_commits(browser, tmp_path):
    from reports.site import build_site

    store, plan = Store(tmp_path / "store"), NightPlan(1)
    write_night(store, plan, golden_cases()[:1])
    for place, commit in enumerate(("aa" * 20, "bb" * 20)):
        for index in range(3):
            record = golden_record(plan, index, golden_cases()[:1])
            subject = msgspec.structs.replace(record.subject, commit=commit)
            id_ = f"20260102T02000{place}Z-back-{index:06x}"
            store.add_record(
                msgspec.structs.replace(record, id=id_, subject=subject, backfill="20260102T020000Z-back-fill"),
                samples_table([]),
            )
    build_site(read_stores([str(tmp_path / "store")]), tmp_path / "site")

    link = "&".join(
        f"{side}=backfill:20260102T020000Z-back-fill:{hash_ * 20}" for side, hash_ in (("a", "aa"), ("b", "bb"))
    )
    with opened(browser, tmp_path / "site", f"compare.html#{link}&show=all") as page:
        assert {row["n_a"] for row in rows(page)} == {"3"}
        assert page.inner_text("[data-part=command]") == f"python -m ci compare {'aa' * 20} {'bb' * 20}"
        assert page.locator("[data-part=sides] a").count() == 12


def test_one_night_alone_says_that_two_are_needed(browser, tmp_path):
    from reports.site import build_site

    write_night(Store(tmp_path / "store"), NightPlan(1), golden_cases()[:1])
    build_site(read_stores([str(tmp_path / "store")]), tmp_path / "site")

    with opened(browser, tmp_path / "site", "compare.html") as page:
        assert "Two measurements are needed; 1" in page.inner_text("main")


def test_hostile_names_and_addresses_run_nowhere(browser, tmp_path: Path):
    from reports.site import build_site

    attack = "</script><img src=x onerror=\"document.title='owned'\">"
    cases = [msgspec.structs.replace(golden_cases()[0], name=attack, stands_for=attack)]
    for day in (1, 2):
        write_night(Store(tmp_path / "store"), NightPlan(day), cases)
    build_site(read_stores([str(tmp_path / "store")]), tmp_path / "site")

    with opened(browser, tmp_path / "site", "compare.html#show=all&a=<img src=x>") as page:
        assert {row["case"] for row in rows(page)} == {attack}
        assert "No measurement <img src=x> is here." in page.inner_text("[data-part=unknown]")
        assert page.locator("img").count() == 0
