"""The page of the commit kernel: its data, the changelog between commits, and the page in real headless Chromium."""

import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from benchmarks.harness.samples import samples_table
from benchmarks.harness.store import Store
from reports.changes import Changelog
from reports.derive import COMMIT
from reports.pages.commit import at_share, load, points_of
from reports.pages.page import Part, Site
from reports.sources import History, read_stores
from tests.reports.browsing import opened
from tests.reports.golden import HEADLINE, SKIPPED, NightPlan, golden_cases, golden_record, history_of, write_night

if TYPE_CHECKING:
    from playwright.sync_api import Page

PEER_CASE = "kimi_k3_tp8_b32_t8_a3.84_fp32"


def site_of(history: History) -> Site:
    return Site(history, datetime(2026, 1, 5, tzinfo=UTC))


@pytest.fixture(scope="module")
def golden(golden_store: Path) -> Site:
    return site_of(read_stores([str(golden_store)]))


def backfilled(folder: Path) -> History:
    """A night, and a backfill of two commits, the second older than the first measured."""
    store, plan, cases = Store(folder), NightPlan(3), golden_cases()[:1]
    write_night(store, plan, cases)
    for place, (commit, committed) in enumerate(
        (("bb" * 20, "2026-01-02T00:00:00Z"), ("aa" * 20, "2026-01-01T00:00:00Z"))
    ):
        record = golden_record(plan, 0, cases)
        subject = msgspec.structs.replace(record.subject, commit=commit, commit_utc=committed)
        id_ = f"20260104T02000{place}Z-back-000000"
        store.add_record(msgspec.structs.replace(record, id=id_, subject=subject, backfill="fill"), samples_table([]))
    return read_stores([str(folder)])


# ---- data


def test_points_stand_in_the_order_of_their_commits_with_backfills_apart(tmp_path):
    points = points_of(site_of(backfilled(tmp_path)), "nvidia-h200")

    assert [(point.commit or "")[:2] for point in points] == ["aa", "bb", "03"]
    assert [point.side.night is None for point in points] == [True, True, False]


def test_floor_and_control_are_shares_of_each_process(golden):
    point = points_of(golden, "nvidia-h200")[0]
    times, rooflines, controls = (
        point.processes.values(COMMIT, HEADLINE, name) for name in ("values", "roofline_pct", "control_pct")
    )

    floor, control = (at_share(point, HEADLINE, control=control) for control in (False, True))

    assert floor.values == tuple(time * share / 100 for time, share in zip(times, rooflines, strict=True))
    assert control.values == tuple(time * share / 100 for time, share in zip(times, controls, strict=True))


def test_the_table_shows_the_newest_night_and_leaves_out_a_case_that_was_skipped(golden):
    rows = {row.case: row for row in load(golden).view.models[1].rows}

    assert rows[HEADLINE].commit == "1,202\N{NO-BREAK SPACE}µs"
    assert rows[HEADLINE].facts == ("32", "8", "3.84", "fp32", "12")
    assert rows[HEADLINE].parts[:3] == ("4.01", "1,102", "90.2")
    assert "night=20260104" in rows[HEADLINE].href
    assert SKIPPED not in rows


def test_other_projects_stand_beside_the_gpu_model_that_they_were_measured_on(golden):
    models = {model.slug: {row.case: row.peer for row in model.rows} for model in load(golden).view.models}

    assert "µs, " in models["nvidia-h200"][PEER_CASE]
    assert set(models["nvidia-h100"].values()) == {"–"}


def test_deferred_commits_stand_beside_those_of_every_step(tmp_path):
    cases, store = golden_cases()[:1], Store(tmp_path)
    night, times = write_night(store, NightPlan(1), cases), {"commit": 37.0, "flush": 856.0, "step": 1396.0}
    night_records = store.records(night.records)
    model = next(m for m in night_records[0].measurements if (m.op, m.provider) == ("step", "recoverssm"))
    deferred = [
        msgspec.structs.replace(model, op=op, provider="recoverssm_deferred", value=us) for op, us in times.items()
    ]
    with_deferred = [
        msgspec.structs.replace(record, measurements=[*record.measurements, *deferred]) for record in night_records
    ]

    content = load(site_of(history_of(night, with_deferred)))
    (part,) = (item for item in content.data if isinstance(item, Part))
    (found,) = (data for _, data in part.data)

    assert set(found["lines"]["deferred commit"][0]) == {37.0}
    assert set(found["lines"]["flush"][0]) == {856.0}
    assert set(found["steps"]["deferred commits"][0]) == {1396.0}
    assert content.view.models[0].rows[0].parts[-2:] == ("37.0", "856.0")


def test_a_store_without_a_gpu_says_what_is_missing(tmp_path):
    write_night(Store(tmp_path), NightPlan(1, gpu_model="cpu"), golden_cases()[:1])

    assert "No night of a GPU" in load(site_of(read_stores([str(tmp_path)]))).missing


