"""From records to verdicts: what fails a night, what is only told, what is known already."""

from dataclasses import replace

import msgspec
import pytest

from benchmarks.harness import records
from ci.exits import Exit
from ci.judging import judge
from ci.night import Base, choose_base
from ci.policy import Alias, Aliases, KnownRegression, KnownRegressions
from tests.ci.judged import POLICY, base_of, judged, make_night, named, tonight
from tests.ci.nights import CASE, QUIET, exact, make_case, make_record, make_records, timed


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
