"""Verdicts on made-up samples whose answer is known, and on recorded processes of one code on an H200."""

import json
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from benchmarks.harness.stats.verdict import Limits, Series, compare, discoveries, judge_night, summarize

RECORDED = Path(__file__).parents[1] / "ci" / "h200-2026-11-29-process-medians.json"
LIMITS = Limits(limit_pct=3.0, margin_pct=1.0)
QUIET = [100.0, 100.2, 99.8, 100.1, 99.9]


def judge(tonight, base, limits=LIMITS, *, exact=False):
    return judge_night([Series(tonight, base, limits, exact)])[0]


def scaled(values, factor):
    return [v * factor for v in values]


def recorded_medians():
    return {name: np.array(values) for name, values in json.loads(RECORDED.read_text())["medians_us"].items()}


def recorded_limits(name):
    num_requests = int(name.rsplit("_b", 1)[1])
    return Limits(3.0, 1.0) if num_requests >= 32 else Limits(5.0, 1.0) if num_requests >= 8 else Limits(10.0, 2.0)


def test_interval_equals_welchs_on_logarithms():
    tonight, base = [10.0, 11.0, 12.5, 10.7, 9.9], [9.0, 9.7, 9.3, 9.1, 9.9, 9.4]

    evidence = compare(tonight, base, Limits(3.0, 0.0))
    expected = stats.ttest_ind(np.log(tonight), np.log(base), equal_var=False)
    low, high = expected.confidence_interval(0.95)

    assert evidence.low_pct == pytest.approx(100 * math.expm1(low))
    assert evidence.high_pct == pytest.approx(100 * math.expm1(high))
    one_sided = stats.ttest_ind(np.log(tonight), np.log(base), equal_var=False, alternative="greater").pvalue
    assert evidence.p_worse == pytest.approx(one_sided)
    assert evidence.p_better == pytest.approx(1 - one_sided)


def test_summary_of_three_values_equals_the_textbook_interval():
    summary = summarize([math.exp(1.0), math.exp(2.0), math.exp(3.0)])

    half = 4.302653 / math.sqrt(3)  # t(0.975, 2) times the standard error of a sample sd of 1
    assert summary.value == pytest.approx(math.exp(2))
    assert math.log(summary.low) == pytest.approx(2 - half, abs=1e-5)
    assert math.log(summary.high) == pytest.approx(2 + half, abs=1e-5)
    assert summary.sd_pct == pytest.approx(100.0)


@pytest.mark.parametrize(
    ("factor", "verdict"), [(1.05, "regressed"), (0.95, "improved"), (1.0, "unchanged"), (1.015, "unchanged")]
)
def test_quiet_series_gets_the_verdict_of_its_shift(factor, verdict):
    judgement = judge(scaled(QUIET, factor), QUIET)

    assert judgement.verdict == verdict
    assert judgement.change_pct == pytest.approx(100 * (factor - 1), abs=1e-9)
    assert f"{judgement.change_pct:+.2f} %" in judgement.reason
    assert "limit 3 %" in judgement.reason


def test_higher_is_better_turns_the_verdict_round():
    limits = Limits(3.0, 1.0, better="higher")

    assert judge(scaled(QUIET, 1.05), QUIET, limits).verdict == "improved"
    assert judge(scaled(QUIET, 0.95), QUIET, limits).verdict == "regressed"


def test_significant_change_below_the_limit_is_not_regressed():
    judgement = judge(scaled(QUIET, 1.025), QUIET)

    assert judgement.evidence.p_worse < 0.001
    assert judgement.verdict == "unchanged"


def test_mean_beyond_the_limit_with_an_interval_across_zero_is_blind_not_regressed():
    noisy = [97.0, 99.0, 103.0, 106.0, 110.0]

    judgement = judge(noisy, QUIET)

    assert judgement.change_pct == pytest.approx(3.0)
    assert judgement.evidence.low_pct < 0 < judgement.evidence.high_pct
    assert judgement.verdict == "blind"
    assert judgement.detectable_pct > 3.0
    assert f"{judgement.detectable_pct:.1f} %" in judgement.reason


def test_quiet_series_at_the_limit_is_inconclusive():
    judgement = judge(scaled(QUIET, 1.0299), QUIET)

    assert judgement.verdict == "inconclusive"
    assert judgement.detectable_pct < 3.0


