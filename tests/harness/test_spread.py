"""Brown-Forsythe over processes, on made-up processes with known spreads."""

import math
import random

import pytest

from benchmarks.harness.stats.spread import MIN_PROCESSES, compare_spread


def processes(rng, count, sd, *, common_sd=0.0, num_series=20, level=1.0):
    """Processes whose series scatter log-normally, with a part that all series of one process share."""
    found = []
    for _ in range(count):
        common = rng.gauss(0, common_sd)
        found.append({f"s{at}": level * (1 + at) * math.exp(common + rng.gauss(0, sd)) for at in range(num_series)})
    return found


def test_equal_spreads_give_a_ratio_near_one():
    rng = random.Random(1)

    found = compare_spread(processes(rng, 16, 0.005), processes(rng, 16, 0.005))

    assert found.low < 1 < found.high
    assert found.ratio == pytest.approx(1, abs=0.15)
    assert found.p_value > 0.05
    assert found.share_rejected < 0.25
    assert (found.num_series, found.num_a, found.num_b) == (20, 16, 16)


def test_twice_the_spread_is_found():
    rng = random.Random(2)

    found = compare_spread(processes(rng, 16, 0.005), processes(rng, 16, 0.010))

    assert found.ratio == pytest.approx(2, rel=0.2)
    assert found.low > 1
    assert found.p_value < 0.001


def test_shift_of_level_is_told_and_is_no_spread():
    rng = random.Random(3)

    found = compare_spread(processes(rng, 16, 0.005), processes(rng, 16, 0.005, level=1.02))

    assert found.shift_pct == pytest.approx(2, abs=0.4)
    assert found.low < 1 < found.high


def test_what_a_process_shares_over_its_series_does_not_multiply_the_evidence():
    rejected = 0
    for seed in range(100):
        rng = random.Random(seed)
        groups = [processes(rng, 8, 0.002, common_sd=0.006, num_series=8) for _ in range(2)]
        rejected += compare_spread(*groups).p_value < 0.05

    # A test that took series for independent would reject several times as often.
    assert rejected / 100 < 0.12


def test_too_few_processes_and_nothing_in_common_say_nothing():
    rng = random.Random(4)
    few, many = processes(rng, MIN_PROCESSES - 1, 0.01), processes(rng, 8, 0.01)

    assert compare_spread(few, many) is None
    assert compare_spread(many, [{"other": 1.0}] * 8) is None
    assert compare_spread([{"s": 1.0}] * 8, [{"s": 1.0}] * 8) is None


def test_same_processes_give_the_same_figures_twice():
    rng = random.Random(5)
    a, b = processes(rng, 8, 0.01), processes(rng, 8, 0.01)

    assert compare_spread(a, b) == compare_spread(a, b)
