"""Lasting steps as regressions: since when, by which commits, and how each ended."""

from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from benchmarks.harness.records import Acceptance
from benchmarks.harness.store import Store
from ci.policy import KnownRegression, KnownRegressions
from reports.event_rows import EventRow
from reports.pages import today
from reports.pages.page import Site
from reports.sources import read_stores
from tests.reports.browsing import opened
from tests.reports.golden import NightPlan, golden_cases, write_night

CASE = golden_cases()[:1]
NAME = CASE[0].name
STEP_DAY = 14
NOW = datetime(2026, 2, 1, tzinfo=UTC)


def slower(op: str, provider: str) -> float:
    return 1.05 if (op, provider) == ("verify", "recoverssm") else 1.0


def plans(num: int, **changed: NightPlan) -> list[NightPlan]:
    """Verify is 5 % slower from the fourteenth night on; ``day_N`` puts another night in its place."""
    usual = {
        f"day_{day}": NightPlan(day, speed=slower if day >= STEP_DAY else NightPlan(1).speed)
        for day in range(1, num + 1)
    }
    return list((usual | changed).values())


def rows(folder: Path, nights: list[NightPlan], known: KnownRegressions | None = None) -> list[EventRow]:
    for plan in nights:
        write_night(Store(folder), plan, CASE)
    return Site(read_stores([str(folder)]), NOW, known=known or KnownRegressions()).events


def test_a_step_is_an_event_with_its_commits_though_no_night_was_judged_worse(tmp_path):
    (row,) = rows(tmp_path, plans(18))

    assert (row.is_step, row.state, row.is_open) == (True, "confirmed", True)
    assert row.since == "2026-01-14 02:59 UTC"
    assert row.commits == "after 1313131313, up to 1414141414"
    assert row.size_pct == pytest.approx(5.0)
    (line,) = row.series
    assert (line.name, line.case, line.nights) == ("verify recoverssm device_us", NAME, "5 nights")
    assert line.reason == "a lasting step: 13 nights before it, 5 after it"
    assert row.bisect.startswith(f"python -m ci bisect {'13' * 20} {'14' * 20} --case {NAME} --op verify")


def test_a_step_of_another_projects_kernel_is_no_event(tmp_path):
    theirs = {f"day_{day}": NightPlan(day, speed=slower, others=("recoverssm",)) for day in range(STEP_DAY, 19)}

    assert rows(tmp_path, plans(18, **theirs)) == []


def test_a_step_that_a_verdict_tells_of_is_told_once(tmp_path):
    red = NightPlan(STEP_DAY, speed=slower, exit_code=1, red_case=NAME, base=STEP_DAY - 1)

    (row,) = rows(tmp_path, plans(18, **{f"day_{STEP_DAY}": red}))

    assert not row.is_step


def test_a_step_that_went_back_is_fixed_since_the_night_it_did(tmp_path):
    back = {f"day_{day}": NightPlan(day) for day in range(27, 31)}

    (row,) = rows(tmp_path, plans(30, **back))

    assert (row.state, row.ended) == ("fixed", "2026-01-27 02:59 UTC")
    assert row.series[0].nights == "13 nights, fixed 2026-01-27 02:59 UTC"


def test_a_step_in_an_environment_that_is_past_is_cut(tmp_path):
    (row,) = rows(tmp_path, [*plans(18), NightPlan(19, speed=slower, driver="590.00-synthetic")])

    assert (row.state, row.ended) == ("cut", "2026-01-19 02:59 UTC")


def test_a_step_in_a_night_that_an_owner_accepted_is_accepted(tmp_path):
    store = Store(tmp_path)
    for plan in plans(18, day_16=NightPlan(16, speed=slower, exit_code=1)):
        write_night(store, plan, CASE)
    night = next(night for night in store.nights() if night.created_utc.startswith("2026-01-16"))
    by = Acceptance(owner="kernels", reason="meant", at_utc="2026-01-17T00:00:00Z")
    store.accept_night(msgspec.structs.replace(night, accepted=True, acceptance=by))

    (row,) = rows(tmp_path, [])

    assert row.state == "accepted"


@pytest.mark.parametrize(("expires", "state"), [("2026-02-02", "acknowledged"), ("2026-01-31", "expired")])
def test_who_took_a_step_on_has_it(tmp_path, expires, state):
    entry = KnownRegression(
        metric="device_us", op="verify", provider="recoverssm", case="*", expected_pct=(2.0, 8.0),
        reason="a better kernel comes", owner="kernels", date="2026-01-14", expires=expires,
    )  # fmt: skip
    (row,) = rows(tmp_path, plans(18), KnownRegressions(regression=[entry]))

    assert (row.state, row.owner) == (state, f"kernels, until {expires}")


def test_a_change_for_the_better_is_no_event(tmp_path):
    faster = {f"day_{day}": NightPlan(day, speed=lambda *key: 2 - slower(*key)) for day in range(STEP_DAY, 19)}

    assert rows(tmp_path, plans(18, **faster)) == []


def test_steps_stand_on_today_and_on_the_page_of_regressions(browser, tmp_path):
    from reports.site import build_site

    rows(tmp_path / "store", plans(18))
    history = read_stores([str(tmp_path / "store")])
    build_site(history, tmp_path / "site", now=NOW)

    assert [row.is_step for row in today.load(Site(history, NOW)).view.gpus[0].regressions] == [True]
    with opened(browser, tmp_path / "site", "index.html") as page:
        page.get_by_role("link", name="confirmed step: verify recoverssm device_us").click()
        page.wait_for_url("**/regressions.html#event=*")
        assert "A lasting step" in page.locator("details.event[open]").inner_text()
