"""Steps and first nights on simulated series with a known answer."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from benchmarks.harness.stats.change_point import (
    adjusted,
    night_value,
    steps,
    surprise,
    to_confirm,
)

RECORDED = Path(__file__).parents[1] / "ci" / "h200-2026-11-29-process-medians.json"
NIGHTS = 60
LIMIT_PCT = 1.5
KINDS = ("white", "autocorrelated", "spiky")


def nights(kind, rng, n=NIGHTS, *, noise_pct=0.5):
    """Values about 100 us: white noise, AR(1) with 0.4, or white noise with spikes of +8 % in 3 % of nights."""
    logs = rng.normal(0, noise_pct / 100, n)
    if kind == "autocorrelated":
        for i in range(1, n):
            logs[i] = 0.4 * logs[i - 1] + math.sqrt(1 - 0.4**2) * logs[i]
    if kind == "spiky":
        logs += (rng.random(n) < 0.03) * math.log(1.08)
    return 100 * np.exp(logs)


def stepped(values, at, pct):
    return np.concatenate([values[:at], values[at:] * (1 + pct / 100)])


def num_alarmed(kind, num_series, seed):
    """Series that raise an alarm on any of their nights, each night judged by the nights up to it."""
    rng = np.random.default_rng(seed)
    series = [nights(kind, rng) for _ in range(num_series)]
    return sum(any(steps(one[:night], LIMIT_PCT) for night in range(15, NIGHTS + 1)) for one in series)


def share_found(kind, pct, nights_after, num_series=200):
    rng = np.random.default_rng(5)
    found = 0
    for _ in range(num_series):
        values = stepped(nights(kind, rng, 40 + nights_after), 40, pct)
        found += any(abs(step.index - 40) <= 2 and step.change_pct > 0 for step in steps(values, LIMIT_PCT))
    return found / num_series


@pytest.mark.parametrize("kind", KINDS)
def test_flat_series_raise_no_alarm(kind):
    assert num_alarmed(kind, num_series=30, seed=1) == 0


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_at_most_one_of_300_flat_series_raises_an_alarm_in_60_nights(kind):
    assert num_alarmed(kind, num_series=300, seed=20261129) <= 1


@pytest.mark.parametrize(
    ("kind", "pct", "nights_after", "least"),
    [
        ("white", 2, 4, 0.65),
        ("white", 5, 3, 0.99),
        ("autocorrelated", 5, 4, 0.97),
        ("spiky", 2, 4, 0.5),
        ("spiky", 5, 4, 0.97),
    ],
)
def test_steps_are_found_within_nights(kind, pct, nights_after, least):
    assert share_found(kind, pct, nights_after) >= least


def test_two_nights_carry_no_alarm():
    assert share_found("white", 5, 2) <= 0.05


def test_a_step_is_placed_and_measured():
    values = stepped(nights("white", np.random.default_rng(3)), 40, 5)

    (step,) = steps(values, LIMIT_PCT)

    assert (step.index, step.nights_before, step.nights_after) == (40, 40, 20)
    assert step.change_pct == pytest.approx(5, abs=0.5)


def test_a_step_for_the_better_is_found_like_one_for_the_worse():
    values = stepped(nights("white", np.random.default_rng(3)), 40, -4)

    assert [round(step.change_pct) for step in steps(values, LIMIT_PCT)] == [-4]


def test_an_old_step_hides_no_new_one():
    rng = np.random.default_rng(9)
    for _ in range(20):
        flat = nights("white", rng)
        with_history = stepped(flat, 25, 10)

        alone, after_another = (steps(stepped(values, 50, 3), LIMIT_PCT) for values in (flat, with_history))

        assert [step.index for step in alone] == [step.index for step in after_another if step.index >= 45]
        assert len(after_another) == len(alone) + 1


@pytest.mark.parametrize("noise_pct", [0.0, 0.05, 0.2])
def test_changes_below_the_limit_hide_no_step(noise_pct):
    rng = np.random.default_rng(7)
    found = 0
    for _ in range(50):
        small = np.cumsum(rng.choice([-0.4, 0.0, 0.4], 12)).repeat(5)  # percent; a commit now and then
        values = stepped(nights("white", rng, noise_pct=noise_pct) * (1 + small / 100), 50, 5)
        found += any(abs(step.index - 50) <= 1 for step in steps(values, LIMIT_PCT))

    assert found >= 47


def test_one_spike_is_no_alarm_and_asks_for_a_confirmation():
    values = nights("white", np.random.default_rng(4), 30)
    spike = [*values[:-1], values[-1] * 1.08]

    assert steps(spike, LIMIT_PCT) == []
    assert steps([*spike, *values[:10]], LIMIT_PCT) == []
    assert to_confirm([surprise(spike)]) == [True]
    assert to_confirm([surprise(values)]) == [False]


def test_short_and_constant_series_have_no_steps():
    assert steps([100.0] * 11 + [110.0] * 3, LIMIT_PCT) == []
    assert steps([100.0] * 60, LIMIT_PCT) == []
    assert [step.index for step in steps([100.0] * 30 + [103.0] * 5, LIMIT_PCT)] == [30]


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -1.0], ids=str)
def test_values_that_are_none_are_refused(bad):
    with pytest.raises(ValueError, match="expected positive finite numbers"):
        steps([100.0] * 20 + [bad], LIMIT_PCT)


def test_a_surprise_is_a_robust_z():
    before = [99.0, 101.0] * 5
    spread = 1.4826 * math.log(101 / 99) / 2

    found = surprise([*before, 105.0])

    assert found.nights == 10
    assert found.z == pytest.approx((math.log(105) - math.log(99 * 101) / 2) / spread)
    assert found.p == pytest.approx(2 * stats.t.sf(found.z, 9))


def test_a_first_night_is_held_against_its_own_level_alone():
    values = [100.0, 100.2, 99.8] * 10 + [110.0, 110.2, 109.8] * 3 + [110.1]

    assert abs(surprise(values, level_start=30).z) < 4
    assert surprise(values).z > 4
    assert surprise(values, level_start=35) is None  # four nights are no level


def test_first_nights_of_flat_series_seldom_ask_and_real_slowdowns_mostly_do():
    rng = np.random.default_rng(8)
    asked = {"flat": 0, 2: 0, 5: 0}
    for _ in range(50):
        family = [surprise(nights("white", rng, 21)) for _ in range(60)]
        asked["flat"] += sum(to_confirm(family))
        for pct in (2, 5):
            slowed = surprise(stepped(nights("white", rng, 21), 20, pct))
            asked[pct] += to_confirm([slowed, *family])[0]

    assert asked["flat"] <= 10  # of 3000
    assert asked[5] >= 45


def test_series_without_history_are_asked_for_nothing():
    assert to_confirm([None, surprise([100.0] * 9 + [103.0]), None]) == [False, True, False]
    assert to_confirm([]) == []


def test_small_shifts_of_a_still_series_ask_for_nothing():
    assert to_confirm([surprise([100.0] * 9 + [100.5])]) == [False]


def test_a_nights_value_needs_five_processes():
    assert night_value([1.0, 2.0, 30.0, 3.0, 4.0]) == 3.0
    assert night_value([1.0, 2.0, 3.0, 4.0]) is None


def test_the_control_is_taken_out_only_where_that_lowers_the_spread():
    rng = np.random.default_rng(2)
    shared = rng.normal(0, 0.006, 40)
    controls = 50 * np.exp(shared + rng.normal(0, 0.001, 40))
    follows = 100 * np.exp(0.7 * shared + rng.normal(0, 0.002, 40))
    ignores = 100 * np.exp(rng.normal(0, 0.003, 40))

    calmer, coefficient = adjusted(follows, controls)

    assert coefficient == pytest.approx(0.7, abs=0.1)
    assert np.std(np.log(calmer)) < 0.6 * np.std(np.log(follows))
    assert adjusted(ignores, controls) == (list(ignores), 0.0)


def test_an_adjusted_step_stays_a_step():
    rng = np.random.default_rng(6)
    shared = rng.normal(0, 0.006, 60)
    values = stepped(100 * np.exp(shared + rng.normal(0, 0.002, 60)), 40, 3)

    calmer, coefficient = adjusted(values, 50 * np.exp(shared))

    assert coefficient > 0.7
    assert [step.index for step in steps(calmer, LIMIT_PCT)] == [40]


def test_recorded_commits_are_helped_by_the_copy_control_and_verifies_are_not():
    recorded = json.loads(RECORDED.read_text())["medians_us"]

    coefficients = {
        name: adjusted(recorded[f"{name}_b32"], recorded["copy_b32"])[1] for name in ("commit_vllm", "verify_vllm")
    }

    assert coefficients["commit_vllm"] == pytest.approx(0.74, abs=0.01)
    assert coefficients["verify_vllm"] == 0.0


def test_a_control_needs_as_many_nights_and_some_movement():
    assert adjusted([100.0, 101.0] * 10, [50.0] * 20)[1] == 0.0
    assert adjusted([100.0, 101.0], [50.0, 51.0]) == ([100.0, 101.0], 0.0)
    with pytest.raises(ValueError, match="one for each of the 2 values, got 1"):
        adjusted([100.0, 101.0], [50.0])
