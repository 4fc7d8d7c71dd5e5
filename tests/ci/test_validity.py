"""Which processes count, and what is doubted or told of those that do: checks, controls, heat, early ends."""

import math

import msgspec
import pytest

from benchmarks.harness import records
from benchmarks.harness.drift import drift_pct
from benchmarks.harness.ids import utc_now
from ci.exits import Exit
from ci.validity import disturbances, held_back
from tests.ci.judged import base_of, judged, named
from tests.ci.nights import CASE, QUIET, drifting, exact, make_record, make_records, timed


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


def with_controls(controls: list[records.Control]) -> records.Record:
    return make_record([timed(100.0), exact(1000.0)], controls=controls, drift_pct=drift_pct(controls))


def ended_early(num_parts: int = 3, **changes: object) -> records.Attempt:
    return records.Attempt(created_utc=utc_now(), ended="interrupted: SIGINT", num_parts=num_parts, **changes)


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


def test_process_before_a_record_that_ended_early_is_told():
    attempt = ended_early(drift_pct={"copy": 0.1}, lost="kimi")

    (note,) = disturbances([make_record([timed(100.0)], attempts=[attempt])])

    assert "a process before it ended early: interrupted: SIGINT (case kimi)" in note
