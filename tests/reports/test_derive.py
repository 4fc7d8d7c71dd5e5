"""Derived figures, on made-up records with known answers."""

import msgspec
import pytest

from benchmarks.harness.records import SOME_CASES, Check, Measurement, Night, PeerFacts, Record, Verdict
from reports import derive
from reports.derive import COMMIT, FULL_VERIFY, SAVED_PCT, STEP, VERIFY, Figure
from tests.reports.golden import NightPlan, golden_cases, golden_record, processes_of

CASE = golden_cases()[0].name


def record_of(index: int, **values: float | None) -> Record:
    """A record whose series have these values; None makes a series invalid."""
    series = {"ours": VERIFY, "full": FULL_VERIFY, "commit": COMMIT, "saved": SAVED_PCT}
    measurements = [
        Measurement(
            **series[name]._asdict(),
            case=CASE,
            unit="us",
            value=value,
            status="ok" if value is not None else "invalid",
            reason="" if value is not None else "below its roofline",
        )
        for name, value in values.items()
    ]
    record = golden_record(NightPlan(1), index, golden_cases()[:1])
    return msgspec.structs.replace(record, measurements=measurements, checks=[])


def verdict_of(name: str, *, gated: bool = True) -> Verdict:
    return Verdict(**VERIFY._asdict(), case=CASE, unit="us", verdict=name, reason="", gated=gated)


def night_of(day: int, case_set: str) -> Night:
    return Night(
        id=f"{day}-{case_set}",
        created_utc=f"2026-01-{day:02d}T00:00:00Z",
        case_set=case_set,
        gpu_model="nvidia-h200",
        records=[],
        verdicts=[],
        accepted=True,
        exit_code=0,
    )


def test_a_ratio_is_taken_inside_each_process_before_the_median():
    # Two of three processes ran at half speed. Within each process the overhead is 10, 20 and 30 %;
    # the ratio of the two medians would be 200 / 150 - 1 = 33 %.
    processes = processes_of(
        [record_of(0, ours=110, full=100), record_of(1, ours=240, full=200), record_of(2, ours=195, full=150)]
    )

    figure = processes.ratio_pct(VERIFY, FULL_VERIFY, CASE)

    assert figure.values == pytest.approx((10, 20, 30))
    assert (figure.median, figure.low, figure.high) == pytest.approx((20, 10, 30))


def test_a_process_without_a_valid_denominator_does_not_enter_the_ratio():
    processes = processes_of(
        [record_of(0, ours=110, full=100), record_of(1, ours=110, full=None), record_of(2, ours=110, full=0)]
    )

    assert processes.ratio_pct(VERIFY, FULL_VERIFY, CASE).values == pytest.approx((10,))


def test_a_ratio_without_any_pair_says_why():
    processes = processes_of([record_of(0, ours=110, full=None)])

    figure = processes.ratio_pct(VERIFY, FULL_VERIFY, CASE)

    assert figure == Figure(reason="full_state verify: invalid: below its roofline")
    assert figure.median is None


def test_a_ratio_whose_halves_lie_in_different_processes_is_no_ratio():
    processes = processes_of([record_of(0, ours=110), record_of(1, full=100)])

    assert processes.ratio_pct(VERIFY, FULL_VERIFY, CASE) == Figure(
        reason="no process has both recoverssm and full_state verify"
    )


def test_a_series_nobody_measured_is_said_to_be_not_measured():
    assert processes_of([record_of(0, ours=1)]).figure(STEP, CASE) == Figure(reason="not measured")


def test_an_invalid_value_is_left_out_of_the_median():
    processes = processes_of([record_of(0, commit=10), record_of(1, commit=None), record_of(2, commit=20)])

    assert processes.figure(COMMIT, CASE).median == 15


def test_processes_that_disagree_on_an_exact_value_give_none():
    agree = processes_of([record_of(0, saved=70.0), record_of(1, saved=70.0)])
    disagree = processes_of([record_of(0, saved=70.0), record_of(1, saved=71.0)])

    assert agree.exact(SAVED_PCT, CASE).median == 70.0
    assert disagree.exact(SAVED_PCT, CASE) == Figure(reason="processes disagree on an exact value: [70.0, 71.0]")


