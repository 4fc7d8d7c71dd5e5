"""From records to verdicts: what fails a night, what is only told, and which night is the base."""

import math
from dataclasses import replace

import msgspec
import pytest

from benchmarks.harness import records
from benchmarks.harness.drift import drift_pct
from ci.exits import Exit
from ci.judging import judge
from ci.night import Base, Tonight, choose_base, night_before
from ci.policy import Alias, Aliases, KnownRegression, KnownRegressions, load_policy
from ci.validity import disturbances, held_back
from tests.ci.nights import CASE, QUIET, drifting, exact, make_case, make_record, make_records, timed

POLICY = load_policy()


def tonight(found, **changes):
    return Tonight(**{"case_set": "smoke", "pattern": "*", "selected": [CASE], "records": found, **changes})


def make_night(found, **changes):
    verdicts = [
        records.Verdict(
            metric=m.metric,
            op=m.op,
            provider=m.provider,
            case=m.case,
            contract=m.contract,
            unit=m.unit,
            verdict="new",
            reason="",
            gated=True,
        )
        for m in found[0].measurements
    ]
    facts = {
        "id": records.new_id(None),
        "created_utc": "2026-11-29T00:00:00Z",
        "case_set": "smoke",
        "gpu_model": "nvidia-h200",
        "records": [r.id for r in found],
        "verdicts": verdicts,
        "accepted": True,
        "exit_code": 0,
    }
    return records.Night(**{**facts, **changes})


def base_of(found, **changes):
    return Base(make_night(found, **changes), found)


def judged(found, base=None, **changes):
    return judge(tonight(found, **changes), base, POLICY)


def named(findings, metric="device_us"):
    (verdict,) = [v for v in findings.verdicts if v.metric == metric]
    return verdict


def test_verdict_carries_its_numbers():
    verdict = named(judged(make_records([v * 1.1 for v in QUIET]), base_of(make_records())))

    assert verdict.verdict == "regressed"
    assert verdict.value == pytest.approx(110.0)
    assert verdict.base_value == 100.0
    assert verdict.change_pct == pytest.approx(10.0)
    assert verdict.change_low_pct < 10.0 < verdict.change_high_pct
    assert verdict.low < 110.0 < verdict.high
    assert verdict.limit_pct == 3.0
    assert verdict.n_processes == 5
    assert verdict.process_sd_pct == pytest.approx(0.158, abs=0.001)
    assert 1.0 < verdict.detectable_pct < 2.0


def test_series_that_never_fitted_is_told_and_not_missing():
    skipped = [
        make_record([timed(None, status="skipped", reason="needs 200 GiB, the card has 139"), exact(1.0)])
        for _ in QUIET
    ]

    for base in (None, base_of(skipped)):
        found = judged(skipped, base)
        assert [v.metric for v in found.verdicts] == ["cache_bytes"]
        assert any("1 series skipped by every process: needs 200 GiB" in note for note in found.notes)


def test_series_skipped_by_all_processes_is_missing_where_the_base_night_has_it():
    skipped = timed(None, status="skipped", reason="needs 20 GiB, 10 GiB are free")
    found = judged([make_record([skipped, exact(1000.0)]) for _ in QUIET], base_of(make_records()))

    assert found.code == Exit.MISSING
    assert named(found).verdict == "missing"
    assert "20 GiB, 10 GiB are free; the base night has it" in named(found).reason


def test_series_skipped_by_some_processes_is_missing():
    skipped = make_record([timed(None, status="skipped", reason="memory taken"), exact(1000.0)])

    verdict = named(judged([*make_records(QUIET[:4]), skipped]))

    assert verdict.verdict == "missing"
    assert "skipped in 1 of 5 processes: memory taken" in verdict.reason


def test_series_that_some_processes_lack_is_missing():
    assert named(judged([*make_records(QUIET[:4]), make_record([exact(1000.0)])])).verdict == "missing"


@pytest.mark.parametrize("status", ["failed", "invalid"])
def test_one_failed_process_makes_a_series_invalid(status):
    broken = make_record([timed(None, status=status, reason="below its roofline"), exact(1000.0)])

    found = judged([*make_records(QUIET[:4]), broken])

    assert found.code == Exit.INVALID
    assert f"{status} in 1 of 5 processes: below its roofline" in named(found).reason


def test_series_twice_in_a_record_is_invalid():
    double = make_record([timed(100.0), timed(100.0), exact(1000.0)])

    assert named(judged([*make_records(QUIET[:4]), double])).verdict == "invalid"