def test_detectable_effect_has_the_stated_power():
    # 4,000 made-up nights at the detectable effect of a known spread: the one-sided 5 % test must find about 80 %.
    rng = np.random.default_rng(7)
    sigma, n = 0.01, 8
    error, freedom = sigma * math.sqrt(2 / n), 2 * n - 2
    effect = math.log(1.01) + (stats.t.ppf(0.95, freedom) + stats.t.ppf(0.80, freedom)) * error
    tonight = np.exp(rng.normal(effect, sigma, (4000, n)))
    base = np.exp(rng.normal(0.0, sigma, (4000, n)))

    found = np.mean([compare(a, b, LIMITS).p_worse <= 0.05 for a, b in zip(tonight[:400], base[:400], strict=True)])
    stated = np.median([compare(a, b, LIMITS).detectable_pct for a, b in zip(tonight[:400], base[:400], strict=True)])

    assert 0.74 <= found <= 0.86
    assert stated == pytest.approx(100 * math.expm1(effect), rel=0.06)


@pytest.mark.parametrize("bad", [None, math.nan, math.inf, -math.inf, 0.0, -1.0])
def test_value_that_is_no_time_is_invalid_on_either_side(bad):
    broken = [*QUIET[:4], bad]

    tonight, base = judge(broken, QUIET), judge(QUIET, broken)

    assert tonight.verdict == base.verdict == "invalid"
    assert str(bad) in tonight.reason
    assert base.reason.startswith("base night: ")


def test_series_without_values_tonight_is_missing():
    assert judge([], QUIET).verdict == "missing"


def test_series_without_base_is_new_and_says_what_it_could_detect():
    judgement = judge(QUIET, None)

    assert judgement.verdict == "new"
    assert 1.0 < judgement.detectable_pct < 3.0
    assert "median 100 of 5 processes" in judgement.reason


def test_too_few_processes_decide_nothing():
    judgement = judge(scaled(QUIET[:4], 2.0), QUIET)

    assert judgement.verdict == "inconclusive"
    assert "4 processes against 5; 5 on each side are needed" in judgement.reason


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "unchanged"), (1.04, "regressed"), (0.96, "improved")])
def test_samples_without_any_spread_are_judged(factor, verdict):
    judgement = judge([5.0 * factor] * 5, [5.0] * 5)

    assert judgement.verdict == verdict
    assert judgement.detectable_pct == pytest.approx(1.0)


def test_five_microseconds_can_double_and_be_seen():
    assert judge([10.0, 10.1, 9.9, 10.0, 10.1], [5.0, 5.1, 4.9, 5.0, 5.0]).verdict == "regressed"


def test_two_modes_of_processes_do_not_make_a_regression():
    # Processes of one code fall at random into a fast or a 12 % slower mode; judged alone, so at a level of 5 %.
    rng = np.random.default_rng(3)
    limits = Limits(3.0, 1.0)
    nights = np.exp(rng.normal(0, 0.003, (600, 5))) * np.where(rng.random((600, 5)) < 0.3, 1.12, 1.0)

    verdicts = [judge(list(a), list(b), limits).verdict for a, b in pairwise(nights)]

    assert verdicts.count("regressed") / len(verdicts) <= 0.025
    assert verdicts.count("blind") / len(verdicts) > 0.6


def test_family_raises_the_bar():
    # Alone it passes at 5 %; among two hundred quiet series it does not.
    borderline = Series([101.2, 103.4, 104.9, 102.3, 104.4], [100.0, 101.0, 99.0, 100.5, 99.6], LIMITS)
    flat = Series(QUIET, QUIET, LIMITS)

    alone = judge_night([borderline])[0]
    among = judge_night([borderline, *[flat] * 200])[0]

    assert alone.evidence.p_worse == among.evidence.p_worse
    assert alone.verdict == "regressed"
    assert among.verdict != "regressed"


def test_ungated_series_are_no_part_of_the_gated_family():
    borderline = Series([101.2, 103.4, 104.9, 102.3, 104.4], [100.0, 101.0, 99.0, 100.5, 99.6], LIMITS)
    shown = Series(QUIET, QUIET, Limits(3.0, 1.0, gated=False))

    assert judge_night([borderline, *[shown] * 200])[0].verdict == "regressed"


def test_discoveries_are_those_of_benjamini_and_hochberg():
    # Worked example: thresholds 0.01, 0.02, 0.03, 0.04, 0.05; the largest p below its threshold is the third.
    assert discoveries([0.001, 0.019, 0.028, 0.2, 0.9], 0.05) == [True, True, True, False, False]
    assert discoveries([], 0.05) == []


@pytest.mark.parametrize(
    ("better", "value", "verdict"),
    [
        ("lower", 101, "regressed"),
        ("lower", 99, "improved"),
        ("higher", 101, "improved"),
        ("higher", 99, "regressed"),
        ("equal", 99, "regressed"),
        ("equal", 100, "unchanged"),
    ],
)
def test_exact_value_is_compared_exactly_in_its_direction(better, value, verdict):
    limits = Limits(1.0, 0.0, better=better)

    judgement = judge([value] * 5, [100] * 5, limits, exact=True)

    assert judgement.verdict == verdict
    assert str(value) in judgement.reason


