"""Which candidate a batch gets: no churn, the simpler of equals, and one set of bits for all batches."""

import pytest

from benchmarks.tuning_journal import Candidate, Outcome, Point
from ci.choosing import MARGIN_PCT, Tried, choose, choose_form


def outcome(form, us, bits="a", half_width=0.01):
    if us is None:
        return Outcome(Candidate(form, {"BV": 16}), "wrong", "off", bits)
    return Outcome(Candidate(form, {"BV": 16}), "right", "", bits, us, us - half_width, us + half_width)


def tried(batch, *outcomes, today="now"):
    return Tried(Point("verify", "fp32", 12, batch, 8), Candidate(today, {"BV": 16}), outcomes)


def chosen(points, **options):
    choices, warning = choose(points, **options)
    return [choices[one.point.name].chosen.candidate.form for one in points if one.point.name in choices], warning


@pytest.mark.parametrize(("us", "form"), [(10.0, "quick"), (9.95, "now"), (10.2, "now")])
def test_a_row_changes_only_for_more_than_the_margin(us, form):
    quick = 9.7 if form == "quick" else 9.9
    point = tried(32, outcome("now", us), outcome("quick", quick if us != 10.2 else 10.15))

    assert MARGIN_PCT == 1.0
    assert chosen([point]) == ([form], "")


def test_candidates_whose_intervals_meet_are_equally_quick():
    point = tried(32, outcome("now", 11.0, half_width=0.6), outcome("quick", 10.0, half_width=0.6))

    assert chosen([point]) == (["now"], "")


def test_of_equally_quick_ones_the_simpler_form_is_taken():
    point = tried(32, outcome("now", 20.0), outcome("simple", 10.05), outcome("clever", 10.0))

    assert chosen([point]) == (["simple"], "")


def test_all_batches_get_the_same_bits_where_that_loses_least():
    small = tried(1, outcome("now", 7.0, "a"), outcome("split", 4.0, "a"), outcome("wide", 4.4, "b"))
    large = tried(32, outcome("now", 28.0, "a"), outcome("split", 20.0, "a"), outcome("wide", 11.0, "b"))

    assert chosen([small, large]) == (["wide", "wide"], "")
    assert chosen([small, large], any_bits=True) == (["split", "wide"], "")


def test_batches_may_differ_in_candidates_of_equal_bits():
    small = tried(1, outcome("now", 7.0, "a"), outcome("split", 4.0, "b"), outcome("wide", 5.0, "b"))
    large = tried(32, outcome("now", 28.0, "c"), outcome("split", 20.0, "d"), outcome("wide", 11.0, "d"))

    assert chosen([small, large]) == (["split", "wide"], "")


def test_a_candidate_that_is_wrong_at_one_batch_serves_only_the_others():
    small = tried(1, outcome("now", 7.0, "a"), outcome("quick", None))
    large = tried(32, outcome("now", 28.0, "a"), outcome("quick", 11.0, "a"))

    assert chosen([small, large]) == (["now", "quick"], "")


def test_without_one_candidate_for_all_batches_a_warning_says_so():
    small = tried(1, outcome("now", 7.0, "a"), outcome("quick", None))
    large = tried(32, outcome("now", None), outcome("quick", 11.0, "a"))

    forms, warning = chosen([small, large])

    assert forms == ["now", "quick"]
    assert "bits may depend on the batch" in warning


def test_a_point_without_a_right_candidate_gets_none():
    assert chosen([tried(1, outcome("now", None))]) == ([], "")


def test_one_form_serves_all_points_and_is_the_one_that_loses_least():
    small = tried(1, outcome("now", 7.0), outcome("split", 4.0), outcome("wide", 4.4))
    large = tried(32, outcome("now", 28.0), outcome("split", 20.0), outcome("wide", 11.0))

    assert choose_form([small, large], ["now", "split", "wide"]) == "wide"
    assert choose_form([small, large], ["now", "split"]) == "split"


def test_todays_form_stays_where_another_is_as_quick():
    points = [tried(batch, outcome("old", 10.0), outcome("now", 10.05)) for batch in (1, 32)]

    assert choose_form(points, ["now", "old"]) == "now"


def test_a_form_that_is_wrong_somewhere_serves_nowhere():
    points = [
        tried(1, outcome("now", 7.0), outcome("quick", None)),
        tried(32, outcome("now", 28.0), outcome("quick", 5.0)),
    ]

    assert choose_form(points, ["now", "quick"]) == "now"
    assert choose_form(points, ["quick"]) == "quick"  # the first point has no right candidate at all
    assert choose_form([tried(1, outcome("now", None))], ["now"]) is None