def test_missing_value_of_an_ok_series_is_invalid():
    assert named(judged(make_records([*QUIET[:4], None]))).verdict == "invalid"


@pytest.mark.parametrize(("value", "passed"), [(None, True), (0.5, True), (1e-4, False), (math.nan, True)])
def test_check_counts_as_passed_only_with_a_finite_value_in_its_limit(value, passed):
    check = records.Check(
        case=CASE,
        op="commit_state",
        provider="recoverssm",
        metric="state_error",
        value=value,
        limit=0.01,
        passed=passed,
    )

    found = judged([make_record([timed(v)], checks=[check]) for v in QUIET])

    assert found.code == Exit.INVALID
    assert named(found, "state_error").gated
    assert "commit_state state_error" in named(found).reason


def test_failed_check_of_one_provider_leaves_the_others_alone():
    check = records.Check(
        case=CASE, op="verify", provider="full_state", metric="out_error", value=1.0, limit=0.01, passed=False
    )

    found = judged([make_record([timed(v)], checks=[check]) for v in QUIET])

    assert named(found).verdict == "new"


def test_ungated_series_never_fails_a_night():
    host = {"contract": "host-dispatch", "metric": "host_us"}
    before = [make_record([timed(v, **host)]) for v in QUIET]
    slow = [make_record([timed(2 * v, **host)]) for v in QUIET]

    found = judged(slow, base_of(before))

    assert named(found, "host_us").verdict == "regressed"
    assert not named(found, "host_us").gated
    assert found.code == Exit.PASS


def test_host_time_on_another_cpu_is_new_while_device_time_is_not():
    host = {"contract": "host-dispatch", "metric": "host_us"}
    before = [make_record([timed(v), timed(v, **host)]) for v in QUIET]
    other = records.Environment(
        gpu_model="nvidia-h200", python="3.12.1", torch="2.11.0", harness="1", driver="580.1", cpu_model="B"
    )
    after = [make_record([timed(v), timed(v, **host)], environment=other) for v in QUIET]

    found = judged(after, base_of(before))

    assert named(found).verdict == "unchanged"
    assert named(found, "host_us").verdict == "new"
    assert "CPU or OS kernel" in named(found, "host_us").reason


def test_small_batches_have_wider_limits():
    def shifted(num_requests):
        cases = [make_case(num_requests=num_requests)]
        before = make_records(cases=cases)
        return named(judged(make_records([v * 1.045 for v in QUIET], cases=cases), base_of(before))).verdict

    assert shifted(32) == "regressed"
    assert shifted(8) != "regressed"
    assert shifted(1) != "regressed"


def test_vanished_case_is_missing_even_when_the_set_no_longer_names_it():
    found = judged(
        [make_record([exact(1.0, case="other")]) for _ in QUIET], base_of(make_records()), selected=["other"]
    )

    assert found.code == Exit.MISSING
    assert named(found).verdict == "missing"


def test_cases_that_were_not_asked_for_are_not_missing():
    other = [make_record([timed(100.0, case="other"), timed(v)]) for v in QUIET]

    smaller_set = judged(make_records(), base_of(other, case_set="nightly"))
    one_case = judged(make_records(), base_of(other), pattern=CASE)

    assert {v.case for v in smaller_set.verdicts} == {v.case for v in one_case.verdicts} == {CASE}
    assert smaller_set.code == one_case.code == Exit.PASS
    assert "only cases matching" in " ".join(one_case.notes)


def with_controls(controls: list[records.Control]) -> records.Record:
    return make_record([timed(100.0), exact(1000.0)], controls=controls, drift_pct=drift_pct(controls))


def ended_early(num_parts: int = 3, **changes: object) -> records.Attempt:
    return records.Attempt(created_utc=records.utc_now(), ended="interrupted: SIGINT", num_parts=num_parts, **changes)


