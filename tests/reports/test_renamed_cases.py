"""A case that was renamed goes on as one history, on every page that has one."""

from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from benchmarks.harness.records import Case
from benchmarks.harness.store import Store
from ci.config import load_thresholds
from ci.policy import Alias, Aliases, KnownRegressions
from reports import derive
from reports.derive import COMMIT, VERIFY
from reports.events import find_events
from reports.pages import commit, compare, today
from reports.pages.page import Part, Site
from reports.pages.samples import night_samples
from reports.pages.series import case_series
from reports.pages.timeline import timeline
from reports.sources import History, read_stores
from tests.reports.golden import HEADLINE, NightPlan, golden_cases, write_night

OLD, MODEL = "what_it_was_called", "nvidia-h200"
ALIASES = Aliases(alias=[Alias(old=OLD, new=HEADLINE, reason="clearer", owner="kernels", date="2026-01-02")])


def cases_named(name: str) -> list[Case]:
    (case,) = [case for case in golden_cases() if case.name == HEADLINE]
    return [msgspec.structs.replace(case, name=name)]


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    """Two nights under the old name, the second of them red, and one under the new name that is red still."""
    store = Store(tmp_path_factory.mktemp("renamed"))
    for day, name in ((1, OLD), (2, OLD), (3, HEADLINE)):
        red = {"exit_code": 1, "red_case": name, "base": 1} if day > 1 else {}
        write_night(store, NightPlan(day, **red), cases_named(name))
    return read_stores([str(store.folder)], aliases=ALIASES)


@pytest.fixture
def site(history: History) -> Site:
    return Site(history, datetime(2026, 1, 4, tzinfo=UTC), known=KnownRegressions())


def test_a_series_has_the_values_of_both_names(history):
    line = timeline(history, MODEL)

    (case,) = line.keys()
    data = case_series(line, case, [VERIFY], load_thresholds(), {})["series"][0]

    assert case == HEADLINE
    assert len(data["values"]) == 3 * 5
    assert None not in data["values"]
    assert data["verdicts"] == ["unchanged", "regressed", "regressed"]


def test_samples_and_checks_of_old_nights_are_those_of_the_new_name(history):
    first = history.of(MODEL)[0]

    assert set(night_samples(history, first)) == {HEADLINE}
    assert {check.case for check in history.processes(first).all_checks} == {HEADLINE}


def test_a_regression_goes_on_under_the_new_name(history):
    (event,) = find_events(history.of(MODEL), history.commit)

    assert event.spells[0].num_nights == 2
    assert event.is_open


def test_todays_sparkline_and_the_commit_page_have_all_nights(site):
    (model,) = today.load(site).view.gpus
    tiles = {item.tile.key: item.tile for item in model.headlines}

    assert tiles["commit"].spark.nights == 3
    assert [point.processes.figure(COMMIT, HEADLINE).n for point in commit.points_of(site, MODEL)] == [5, 5, 5]


def test_two_nights_under_different_names_are_compared_as_one_case(site):
    files = {
        key: data for item in compare.load(site).data for key, data in (item.data if isinstance(item, Part) else [item])
    }
    values = [[row[0] for row in data] for key, data in files.items() if "/values/" in key]

    assert {key[3] for key in files[f"{MODEL}/keys"]} == {HEADLINE}
    assert values[0] == values[1] == values[2] != []


def test_what_a_night_holds_under_both_names_counts_under_the_new_one(tmp_path: Path):
    write_night(Store(tmp_path), NightPlan(1), [*cases_named(OLD), *cases_named(HEADLINE)])

    history = read_stores([str(tmp_path)], aliases=ALIASES)

    (night,) = history.of(MODEL)
    assert history.processes(night).cases() == [HEADLINE]
    assert {verdict.case for verdict in night.verdicts} == {HEADLINE}
    assert history.processes(night).figure(derive.STEP, HEADLINE).n == 5
