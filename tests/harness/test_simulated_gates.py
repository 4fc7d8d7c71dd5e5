"""What the gate's rules do on simulated processes; `python -m tests.harness.simulated_gates 2000` is the larger run."""

from tests.harness.simulated_gates import SPREADS, TWO_MODES, clean_gates, power


def test_clean_gates_of_300_series_hardly_alarm_and_suspect_few():
    found = clean_gates(60, seed=1)

    assert found.num_with_alarm <= 1
    assert found.alarms_of_one_mode == 0
    assert found.suspects < 6


def test_quiet_series_are_seen_at_2_percent_and_two_modes_are_not():
    found = power(2.0, 10, seed=2)

    assert found[~TWO_MODES & (SPREADS < 0.005)].mean() > 0.99
    assert found[~TWO_MODES & (SPREADS > 0.005)].mean() > 0.95
    assert found[TWO_MODES].mean() < 0.1


def test_what_is_below_the_limit_is_not_called():
    assert power(1.0, 10, seed=3).mean() < 0.01


def test_a_large_slowdown_is_found_in_two_modes_too():
    assert power(12.0, 10, seed=4).mean() > 0.98