UNSOUND = {
    "slower": (
        {"controls": drifting(257.5)},
        "control copy took +3.0 % at the end of the process (limit 2 %): the card drifted",
    ),
    "faster": (
        {"controls": drifting(240.0)},
        "control copy took -4.0 % at the end of the process (limit 2 %): the card drifted",
    ),
    "no end": (
        {"controls": drifting(None)},
        "no controls at the end of the process: whether the card drifted is unknown",
    ),
    "no start": ({"controls": drifting(250.0)[1:]}, "no controls at the start of the process"),
    "one has no end": (
        {"controls": drifting(250.0) + drifting(None, "fma")},
        "no control fma at the end of the process",
    ),
    "no time": ({"controls": drifting(0.0)}, "control copy: expected a positive time at the end, got 0.0"),
    "ends unknown": (
        {"controls": drifting(250.0), "attempts": [ended_early()]},
        "whether the card drifted in 3 cases of a process that ended early is unknown",
    ),
    "drifted before": (
        {"controls": drifting(250.0), "attempts": [ended_early(drift_pct={"copy": 2.5})]},
        "control copy took +2.5 % when a process went on after one that had ended early (limit 2 %): the card drifted",
    ),
}


def process(value: float = 100.0, **changes: object) -> records.Record:
    return make_record([timed(value), exact(1000.0)], **changes)


@pytest.mark.parametrize(("changes", "reason"), UNSOUND.values(), ids=UNSOUND)
def test_process_that_cannot_be_believed_is_left_out_and_the_night_stands_on_five_others(changes, reason):
    good, bad = make_records(), process(900.0, **changes)
    found = judged([*good[:2], bad, *good[2:]], base_of(make_records()))

    assert (found.code, found.doubts) == (Exit.PASS, [])
    assert found.accepted
    assert (found.counted, found.left_out) == (good, [bad.id])
    assert [note for note in found.notes if "left out" in note] == [f"record {bad.id}: left out: {reason}"]
    assert (named(found).n_processes, named(found).value) == (5, 100.0)


@pytest.mark.parametrize(("changes", "reason"), UNSOUND.values(), ids=UNSOUND)
def test_night_with_too_few_processes_that_can_be_believed_is_invalid(changes, reason):
    bad = process(900.0, **changes)
    found = judged([*make_records(QUIET[:4]), bad], base_of(make_records()))

    assert found.code == Exit.INVALID
    assert not found.accepted
    assert found.doubts == ["4 of 5 processes can be believed, 5 are needed"]
    assert f"record {bad.id}: left out: {reason}" in found.notes
    assert (named(found).n_processes, named(found).value) == (4, pytest.approx(100.05))


def test_night_without_a_process_that_can_be_believed_shows_what_was_measured_and_is_invalid():
    bad = [process(100.0, controls=drifting(260.0)) for _ in QUIET]
    found = judged(bad)

    assert found.code == Exit.INVALID
    assert (found.counted, found.left_out) == (bad, [])
    assert len([doubt for doubt in found.doubts if "control copy took +4.0 %" in doubt]) == 5
    assert named(found).n_processes == 5


def test_what_the_record_says_of_its_drift_is_not_taken_for_what_its_controls_say():
    bad = process(controls=drifting(260.0), drift_pct={"copy": 0.0})

    assert judged([*make_records(), bad]).left_out == [bad.id]


def test_process_that_went_on_between_equal_controls_counts():
    resumed = process(attempts=[ended_early(drift_pct={"copy": 0.4}), ended_early(num_parts=0)])
    found = judged([*make_records(QUIET[:4]), resumed])

    assert (found.code, found.left_out) == (Exit.PASS, [])


def test_cpu_has_no_controls_and_needs_none():
    cpu = msgspec.structs.replace(records.Environment(gpu_model="cpu", python="3.12.1", torch="2.11.0", harness="1"))
    found = judged(make_records(environment=cpu, controls=[], attempts=[ended_early()]))

    assert (found.code, found.left_out) == (Exit.PASS, [])


def test_wrong_result_in_a_process_that_is_left_out_fails_the_night():
    check = records.Check(
        case=CASE, op="verify", provider="recoverssm", metric="out_error", value=1.0, limit=0.01, passed=False
    )
    found = judged([*make_records(), process(controls=drifting(260.0), checks=[check])])

    assert found.code == Exit.INVALID
    assert "in 1 of 6 processes" in named(found, "out_error").reason


def test_case_that_crashed_a_process_that_is_left_out_fails_the_night():
    crashed = timed(None, status="failed", reason="killed by SIGSEGV")
    bad = make_record([crashed, exact(1000.0)], controls=drifting(260.0))
    found = judged([*make_records(), bad])

    assert found.code == Exit.INVALID
    assert found.doubts == [f"record {bad.id}, which is left out: {CASE}: 1 series failed: killed by SIGSEGV"]


