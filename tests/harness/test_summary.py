import math

import pytest

from benchmarks.harness.stats.summary import median, median_interval, summarise


def test_median_of_an_even_number_of_values_is_the_mean_of_the_middle_two():
    assert median([4.0, 1.0, 3.0, 2.0]) == 2.5


def test_interval_is_none_below_six_values():
    assert median_interval([1.0, 2.0, 3.0, 4.0, 5.0]) is None


def test_interval_of_six_values_is_their_range():
    # P(all six on one side) twice over is 2/64, so the extremes cover 96.9 %.
    assert median_interval([6.0, 1.0, 5.0, 2.0, 4.0, 3.0]) == (1.0, 6.0)


@pytest.mark.parametrize(("n", "skipped"), [(8, 0), (9, 1), (20, 5), (30, 9), (40, 13)])
def test_interval_matches_published_ranks(n: int, skipped: int):
    # Ranks of the sign test's interval for 95 %, as printed in textbooks of nonparametric statistics.
    values = [float(i) for i in range(n)]

    assert median_interval(values) == (values[skipped], values[-1 - skipped])


def test_higher_confidence_gives_a_wider_interval():
    values = [float(i) for i in range(40)]
    narrow, wide = median_interval(values, 0.9), median_interval(values, 0.99)

    assert narrow is not None
    assert wide is not None
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


def test_interval_covers_the_median_about_as_often_as_it_says():
    import random

    rng = random.Random(5)
    hits = 0
    for _ in range(2000):
        interval = median_interval([rng.lognormvariate(0.0, 1.0) for _ in range(15)])
        assert interval is not None
        hits += interval[0] <= 1.0 <= interval[1]

    assert 0.95 <= hits / 2000 <= 0.975  # exactly 96.5 % for 15 values


def test_summary_says_how_wide_the_interval_is():
    summary = summarise([10.0, 10.0, 10.0, 10.0, 11.0, 9.0])

    assert (summary.median, summary.low, summary.high) == (10.0, 9.0, 11.0)
    assert summary.relative_half_width == pytest.approx(0.1)


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf]])
def test_values_without_a_number_are_refused(values: list[float]):
    with pytest.raises(ValueError, match="values: expected"):
        summarise(values)
