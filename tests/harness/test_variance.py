"""Variance components on made-up data whose answer is known."""

import math
import random

import pytest

from benchmarks.harness.stats.variance import Process, components, pooled_sd_pct


def nested(*occasions):
    return [[Process.of(samples) for samples in occasion] for occasion in occasions]


def made_up(seed, *, sizes, mean=100.0, within=1.0, between=0.0, occasion=0.0):
    """Samples drawn with known standard deviations; ``sizes`` gives samples per process per occasion."""
    draw = random.Random(seed)
    result = []
    for processes in sizes:
        here = mean + draw.gauss(0, occasion)
        result.append([])
        for count in processes:
            level = here + draw.gauss(0, between)
            result[-1].append(Process.of([level + draw.gauss(0, within) for _ in range(count)]))
    return result


def test_balanced_samples_give_the_textbook_answer():
    # Within: each process spreads by 1 about its mean (variance 2). Process means 9, 11 | 19, 21; occasions 10, 20.
    found = components(nested([[8, 10], [10, 12]], [[18, 20], [20, 22]]))

    assert found.within == pytest.approx(2.0)
    assert found.between_processes == pytest.approx((4.0 - 2.0) / 2)  # mean square 4 = within + 2 * process
    assert found.between_occasions == pytest.approx((200.0 - 4.0) / 4)
    assert (found.num_occasions, found.num_processes, found.num_samples, found.mean) == (2, 4, 8, 15.0)
    assert found.clipped == ()


def test_unbalanced_samples_give_the_answer_of_the_expected_mean_squares():
    # n = (1, 3 | 2): N 6, sum n_ij^2/n_i = 10/4 + 2 = 4.5, sum n_ij^2/N = 14/6, sum n_i^2/N = 20/6.
    found = components(nested([[6.0], [9.0, 10.0, 11.0]], [[20.0, 22.0]]))

    within = (2.0 + 2.0) / 3
    process = (1 * 9.0 + 3 * 1.0 - within) / (6 - 4.5)  # occasion mean 9: squares 1*(6-9)^2 + 3*(10-9)^2
    grand = 78 / 6
    square = 4 * (9 - grand) ** 2 + 2 * (21 - grand) ** 2
    occasion = (square - within - (4.5 - 14 / 6) * process) / (6 - 20 / 6)
    assert found.within == pytest.approx(within)
    assert found.between_processes == pytest.approx(process)
    assert found.between_occasions == pytest.approx(occasion)


def test_known_spreads_come_back_from_many_unbalanced_occasions():
    sizes = [[5 + (i + j) % 9 for j in range(4 + i % 3)] for i in range(400)]

    found = components(made_up(7, sizes=sizes, within=1.0, between=2.0, occasion=3.0))

    assert found.sd_pct(found.within) == pytest.approx(1.0, rel=0.03)
    assert found.sd_pct(found.between_processes) == pytest.approx(2.0, rel=0.05)
    assert found.sd_pct(found.between_occasions) == pytest.approx(3.0, rel=0.08)


def test_estimates_are_unbiased_over_small_unbalanced_data():
    sizes = [[2, 7], [3, 3, 4], [9]]

    found = [components(made_up(seed, sizes=sizes, within=1.0, between=3.0, occasion=4.0)) for seed in range(3000)]

    # Clipping lifts the mean of the occasions' part, so only components that are rarely clipped are compared.
    assert sum(f.within for f in found) / len(found) == pytest.approx(1.0, rel=0.03)
    assert sum(f.between_processes for f in found) / len(found) == pytest.approx(9.0, rel=0.08)


def test_one_occasion_leaves_its_component_unknown():
    found = components(nested([[9, 11], [19, 21]]))

    assert found.between_occasions is None
    assert found.between_processes == pytest.approx((100 - 2) / 2)
    assert found.sd_pct(found.between_occasions) is None


def test_one_process_each_leaves_processes_and_occasions_unknown():
    found = components(nested([[9, 11]], [[19, 21]]))

    assert found.within == pytest.approx(2.0)
    assert found.between_processes is None
    assert found.between_occasions is None


def test_single_samples_tell_no_component():
    found = components(nested([[9], [11]], [[10], [12]]))

    assert (found.within, found.between_processes, found.between_occasions) == (None, None, None)


def test_negative_estimate_is_zero_and_named():
    found = components(nested([[0, 20], [1, 19]], [[0, 20], [2, 18]]))

    assert found.between_processes == found.between_occasions == 0.0
    assert found.clipped == ("between_processes", "between_occasions")


def test_a_constant_series_has_no_spread():
    found = components(nested([[5, 5], [5, 5]], [[5, 5], [5, 5]]))

    assert (found.within, found.between_processes, found.between_occasions, found.clipped) == (0, 0, 0, ())


def test_a_mean_of_zero_has_no_percent():
    found = components(nested([[-1, 1], [-1, 1]]))

    assert found.mean == 0
    assert found.sd_pct(found.within) is None


def test_empty_occasions_do_not_count():
    assert components([[], *nested([[9, 11], [19, 21]]), []]).num_occasions == 1


@pytest.mark.parametrize("occasions", [[], [[]]])
def test_no_process_is_an_error(occasions):
    with pytest.raises(ValueError, match="at least one process"):
        components(occasions)


@pytest.mark.parametrize("samples", [[], [1.0, math.nan], [math.inf]])
def test_samples_without_a_number_are_refused(samples):
    with pytest.raises(ValueError, match="at least one"):
        Process.of(samples)


def test_pooled_spread_ignores_what_occasions_differ_by():
    assert pooled_sd_pct([[99, 101], [199, 201], [5]]) == pytest.approx(100 * math.sqrt(2) / 150)
    assert pooled_sd_pct([[5], [6]]) is None