# ---- the changelog between two commits


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e@x", "-c", "commit.gpgsign=false"]
    subprocess.run([*git, "init", "-q"], check=True)
    for text in ("- `conv` first\n", "- `conv` first\n- commit_state is\n  faster <b>\n- page\n"):
        (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n{text}")
        subprocess.run([*git, "add", "-A"], check=True)
        subprocess.run([*git, "commit", "-qm", "x"], check=True)
    return tmp_path


def hashes(repository: Path) -> list[str]:
    command = ["git", "-C", str(repository), "rev-list", "--reverse", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def test_what_a_changelog_gained_between_two_commits_is_found_by_its_words(repository):
    old, new = hashes(repository)

    log = Changelog.of([old, None, new, "0" * 40, new[:10]], repository)

    assert log.gained(old, new, ["commit_state"]) == ["commit_state is faster <b>"]
    assert log.gained(old, new[:10], ["faster", "page"]) == ["commit_state is faster <b>", "page"]
    assert log.gained(new, old, ["commit_state"]) == []


@pytest.mark.parametrize("commit", [None, "0" * 40, "--output=x", "HEAD"])
def test_a_commit_that_git_does_not_have_is_unknown_and_never_an_option(repository, commit):
    known = hashes(repository)[0]

    assert Changelog.of([known, commit], repository).gained(known, commit, ["conv"]) is None
    assert sorted(path.name for path in repository.iterdir()) == [".git", "CHANGELOG.md"]


def test_without_a_repository_everything_is_unknown(tmp_path):
    assert Changelog.of(["0" * 40], tmp_path).entries == {}


# ---- in the browser


def traces(page: "Page", chart: str = "lines") -> dict[str, list[float]]:
    figure = page.locator(f"[data-chart={chart}]")
    figure.scroll_into_view_if_needed()
    figure.locator(".scatterlayer .point").first.wait_for(state="attached")
    return figure.evaluate("e => Object.fromEntries(e.data.map(trace => [trace.name, Array.from(trace.y)]))")


def test_every_night_is_a_point_of_the_commit_and_its_parts_cut_at_the_driver(browser, golden_site, golden):
    points = points_of(golden, "nvidia-h200")
    with opened(browser, golden_site, f"commit.html#gpu=nvidia-h200&case={HEADLINE}") as page:
        drawn = traces(page)

    medians = [point.processes.figure(COMMIT, HEADLINE).median for point in points]
    assert drawn["commit"] == [*medians[:2], None, *medians[2:]]
    assert {"plan", "state", "conv", "byte floor", "control"} <= set(drawn)
    assert len(drawn["vLLM 0.33.0, RecoverSSM (Triton)"]) == 2


def test_a_chosen_figure_case_and_gpu_stand_in_the_address_and_can_be_undone(browser, golden_site):
    from playwright.sync_api import expect

    with opened(browser, golden_site, "commit.html#gpu=nvidia-h200") as page:
        traces(page)
        page.select_option("[data-choose=figure]", "step")
        expect(page.locator("[data-chart=lines] .legendtext").filter(has_text="full state")).to_have_count(1)
        assert "figure=step" in page.url

        page.locator("section:visible [data-pick]").first.click()
        picked = page.locator("section:visible tr[data-case]").first.get_attribute("data-case")
        assert picked != HEADLINE
        expect(page.locator("tr[aria-current]").first).to_have_attribute("data-case", picked)

        page.go_back()
        page.go_back()
        expect(page.locator("[data-choose=figure]")).to_have_value("parts")
        expect(page.locator("[data-choose=case]")).to_have_value(HEADLINE)


def test_growth_by_requests_goes_through_the_cases_that_differ_in_them_alone(browser, golden_site, golden):
    batches = [1, 8, 16, 32, 48, 96, 128]
    newest = points_of(golden, "nvidia-h200")[-1].processes
    names = [f"kimi_k3_tp8_b{batch}_t8_a3.84_fp32" for batch in batches]
    with opened(browser, golden_site, f"commit.html#gpu=nvidia-h200&case={HEADLINE}") as page:
        assert traces(page, "growth")["commit"] == [newest.figure(COMMIT, name).median for name in names]


def test_commits_that_git_does_not_know_are_said_to_be_unknown(browser, golden_site):
    with opened(browser, golden_site, "commit.html#gpu=nvidia-h200") as page:
        page.locator("[data-part=changes] li").first.wait_for()

        assert "is not known where this page was built" in page.inner_text("[data-part=changes]")


def test_hostile_entries_and_names_run_nowhere(browser, tmp_path, monkeypatch):
    from reports.site import build_site

    attack = "<img src=x onerror=\"document.title='owned'\"> `<b>commit_state</b>`"
    monkeypatch.setattr("reports.pages.commit.Changelog.gained", lambda *args: [attack])
    cases = [msgspec.structs.replace(golden_cases()[0], name=attack, stands_for=attack)]
    for day in (1, 2):
        write_night(Store(tmp_path / "store"), NightPlan(day), cases)
    build_site(read_stores([str(tmp_path / "store")]), tmp_path / "site")

    with opened(browser, tmp_path / "site", "commit.html") as page:
        traces(page)

        assert "<b>commit_state</b>" in page.inner_text("[data-part=changes]")
        assert page.locator("main img, main b").count() == 0