def test_control_that_was_measured_once_more_is_told_and_not_judged():
    start, end = drifting(250.5)
    twice = msgspec.structs.replace(end, readings_us=[250.5] * 3, first_readings_us=[279.0, 278.0, 279.5])
    found = judged([*make_records(QUIET[:4]), process(controls=[start, twice])])

    assert found.code == Exit.PASS
    assert any(
        "control copy took +11.6 % at the end of the process, and +0.2 % once more" in note for note in found.notes
    )


def test_controls_at_the_end_are_not_compared_with_the_base_night():
    tonight = [with_controls(drifting(254.0)) for _ in QUIET]  # +1.6 % from start to end

    assert judged(tonight, base_of(make_records())).code == Exit.PASS


def test_card_whose_memory_got_slower_is_another_instrument():
    slow = [msgspec.structs.replace(control, median_us=270.0) for control in drifting(250.0)]

    found = judged(make_records(controls=slow), base_of(make_records()))

    assert found.code == Exit.INVALID
    assert "control copy: +8.0 %" in found.doubts[0]


def test_control_that_vanished_is_doubted():
    assert judged(make_records(controls=[]), base_of(make_records())).code == Exit.INVALID


def test_records_of_two_environments_or_sources_are_no_night():
    other = records.Environment(gpu_model="nvidia-h200", python="3.12.1", torch="2.11.0", harness="1", driver="590.0")
    subject = records.Subject(source_hash="other", version="0.1.0")

    environments = judged([*make_records(QUIET[:4]), *make_records([100.0], environment=other)])
    sources = judged([*make_records(QUIET[:4]), *make_records([100.0], subject=subject)])

    assert environments.code == sources.code == Exit.INVALID
    assert "different environments" in environments.doubts[0]
    assert "different sources" in sources.doubts[0]


def test_verdicts_come_in_order_of_evidence():
    slow = [make_record([timed(v * f, op=f"op{i}") for i, f in enumerate((1.0, 1.05, 1.3))]) for v in QUIET]
    before = [make_record([timed(v, op=f"op{i}") for i in range(3)]) for v in QUIET]

    ops = [v.op for v in judged(slow, base_of(before)).verdicts]

    assert ops == ["op2", "op1", "op0"]


def test_invalid_outweighs_missing_and_missing_outweighs_regressed():
    before = base_of([make_record([timed(v), timed(v, op="commit"), timed(v, op="conv")]) for v in QUIET])
    slow = [make_record([timed(2 * v), timed(v, op="conv")]) for v in QUIET]
    broken = [make_record([timed(2 * v), timed(0.0, op="conv")]) for v in QUIET]

    assert judged(slow, before).code == Exit.MISSING
    assert judged(broken, before).code == Exit.INVALID


def test_foreign_processes_and_heat_are_told():
    monitor = records.MonitorSummary(foreign_processes=[4242], throttle_us={"thermal": 1500, "power": 0})

    notes = " ".join(judged(make_records(monitor=monitor)).notes)

    assert "[4242]" in notes
    assert "thermal 1.5 ms" in notes
    assert "power" not in notes


def test_a_card_that_is_held_back_is_told_by_the_samples_that_it_cost():
    """The power counter runs under any heavy traffic; what was not dropped for it is no news."""
    monitor = records.MonitorSummary(throttle_us={"power": 990_000, "thermal": 0})
    quiet = [make_record([timed(v, throttle_us={"power": 50_000})], monitor=monitor) for v in QUIET]
    lossy = make_record([timed(100.0, n_dropped=30), timed(9.0, op="commit")], monitor=monitor)

    assert not any("held" in note or "power" in note for note in judged(quiet).notes)
    assert held_back([*quiet, lossy]) == [
        f"samples of 1 of {len(quiet) + 2} measured times were dropped: the card was held back (verify 1)"
    ]


def chosen_base(past, **changes):
    """The index in ``past`` (oldest first: records, and changes of the night) of the base chosen for tonight."""
    nights = [
        make_night(found, created_utc=f"2026-11-{day:02}T00:00:00Z", **facts)
        for day, (found, facts) in enumerate(past, 1)
    ]
    stored = {r.id: r for found, _ in past for r in found}
    base = choose_base(nights, lambda ids: [stored[i] for i in ids], tonight(make_records(), **changes), 5)
    return None if base is None else nights.index(base.night)


def test_base_is_the_newest_accepted_night():
    assert chosen_base([(make_records(), {}), (make_records(), {}), (make_records(), {"accepted": False})]) == 1