def test_exact_value_needs_one_process_and_takes_zero():
    assert judge([0.0], [0.0], exact=True).verdict == "unchanged"
    appeared = judge([5.0], [0.0], exact=True)
    assert appeared.verdict == "regressed"
    assert appeared.change_pct is None


@pytest.mark.parametrize(("value", "verdict"), [(110.0, "unchanged"), (110.1, "regressed"), (99.0, "improved")])
def test_exact_value_with_a_band_may_get_worse_by_it(value, verdict):
    judgement = judge([value], [100.0], replace(LIMITS, band_pct=10.0), exact=True)
    assert judgement.verdict == verdict
    assert judgement.reason.endswith("; lower is better, and 10 % worse is allowed")
    assert judge([1.0], [0.0], replace(LIMITS, band_pct=10.0), exact=True).verdict == "regressed"


def test_exact_value_that_differs_between_processes_is_invalid():
    assert judge([1.0, 1.0, 2.0], [1.0], exact=True).verdict == "invalid"


@pytest.mark.parametrize("bad", [None, math.nan, math.inf])
def test_exact_value_must_be_finite(bad):
    assert judge([bad, 1.0], [1.0], exact=True).verdict == "invalid"


@pytest.mark.parametrize(("limit", "margin"), [(1.0, 1.0), (1.0, 2.0), (100.0, 1.0), (3.0, -1.0)])
def test_limits_that_make_no_sense_are_refused(limit, margin):
    with pytest.raises(ValueError, match="0 <= margin < limit < 100"):
        Limits(limit, margin)


def test_recorded_processes_of_one_code_raise_no_alarm():
    # 16 processes of one code on an H200, split at random 5 against 5: whole nights of 20 series.
    rng = np.random.default_rng(11)
    medians = recorded_medians()
    alarms = decided = 0
    for _ in range(150):
        order = rng.permutation(16)
        night = [Series(v[order[:5]].tolist(), v[order[5:10]].tolist(), recorded_limits(k)) for k, v in medians.items()]
        verdicts = [j.verdict for j in judge_night(night)]
        alarms += "regressed" in verdicts
        decided += verdicts.count("unchanged")

    assert alarms <= 1
    assert decided / (150 * len(medians)) > 0.7  # quiet because it looked, not because it is blind


def test_five_percent_is_found_in_the_recorded_processes():
    rng = np.random.default_rng(12)
    medians = {k: v for k, v in recorded_medians().items() if recorded_limits(k).limit_pct == 3.0}
    found = total = 0
    for _ in range(60):
        order = rng.permutation(16)
        for name, values in medians.items():
            slower = Series((values[order[:5]] * 1.05).tolist(), values[order[5:10]].tolist(), recorded_limits(name))
            found += judge_night([slower])[0].verdict == "regressed"
            total += 1

    assert found / total > 0.97


def test_a_change_below_the_floor_is_not_acted_on():
    base, slower = [5.0, 5.001, 4.999, 5.0, 5.0], [5.1, 5.101, 5.099, 5.1, 5.1]  # + 2 %, 0.1 us

    (floored,) = judge_night([Series(slower, base, Limits(1.0, 0.5, floor_us=0.15))])
    (bare,) = judge_night([Series(slower, base, Limits(1.0, 0.5))])

    assert (floored.verdict, bare.verdict) == ("unchanged", "regressed")
    assert "limit 3 %" in floored.reason


def test_a_floor_hides_no_kernel_that_takes_twice_as_long():
    base, slower = [5.0, 5.001, 4.999, 5.0, 5.0], [10.0, 10.001, 9.999, 10.0, 10.0]

    (judgement,) = judge_night([Series(slower, base, Limits(3.0, 1.0, floor_us=0.15))])

    assert judgement.verdict == "regressed"


def test_steps_below_the_limit_are_regressed_together_against_a_pinned_release():
    rng = np.random.default_rng(13)
    limits = Limits(limit_pct=5.0, margin_pct=1.0)
    weeks = [list(100 * 1.04**week * np.exp(rng.normal(0, 0.005, 7))) for week in range(4)]  # a value a night

    assert judge(weeks[1], weeks[0], limits).verdict != "regressed"
    assert judge(weeks[2], weeks[1], limits).verdict != "regressed"
    assert judge(weeks[3], weeks[0], limits).verdict == "regressed"