def test_spread_is_the_standard_deviation_in_percent_of_the_mean():
    assert Figure((9.0, 10.0, 11.0)).sd_pct == pytest.approx(10.0)


@pytest.mark.parametrize("values", [(), (5.0,), (-1.0, 1.0)])
def test_spread_is_none_below_two_processes_and_at_mean_zero(values):
    assert Figure(values).sd_pct is None


def test_headline_of_golden_records_has_the_known_figures():
    case = golden_cases()[4].name
    processes = processes_of([golden_record(NightPlan(1), index, golden_cases()) for index in range(5)])

    headline = processes.headline(case)

    assert headline.verify_overhead_pct.median == pytest.approx(20)
    assert headline.step_overhead_pct.median == pytest.approx(25)
    assert headline.memory_saved_pct.median == pytest.approx(100 * (8 - 1.125) / 8)


def test_a_case_is_skipped_only_when_no_time_of_it_is_valid():
    timed = processes_of([record_of(0, ours=1.0, commit=None)])
    untimed = processes_of([record_of(0, ours=None, saved=70.0)])
    exact_only = processes_of([record_of(0, saved=70.0)])

    assert timed.skip_reasons(CASE) == []
    assert untimed.skip_reasons(CASE) == ["invalid: below its roofline"]
    assert exact_only.skip_reasons(CASE) == []


def test_what_others_did_is_no_check_and_no_time_of_ours():
    own, theirs = (
        Check(case=CASE, op="verify", provider=name, metric="out_error", value=None, limit=1e-3, passed=False)
        for name in ("recoverssm", "theirs")
    )
    record = record_of(0, ours=None)
    timed = msgspec.structs.replace(record.measurements[0], provider="theirs", value=1.0, status="ok")
    changed = {"measurements": [*record.measurements, timed], "checks": [own, theirs]}

    found = processes_of([msgspec.structs.replace(record, **changed, peers=[PeerFacts(name="theirs")])])

    assert found.checks(CASE) == [own]
    assert found.skip_reasons(CASE) == ["invalid: below its roofline"]


def test_the_worst_verdict_is_taken_from_gated_ones():
    verdicts = [verdict_of("unchanged"), verdict_of("blind"), verdict_of("regressed", gated=False)]

    assert derive.worst_verdict(verdicts) == verdicts[1]
    assert derive.worst_verdict(verdicts[2:]) == verdicts[2]
    assert derive.worst_verdict([]) is None


def test_verdicts_are_counted_worst_first_and_only_where_gated():
    names = ["unchanged", "regressed", "unchanged"]

    counts = derive.verdict_counts([*map(verdict_of, names), verdict_of("invalid", gated=False)])

    assert list(counts.items()) == [("regressed", 1), ("unchanged", 2)]


def test_every_verdict_of_the_schema_has_a_place_in_the_order():
    names = Verdict.__annotations__["verdict"].__args__

    assert sorted(derive.VERDICT_ORDER) == sorted(names)


def test_a_check_without_a_finite_value_is_the_worst_of_its_kind():
    finite, infinite = (
        Check(case=CASE, op="verify", provider="recoverssm", metric="out_error", value=v, limit=1.0, passed=v == 0.5)
        for v in (0.5, None)
    )

    summary = derive.summarize_checks([finite, infinite, finite])

    assert (summary.num_checks, summary.num_failed, summary.worst) == (3, 1, (infinite,))


def test_environment_changes_name_the_fields_that_cut_device_times():
    before = golden_record(NightPlan(1), 0, []).environment
    after = msgspec.structs.replace(before, driver="590", cpu_model="another", missing={})

    assert derive.environment_changes(before, after) == ["driver 580.00-synthetic → 590"]
    assert derive.environment_changes(before, before) == []


def test_the_night_shown_is_the_newest_that_ran_all_cases():
    nights = [night_of(1, "nightly"), night_of(3, "smoke"), night_of(2, "nightly")]
    of_few = msgspec.structs.replace(night_of(4, "nightly"), notes=[f"{SOME_CASES} '*_b8_*'"])

    assert derive.shown_night([*nights, of_few]) == nights[2]
    assert derive.shown_night([nights[1]]) == nights[1]
    assert derive.shown_night([of_few]) == of_few
    assert derive.shown_night([]) is None