def test_base_is_of_the_same_environment():
    other = records.Environment(gpu_model="nvidia-h200", python="3.12.1", torch="2.12.0", harness="1", driver="580.1")

    assert chosen_base([(make_records(), {}), (make_records(environment=other), {})]) == 0
    assert chosen_base([(make_records(environment=other), {})]) is None


def test_night_of_fewer_cases_does_not_hide_the_full_one():
    both = [make_record([timed(v), timed(v, case="other")]) for v in QUIET]

    assert chosen_base([(both, {}), (make_records(), {})], selected=[CASE, "other"]) == 0
    assert chosen_base([(both, {}), (make_records(), {})], selected=[CASE]) == 1


def test_night_that_lost_records_is_a_base_only_where_there_is_no_other():
    assert chosen_base([(make_records(), {}), (make_records()[:4], {})]) == 0
    assert chosen_base([(make_records()[:4], {}), (make_records()[:3], {})]) == 1


def test_night_of_a_clock_that_ran_ahead_does_not_stay_the_newest():
    found = make_records()
    nights = [make_night(found, created_utc=f"{year}-01-01T00:00:00Z") for year in (2024, 2025, 2999)]
    tonights = tonight(make_records(created_utc="2026-01-01T00:00:00Z"))

    assert choose_base(nights, lambda _: found, tonights, 5).night == nights[1]
    assert choose_base(nights[2:], lambda _: found, tonights, 5).night == nights[2]


def test_night_of_other_cases_is_no_base():
    assert chosen_base([([make_record([timed(1.0, case="other")])], {})]) is None


@pytest.mark.parametrize(
    ("metric", "unit"),
    [("differing", "elements"), ("bytes_off", "bytes"), ("raised", "errors"), ("out_error", "relative")],
)
def test_failed_check_has_the_unit_of_what_it_counts(metric, unit):
    check = records.Check(
        case=CASE, op="verify", provider="recoverssm", metric=metric, value=3.0, limit=0.0, passed=False
    )
    found = judged(make_records(checks=[check]))

    assert [v.unit for v in found.verdicts if v.metric == metric] == [unit]


def test_process_before_a_record_that_ended_early_is_told():
    attempt = ended_early(drift_pct={"copy": 0.1}, lost="kimi")

    (note,) = disturbances([make_record([timed(100.0)], attempts=[attempt])])

    assert "a process before it ended early: interrupted: SIGINT (case kimi)" in note


def policy_with(**changes):
    entry = KnownRegression(
        **{
            "metric": "device_us",
            "op": "verify",
            "provider": "recoverssm",
            "case": CASE,
            "expected_pct": (2.0, 12.0),
            "reason": "a check that batches need until 0.3",
            "owner": "kernels",
            "date": "2026-11-01",
            "expires": "2026-12-31",
            **changes,
        }
    )
    return msgspec.structs.replace(KnownRegressions(), regression=[entry])


def known_judged(found, known, before=None):
    return judge(tonight(found), base_of(make_records()), replace(POLICY, known=known), before)


SLOWER = [value * 1.1 for value in QUIET]
ON_DAY = {"created_utc": "2026-11-29T03:00:00Z"}


def test_a_known_regression_is_shown_and_fails_nothing_and_is_no_base():
    findings = known_judged(make_records(SLOWER, **ON_DAY), policy_with())

    verdict = named(findings)
    assert (verdict.verdict, verdict.known) == ("regressed", "acknowledged")
    assert verdict.known_reason == "a check that batches need until 0.3 (kernels, until 2026-12-31)"
    assert findings.code == Exit.PASS
    assert not findings.accepted


@pytest.mark.parametrize(
    ("changes", "known"),
    [({"expected_pct": (2.0, 5.0)}, "new"), ({"expires": "2026-11-28"}, "expired"), ({"case": "another"}, "new")],
)
def test_a_regression_that_no_entry_covers_fails_its_night(changes, known):
    findings = known_judged(make_records(SLOWER, **ON_DAY), policy_with(**changes))

    assert named(findings).known == known
    assert findings.code == Exit.REGRESSED


def test_a_fixed_regression_is_noted_and_the_night_is_accepted():
    findings = known_judged(make_records(**ON_DAY), policy_with())

    assert named(findings).known == "fixed"
    assert any("fixed in all 1 series" in note for note in findings.notes)
    assert findings.accepted


