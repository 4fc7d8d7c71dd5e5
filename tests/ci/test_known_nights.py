"""A regression's life over nights: new, confirmed, taken on by an owner, fixed; and a renamed case that goes on."""

import datetime as dt
from dataclasses import replace

import pytest

from ci.accept.night import accept_night
from ci.accept.regression import Decision, make_entries, of_night
from ci.exits import Exit
from ci.policy import Alias, Aliases, KnownRegressions, load_policy
from tests.ci.nights import CASE, QUIET, FakeNight, exact, make_case, make_record, make_records, timed

SLOWER = [value * 1.1 for value in QUIET]
TODAY = dt.datetime.now(dt.UTC).date()
DECISION = Decision("kernels", "a check that batches need", TODAY, TODAY + dt.timedelta(days=30))


@pytest.fixture
def nights(tmp_path, monkeypatch):
    """Nights a day apart."""
    days = (f"2020-01-{day:02d}T03:00:00Z" for day in range(1, 31))
    monkeypatch.setattr("ci.judged_night.utc_now", lambda: next(days))
    return FakeNight(tmp_path)


@pytest.fixture
def decide(monkeypatch):
    """Put another policy in the place of the shipped one."""

    def put(**changes):
        monkeypatch.setattr("ci.nightly.load_policy", lambda: replace(load_policy(), **changes))

    return put


def measured(nights, values):
    """The night of these times."""
    (night,) = nights.night(make_records(values)).nights
    return night


def state(night):
    (verdict,) = [v for v in night.verdicts if v.metric == "device_us"]
    return verdict.known


def test_a_regression_is_new_then_confirmed_then_known_then_fixed(nights, decide):
    base = measured(nights, QUIET)
    first, second = measured(nights, SLOWER), measured(nights, SLOWER)
    entries = make_entries(of_night(second), DECISION, KnownRegressions())
    decide(known=KnownRegressions(regression=entries))
    third, fourth, fixed = measured(nights, SLOWER), measured(nights, SLOWER), measured(nights, QUIET)

    told = (first, second, third, fourth, fixed)
    assert [state(night) for night in told] == ["new", "confirmed", "acknowledged", "acknowledged", "fixed"]
    assert [night.exit_code for night in told] == [1, 1, 0, 0, 0]
    assert [night.accepted for night in told] == [False, False, False, False, True]
    assert {night.base_night for night in told} == {base.id}  # nobody is judged against the slower ones
    assert any("kernels removes it" in note for note in fixed.notes)


def test_a_second_slowdown_cannot_hide_behind_a_known_one(nights, decide):
    measured(nights, QUIET)
    entries = make_entries(of_night(measured(nights, SLOWER)), DECISION, KnownRegressions())
    decide(known=KnownRegressions(regression=entries))

    night = measured(nights, [value * 1.25 for value in QUIET])

    assert (state(night), night.exit_code) == ("confirmed", Exit.REGRESSED)


def test_an_accepted_night_is_what_later_ones_are_judged_by(nights):
    measured(nights, QUIET)
    slower = measured(nights, SLOWER)
    accept_night(nights.open(), slower.id, "kernels", "the new check costs this much")

    night = measured(nights, SLOWER)

    assert night.base_night == slower.id
    assert (night.exit_code, night.accepted) == (Exit.PASS, True)


@pytest.mark.parametrize(("is_named", "code"), [(True, Exit.REGRESSED), (False, Exit.MISSING)])
def test_a_renamed_case_goes_on_and_without_an_alias_it_is_missing(nights, decide, is_named, code):
    def renamed(name, factor):
        cases = [make_case(), make_case(name)]
        return [
            make_record([timed(v), timed(factor * v, case=name), exact(1.0, case=name)], cases=cases) for v in QUIET
        ]

    nights.night(renamed("old", 1.0))
    why = {"reason": "the name says whose it is", "owner": "kernels", "date": "2026-11-29"}
    decide(aliases=Aliases(alias=[Alias(old="old", new="new", **why)] if is_named else []))

    result = nights.night(renamed("new", 1.1), selected=[CASE, "new"])

    assert result.code == code
