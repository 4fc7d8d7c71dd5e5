"""The gate's verdicts on made-up blocks with a known answer, and on recorded processes of one code on an H200."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from benchmarks.harness.stats.gate_power import rate_with
from benchmarks.harness.stats.modes import mode_distance_pct
from benchmarks.harness.stats.paired import (
    Design,
    Family,
    PairLimits,
    block_difference,
    confirm,
    detectable_pct,
    estimate,
    judge_unsuspected,
    power,
    screen,
    sign_flip_p,
)

RECORDED = Path(__file__).parents[1] / "ci" / "h200-2026-11-29-process-medians.json"
LIMITS = PairLimits()  # tested against 0.5 %, 1.5 % counts
US = 100.0  # a time far above any floor
NOISE = [0.3, -0.2, 0.1, -0.3, 0.2, -0.1, 0.25, -0.25, 0.15, -0.15, 0.05, -0.05]  # percent, mean zero


def blocks(effect_pct, noise=NOISE):
    return [math.log1p(effect_pct / 100) + n / 100 for n in noise]


def confirm_one(diffs, limits=LIMITS, median_us=US):
    return confirm([Family(diffs, limits, median_us)])[0]


def process_medians(rng, shape, *, spread, slow_share=0.0):
    slow = np.where(rng.random(shape) < slow_share, math.log(1.12), 0.0)
    return 100 * np.exp(rng.normal(0, spread, shape) + slow)


def gate(rng, limits=LIMITS, *, effect_pct=0.0, **noise):
    """The verdict of both stages on one series of simulated processes."""
    stages = []
    for n in (6, 12):
        base = process_medians(rng, (n, 2), **noise)
        head = process_medians(rng, (n, 2), **noise) * (1 + effect_pct / 100)
        diffs = [block_difference(list(b), list(h)) for b, h in zip(base, head, strict=True)]
        stages.append((diffs, limits, 100.0, list(base.flat), list(head.flat)))
    screened = screen(*stages[0])
    return confirm([Family(*stages[1])])[0] if screened.suspect else judge_unsuspected(screened)


def test_a_block_is_the_ratio_of_its_sides_geometric_means():
    assert block_difference([1.0, 4.0], [2.0, 4.0]) == pytest.approx(math.log(math.sqrt(8) / 2))


@pytest.mark.parametrize("bad", [None, math.nan, math.inf, 0.0, -1.0], ids=str)
def test_a_block_with_an_invalid_time_makes_the_series_invalid(bad):
    assert math.isnan(block_difference([1.0, bad], [1.0, 1.0]))
    assert math.isnan(block_difference([1.0, 1.0], [bad, 1.0]))
    diffs = [*blocks(0)[:5], block_difference([1.0, bad], [1.0, 1.0])]

    screened = screen(diffs, LIMITS, US)

    assert not screened.suspect
    for judged in (judge_unsuspected(screened), confirm_one(diffs)):
        assert judged.verdict == "invalid"
        assert judged.reason.startswith("1 of 6 blocks hold a process without a valid time")
        assert judged.estimate_pct is None


def test_sides_that_both_take_no_time_are_invalid_not_equal():
    assert math.isnan(block_difference([0.0, 0.0], [0.0, 0.0]))


def test_estimate_is_students_paired_test():
    before, after = [9.1, 8.7, 9.9, 9.3, 9.0], [9.4, 9.1, 9.9, 9.9, 9.2]
    logs = np.log(after), np.log(before)

    e = estimate(list(logs[0] - logs[1]))

    textbook = stats.ttest_rel(*logs, alternative="greater")
    assert e.p_above == pytest.approx(textbook.pvalue)
    assert e.p_below == pytest.approx(1 - textbook.pvalue)
    interval = stats.ttest_rel(*logs).confidence_interval(0.95)
    assert (e.low, e.high) == pytest.approx((interval.low, interval.high))


def test_three_values_have_the_textbook_interval():
    e = estimate([0.01, 0.02, 0.03])  # sample, not population, standard deviation: 0.01; t(0.975, 2) = 4.302653

    assert e.mean == pytest.approx(0.02)
    assert e.high - e.mean == pytest.approx(4.302653 * 0.01 / math.sqrt(3), rel=1e-6)
    assert e.inner_high - e.mean == pytest.approx(2.919986 * 0.01 / math.sqrt(3), rel=1e-6)


def test_sign_flip_counts_what_was_observed():
    assert sign_flip_p([0.02] * 12) == pytest.approx(1 / 4096)
    assert sign_flip_p([0.02 + 0.001 * i for i in range(24)]) == pytest.approx(1 / 4096)
    assert sign_flip_p([0.01, 0.02, 0.03]) == pytest.approx(1 / 8)
    assert sign_flip_p([-0.01, -0.02, -0.03]) == 1.0


def test_a_clear_slowdown_is_regressed_with_its_numbers():
    screened = screen(blocks(3)[:6], LIMITS, US)
    judged = confirm_one(blocks(3))

    assert screened.suspect
    assert judged.verdict == "regressed"
    assert judged.estimate_pct == pytest.approx(3.0)
    assert judged.low_pct < 3.0 < judged.high_pct
    assert judged.q < 1e-6
    assert judged.sign_flip_p == pytest.approx(1 / 4096)
    assert judged.reason.startswith("+3.00 % (95 % +2.87..+3.13), limit 1.5 %; beyond 0.5 % in 12 fresh blocks, q ")


def test_a_speed_up_is_judged_like_the_slowdown_that_undoes_it():
    slower, faster = confirm_one(blocks(3)), confirm_one([-d for d in blocks(3)])

    assert (slower.verdict, faster.verdict) == ("regressed", "improved")
    assert faster.p == pytest.approx(slower.p)
    assert faster.q == pytest.approx(slower.q)
    assert screen([-d for d in blocks(3)[:6]], LIMITS, US).suspect


def test_of_what_should_be_high_less_is_worse():
    limits = PairLimits(better="higher")

    assert confirm_one(blocks(-3), limits).verdict == "regressed"
    assert confirm_one(blocks(3), limits).verdict == "improved"


def test_a_significant_change_below_the_limit_is_unchanged():
    judged = confirm_one(blocks(1.2))

    assert judged.q < 0.001
    assert judged.verdict == "unchanged"
    assert "lies inside the limit 1.5 %" in judged.reason


def test_what_the_screen_lets_go_is_unchanged_only_when_the_interval_says_so():
    screened = screen(blocks(0)[:6], LIMITS, US)

    judged = judge_unsuspected(screened)

    assert not screened.suspect
    assert judged.verdict == "unchanged"
    assert judged.n_blocks == 6
    assert judged.q is None


def test_a_mean_beyond_the_limit_with_an_interval_across_zero_is_no_regression():
    diffs = [d / 100 for d in (12.0, -5.0, 9.0, -4.0, 11.0, -3.0, 10.0, -6.0, 8.0, -4.0, 12.0, -1.0)]  # mean +3.3 %

    judged = confirm_one(diffs)

    assert judged.estimate_pct > LIMITS.limit_pct
    assert judged.low_pct < 0 < judged.high_pct
    assert judged.verdict == "blind"
    assert not screen(diffs[:6], LIMITS, US).suspect


def test_an_undecided_series_that_could_see_its_promise_is_inconclusive():
    judged = confirm_one(blocks(1.45))

    assert judged.detectable_pct < LIMITS.promise_pct
    assert judged.verdict == "inconclusive"
    assert judged.reason.endswith("measure more blocks")


def test_no_spread_at_all_decides_at_once():
    assert confirm_one([math.log(1.02)] * 12).verdict == "regressed"
    same = confirm_one([0.0] * 12)
    assert same.verdict == "unchanged"
    assert same.detectable_pct == pytest.approx(1.5)


@pytest.mark.parametrize("n", [0, 1, 3])
def test_few_blocks_are_inconclusive_and_say_how_many_it_takes(n):
    screened = screen(blocks(20)[:n], LIMITS, US)

    assert not screened.suspect
    for judged in (judge_unsuspected(screened), confirm_one(blocks(20)[:n])):
        assert (judged.verdict, judged.reason) == ("inconclusive", f"{n} blocks; at least 4 are needed")


def test_the_floor_hides_tenths_of_microseconds_and_not_a_doubled_short_kernel():
    limits = PairLimits(floor_us=0.15)

    assert confirm_one(blocks(100), limits, median_us=5.0).verdict == "regressed"
    assert confirm_one(blocks(2.5), limits, median_us=5.0).verdict == "unchanged"  # 0.125 us
    assert confirm_one(blocks(2.5), limits, median_us=50.0).verdict == "regressed"


def test_suspects_pay_for_each_other_and_ungated_ones_do_not_count():
    weak = Family(blocks(1.6, [8 * n for n in NOISE]), LIMITS, US)
    noise = [Family(blocks(0), LIMITS, US)] * 9
    shown = [Family(f.diffs, PairLimits(gated=False), US) for f in noise]

    alone, among, beside = (confirm([weak, *others])[0] for others in ([], noise, shown))

    assert among.q == pytest.approx(10 * alone.q)
    assert beside.q == alone.q
    assert (alone.verdict, among.verdict) == ("regressed", "blind")


def test_q_is_benjamini_hochbergs():
    effects = [1.6, 1.8, 2.0, 2.2]
    families = [Family(blocks(e, [6 * n for n in NOISE]), LIMITS, US) for e in effects]

    judged = confirm(families)

    adjusted = stats.false_discovery_control([j.p for j in judged], method="bh")
    assert [j.q for j in judged] == pytest.approx(list(adjusted))


def test_identical_code_is_seldom_suspect_and_never_regressed():
    rng = np.random.default_rng(7)

    verdicts = [gate(rng, spread=0.005) for _ in range(500)]

    assert not [j for j in verdicts if j.verdict in {"regressed", "improved"}]
    assert sum(j.verdict == "unchanged" for j in verdicts) > 470


def test_a_step_of_a_linear_drift_falls_out_of_abba_blocks():
    drift = [100 * (1 + 0.01 * i) for i in range(24)]  # 1 % slower with each process
    abba = [drift[4 * k : 4 * k + 4] for k in range(6)]

    diffs = [block_difference([a, d], [b, c]) for a, b, c, d in abba]

    assert abs(estimate(diffs).mean) < 1e-4
    assert not screen(diffs, LIMITS, US).suspect


def test_two_modes_raise_no_alarm_and_are_named():
    rng = np.random.default_rng(11)

    judged = [gate(rng, spread=0.003, slow_share=0.3) for _ in range(500)]

    assert sum(j.verdict in {"regressed", "improved"} for j in judged) <= 2  # 0.5 %
    blind = [j for j in judged if j.verdict == "blind"]
    assert len(blind) > 450
    assert all(j.detectable_pct > 2 for j in blind)
    named = [j for j in blind if j.modes_pct is not None]
    assert len(named) > 0.7 * len(blind)  # five slow processes of twelve, or seven, leave too few of one mode
    assert named[0].reason.endswith("its processes fall into two modes 12 % apart")


def test_a_screen_of_two_modes_promises_what_its_stricter_rate_finds():
    diffs = blocks(0, [8 * n for n in NOISE])[:6]
    near, apart = [10.0 + 0.01 * i for i in range(12)], [10.0] * 6 + [11.2] * 6

    one, two = (screen(diffs, LIMITS, US, near, medians) for medians in (near, apart))

    assert (one.modes_pct, two.modes_pct) == (None, pytest.approx(12))
    assert two.detectable_pct > one.detectable_pct
    assert two.detectable_pct == pytest.approx(
        detectable_pct(100 * two.estimate.sd, LIMITS, Design(rate=rate_with(two.modes_pct)))
    )


def test_recorded_series_of_two_modes_are_labelled_and_quiet_ones_are_not():
    recorded = json.loads(RECORDED.read_text())["medians_us"]

    labelled = {name for name, medians in recorded.items() if mode_distance_pct(medians) is not None}

    assert labelled == {"commit_fwd_b1", "commit_vllm_b1"}


def test_recorded_spread_lets_gates_find_2_percent_from_32_requests_on_and_says_where_not():
    recorded = json.loads(RECORDED.read_text())["medians_us"]

    # A side's mean of two processes on both sides: block differences spread as processes do.
    found = {name: detectable_pct(100 * np.std(np.log(v), ddof=1), LIMITS) for name, v in recorded.items()}

    assert all(pct < 1.75 for name, pct in found.items() if name.endswith(("_b32", "_b128")))
    blind = {name for name, pct in found.items() if pct > 3}
    assert blind == {"commit_fwd_b1", "commit_vllm_b1", "copy_b1", "native_b1"}


def test_modes_need_values():
    assert mode_distance_pct([1.0] * 4 + [2.0] * 3) is None
    assert mode_distance_pct([1.0] * 4 + [2.0] * 4) == pytest.approx(100)
    assert mode_distance_pct([1.0] * 8) is None


@pytest.mark.parametrize("sd_pct", [0.3, 0.8, 2.0])
def test_the_detectable_effect_is_found_four_times_of_five(sd_pct):
    rng = np.random.default_rng(3)
    effect = detectable_pct(sd_pct, LIMITS)

    found = 0
    for _ in range(600):
        first, second = (math.log1p(effect / 100) + rng.normal(0, sd_pct / 100, n) for n in (6, 12))
        e = estimate(list(second), LIMITS.margin_pct)
        is_found = e.p_above <= 0.05 / 3 and e.mean >= math.log1p(LIMITS.limit_pct / 100)
        found += screen(list(first), LIMITS, US).suspect and is_found

    assert power(effect, sd_pct, LIMITS) == pytest.approx(0.8, abs=0.001)
    assert abs(found / 600 - 0.8) < 4 * math.sqrt(0.8 * 0.2 / 600)


def test_limits_refuse_what_contradicts_itself():
    with pytest.raises(ValueError, match="margin 2"):
        PairLimits(margin_pct=2.0, limit_pct=1.5)
    with pytest.raises(ValueError, match="floor_us: expected a finite number >= 0, got nan"):
        PairLimits(floor_us=math.nan)
    with pytest.raises(ValueError, match="compared exactly"):
        PairLimits(better="equal")