def test_a_regression_that_two_nights_show_is_confirmed():
    first = known_judged(make_records(SLOWER, **ON_DAY), KnownRegressions())
    before = make_night(make_records(), verdicts=first.verdicts, accepted=False)

    second = known_judged(make_records(SLOWER, **ON_DAY), KnownRegressions(), before)

    assert [named(findings).known for findings in (first, second)] == ["new", "confirmed"]
    assert second.code == Exit.REGRESSED


def test_the_same_processes_judged_again_confirm_nothing():
    found = make_records()
    nights = [
        make_night(make_records(), created_utc="2026-11-28T00:00:00Z"),
        make_night(found, created_utc="2026-11-29T00:00:00Z"),
    ]

    assert night_before(nights, tonight(found)) == nights[0]


def test_a_renamed_case_goes_on_and_without_its_entry_it_is_missing():
    old = [make_record([timed(v, case="old")], cases=[make_case("old")], checks=[]) for v in QUIET]
    found = [make_record([timed(v)]) for v in SLOWER]
    alias = Alias(old="old", new=CASE, reason="the name says whose it is", owner="kernels", date="2026-11-29")
    night = make_night(old)

    bases = [choose_base([night], lambda _: old, tonight(found), 5, Aliases(alias=a)) for a in ([alias], [])]
    findings = judged(found, bases[0])

    assert named(findings).verdict == "regressed"
    assert findings.code == Exit.REGRESSED
    assert bases[1] is None  # nothing of tonight's is in it
    assert judged([*found], Base(night, old)).code == Exit.MISSING


LOUD = [100.0, 99.0, 101.5, 98.5, 100.5]


def test_whatever_another_projects_kernel_does_fails_no_night():
    peers = [records.PeerFacts(name="recoverssm"), records.PeerFacts(name="gone", missing="not installed")]
    slower = [msgspec.structs.replace(r, peers=peers) for r in make_records([v * 1.1 for v in QUIET])]

    found = judged(slower, base_of(make_records()))

    assert (named(found).verdict, named(found).gated, found.code) == ("regressed", False, Exit.PASS)
    assert found.accepted
    assert "provider gone was not measured: not installed" in found.notes


def test_a_peer_that_was_not_measured_ungates_nothing():
    peers = [records.PeerFacts(name="recoverssm", missing="another provider has the name")]
    slower = [msgspec.structs.replace(r, peers=peers) for r in make_records([v * 1.1 for v in QUIET])]

    assert judged(slower, base_of(make_records())).code == Exit.REGRESSED


@pytest.mark.parametrize("slower", [1.0, 1.01, 1.015, 1.02, 1.03, 1.05])
def test_times_of_others_move_no_verdict_of_ours(slower):
    def night(factor, others):
        measurements = [[timed(v * factor), *(timed(v, provider=f"their_{n}") for n in range(others))] for v in LOUD]
        peers = [records.PeerFacts(name=f"their_{n}") for n in range(others)]
        return [make_record(own, peers=peers) for own in measurements]

    alone, beside = (judged(night(slower, n), base_of(night(1.0, n))) for n in (0, 40))

    assert [v for v in beside.verdicts if v.provider == "recoverssm"] == alone.verdicts
    assert beside.code == alone.code


def test_a_peer_of_the_base_night_alone_is_not_missed():
    base = [msgspec.structs.replace(r, peers=[records.PeerFacts(name="theirs")]) for r in make_records()]
    theirs = [msgspec.structs.replace(r.measurements[0], provider="theirs") for r in base]
    base = [msgspec.structs.replace(r, measurements=[*r.measurements, m]) for r, m in zip(base, theirs, strict=True)]

    found = judged(make_records(), base_of(base))

    (verdict,) = [v for v in found.verdicts if v.provider == "theirs"]
    assert (verdict.verdict, verdict.gated, found.code) == ("missing", False, Exit.PASS)


def test_peers_stand_behind_ours_and_what_they_leave_out_is_not_told_case_by_case():
    peers = [records.PeerFacts(name="theirs")]
    measurements = [
        timed(100.0),
        timed(None, provider="theirs", status="failed", reason="wrong"),
        timed(None, provider="theirs", op="commit", status="skipped", reason="bf16 alone"),
    ]
    found = judged([make_record(measurements, peers=peers) for _ in QUIET])

    assert [(v.provider, v.verdict) for v in found.verdicts] == [("recoverssm", "new"), ("theirs", "invalid")]
    assert (found.code, [note for note in found.notes if "skipped" in note]) == (Exit.PASS, [])
