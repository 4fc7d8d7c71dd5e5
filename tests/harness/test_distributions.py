"""Each figure against `scipy.stats`, to the bit."""

import math

import numpy as np
import pytest
from scipy import stats

from benchmarks.harness.stats.distributions import adjusted, chi2_quantile, t_above, t_quantile

FREEDOMS = (1, 2, 4, 7.31, 9, 40)


@pytest.mark.parametrize("freedom", FREEDOMS)
def test_quantiles_and_tails_of_students_t_are_those_of_scipy(freedom):
    shares, values = np.linspace(0.001, 0.999, 99), np.array([-math.inf, -300, -1.5, 0, 1e-9, 2.7, 40, math.inf])

    assert [t_quantile(share, freedom) for share in shares] == stats.t.ppf(shares, freedom).tolist()
    assert t_above(values, freedom).tolist() == stats.t.sf(values, freedom).tolist()
    assert math.isnan(t_above(math.nan, freedom))


@pytest.mark.parametrize("freedom", FREEDOMS)
def test_quantiles_of_chi_squared_are_those_of_scipy(freedom):
    shares = np.linspace(0.001, 0.999, 99)

    assert chi2_quantile(shares, freedom).tolist() == stats.chi2.ppf(shares, freedom).tolist()


def test_p_values_are_adjusted_in_their_order_and_none_is_none():
    p_values = [0.02, 0.02, 0.5, 0.001, 0.02]

    assert adjusted(p_values) == stats.false_discovery_control(p_values, method="bh").tolist()
    assert adjusted([]) == []


@pytest.mark.parametrize("wrong", [math.nan, -0.1, 1.1])
def test_a_p_value_that_is_none_is_no_question_of_the_others(wrong):
    with pytest.raises(ValueError, match="0 and 1"):
        adjusted([0.01, wrong])
