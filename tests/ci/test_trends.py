"""Nights after each other: what is an alarm, what is only measured again, what cuts a series and what does not."""

import math
import random
import sys

import pytest
from msgspec.structs import replace

from benchmarks.harness.records import SOME_CASES
from ci.exits import Exit
from ci.policy import KnownRegression, KnownRegressions, load_policy
from ci.trends import report
from ci.trends.examine import examine
from ci.trends.series import Measured, nightly_series
from tests.ci.levels import STEPS, night, nights, noise, with_step
from tests.ci.nights import CASE, CONTROLS, ENVIRONMENT

POLICY = load_policy()


def test_value_of_a_night_is_the_median_of_its_process_medians():
    (series,) = nightly_series(nights([100.0, 101.0]), POLICY)

    assert series.key == ("device_us", "verify", "recoverssm", CASE, "graph-cold")
    assert series.values == pytest.approx([100.0, 101.0])
    assert [point.n_processes for point in series.points] == [5, 5]


def test_environment_cuts_a_series_and_neither_card_nor_code_does():
    newer = replace(ENVIRONMENT, driver="590.1")
    moved = night(2, 100.0)
    moved = Measured(moved.night, [replace(r, silicon=replace(r.silicon, gpu_uuid="GPU-9")) for r in moved.records])
    before = [night(0, 100.0, environment=newer), night(1, 100.0)]

    (series,) = nightly_series([*before, moved, night(3, 100.0, source_hash="other")], POLICY)

    assert (len(series.points), series.num_cut) == (3, 1)


def test_nights_of_few_processes_and_invalid_ones_do_not_count():
    few = night(0, 200.0, spread=STEPS[:4])
    invalid = night(1, 200.0, exit_code=4)

    (series,) = nightly_series([few, invalid, *nights([100.0] * 4)[2:]], POLICY)

    assert series.values == pytest.approx([100.0, 100.0])


def test_values_that_are_no_times_do_not_count():
    made = night(0, 100.0)
    bad = [replace(r, measurements=[replace(m, value=-1.0) for m in r.measurements]) for r in made.records[:1]]
    strange = [replace(r, controls=[replace(c, median_us=0.0) for c in r.controls]) for r in made.records]

    assert nightly_series([Measured(made.night, [*bad, *made.records[1:]])], POLICY) == []
    assert nightly_series([Measured(made.night, strange)], POLICY)[0].values == pytest.approx([100.0])


def test_flat_nights_are_quiet():
    found = examine(nights(noise(25)), POLICY)

    assert (found.alarms, found.suspicions, found.changes, found.code) == ([], [], [], Exit.PASS)


def test_night_whose_records_are_gone_repeats_no_alarm_of_the_night_before():
    before = nights(with_step(20, 3, 1.05))
    assert examine(before, POLICY).alarms

    lost = Measured(night(23, 105.0).night, [])
    found = examine([*before, lost], POLICY, before[0].night.id)

    assert (found.alarms, found.series) == ([], [])
    assert found.notes == [f"trends: no record of night {lost.night.id} can be read, so nothing is said of it"]


def test_one_slow_night_is_suspected_and_no_alarm():
    found = examine(nights(with_step(14, 1, 1.03)), POLICY)

    (suspicion,) = found.suspicions
    assert suspicion.surprise.shift_pct == pytest.approx(3, abs=1)
    assert found.alarms == []
    assert found.code == Exit.PASS
    assert "suspected, to be confirmed: device_us/verify" in " ".join(found.notes)


def test_suspicion_asks_for_a_gate_between_the_last_two_nights():
    found = examine(nights(with_step(14, 1, 1.03)), POLICY)

    (gate,) = report.confirmations(found, "nightly")

    before, tonight = (f"{2 + number:02d}{'0' * 38}" for number in (13, 14))
    assert (gate["base"], gate["head"], gate["cases"]) == (before, tonight, [CASE])
    assert gate["command"][8:12] == ["--set", "nightly", "--case", CASE]
    assert gate["command"][13] == f"out/confirm/{before[:12]}-{tonight[:12]}"


@pytest.mark.parametrize("changes", [{"source_hash": "one"}, {"commit": None}], ids=["same sources", "no commit"])
def test_slow_night_without_two_codes_is_told_and_not_confirmed(changes):
    found = examine(nights(with_step(14, 1, 1.03), **changes), POLICY)

    assert len(found.suspicions) == 1
    assert report.confirmations(found, "nightly") == []
    assert "of the same sources, or of unknown commits" in " ".join(found.notes)


def test_fast_night_is_not_suspected():
    assert examine(nights(with_step(14, 1, 0.97)), POLICY).suspicions == []


def test_spike_is_suspected_once_and_never_an_alarm():
    levels = noise(24)
    levels[14] *= 1.08

    found = [examine(nights(levels[:count]), POLICY) for count in range(15, 25)]

    assert [len(one.suspicions) for one in found] == [1] + [0] * 9
    assert not any(one.alarms for one in found)


def test_step_is_an_alarm_once_and_names_the_commits_it_lies_between():
    levels = with_step(14, 10, 1.04)

    alarms = [examine(nights(levels[:count]), POLICY).alarms for count in range(14, 25)]

    told = [one for one in alarms if one]
    assert len(told) == 1
    (sentence,) = told[0]
    assert alarms.index(told[0]) >= 3  # nights of the new level
    assert "worse, +4." in sentence or "worse, +3.9" in sentence
    before, after = (f"{2 + number:02d}{'0' * 10}" for number in (13, 14))
    assert f"commits {before}..{after}" in sentence
    (bisect,) = report.bisections(examine(nights(levels[: 14 + alarms.index(told[0])]), POLICY), "nightly")
    assert bisect.startswith(f"bisect: python -m ci bisect {before}{'0' * 28} {after}{'0' * 28} --set nightly")


def test_step_for_the_better_is_told_and_fails_nothing():
    found = [examine(nights(with_step(14, 10, 0.96)[:count]), POLICY) for count in range(15, 25)]

    assert not any(one.alarms for one in found)
    assert any("trends: step: " in " ".join(one.notes) and "better, -" in " ".join(one.notes) for one in found)


def test_known_regression_is_told_and_fails_nothing():
    entry = KnownRegression(
        metric="device_us",
        op="verify",
        provider="recoverssm",
        case=CASE,
        expected_pct=(3.0, 5.0),
        reason="a right result that costs four percent",
        owner="somebody",
        date="2026-11-10",
        expires="2026-12-31",
    )
    policy = type(POLICY)(POLICY.thresholds, KnownRegressions(regression=[entry]), POLICY.aliases)

    found = [examine(nights(with_step(14, 6, 1.04)[:count]), policy) for count in range(15, 21)]

    assert not any(one.alarms for one in found)
    assert any("known: a right result" in " ".join(one.notes) for one in found)


def test_step_before_the_cut_is_not_looked_at():
    older = [night(n, 100.0, environment=replace(ENVIRONMENT, driver="1")) for n in range(10)]
    newer = [night(10 + n, 104.0) for n in range(6)]

    found = examine([*older, *newer], POLICY)

    assert found.changes == []
    assert found.alarms == []


def test_ungated_series_raises_neither_alarm_nor_suspicion():
    def host(one):
        records = [
            replace(r, measurements=[replace(m, metric="host_us", contract="host-dispatch") for m in r.measurements])
            for r in one.records
        ]
        return Measured(one.night, records)

    for count in (15, 18, 20):
        found = examine([host(one) for one in nights(with_step(14, 6, 1.5)[:count])], POLICY)
        assert (found.alarms, found.suspicions) == ([], [])


def test_values_that_follow_the_control_are_adjusted_by_it():
    rng = random.Random(2)

    def one(number):
        made = night(number, 100.0)
        shift = rng.gauss(0, 0.005)
        records = []
        for record in made.records:
            c = shift + rng.gauss(0, 0.005)
            m = replace(record.measurements[0], value=100 * math.exp(c + rng.gauss(0, 0.0005)))
            controls = [replace(control, median_us=250 * math.exp(c)) for control in CONTROLS]
            records.append(replace(record, measurements=[m], controls=controls))
        return Measured(made.night, records)

    (series,) = nightly_series([one(number) for number in range(20)], POLICY)

    assert series.coefficient == pytest.approx(1, abs=0.1)
    assert max(series.values) / min(series.values) < 1.004


def test_week_begins_with_a_comparison_against_the_pinned_night_which_sees_slow_creep():
    """Each night is 0.3 % slower than the one before; together they are more than any limit."""
    levels = [100.0] * 7 + [100 * 1.003**number for number in range(1, 23)]
    made = nights(levels)
    pinned = made[6].night.id

    found = {count: examine(made[:count], POLICY, pinned) for count in (21, 22, 28, 29)}

    assert [found[n].pinned is not None for n in (21, 22, 28, 29)] == [
        False,
        True,
        False,
        True,
    ]  # 22 and 29 are Mondays
    (creep,) = found[29].creep
    assert creep.judgement.change_pct == pytest.approx(100 * (1.003**19 - 1), abs=0.5)
    assert any("against the pinned night" in alarm for alarm in found[29].alarms)
    assert found[29].code == Exit.REGRESSED


def test_a_night_of_some_cases_neither_makes_nor_takes_the_comparison_of_its_week():
    made = nights([100.0] * 23)
    pinned = made[6].night.id
    part = [Measured(replace(one.night, notes=[f"{SOME_CASES} '*_b8_*'"]), one.records) for one in made]

    of_a_monday = examine([*made[:21], part[21]], POLICY, pinned)
    of_the_tuesday = examine([*made[:21], part[21], made[22]], POLICY, pinned)

    assert (of_a_monday.pinned, of_the_tuesday.pinned) == (None, pinned)


def test_one_slow_night_is_no_creep():
    levels = [*noise(28), 108.0]
    made = nights(levels)

    found = examine(made, POLICY, made[6].night.id)

    assert found.pinned is not None
    assert found.creep == []


def test_pinned_night_of_few_nights_before_decides_nothing():
    made = nights([100.0] * 2 + [110.0] * 6)

    found = examine(made, POLICY, made[1].night.id)

    assert (found.pinned, found.creep) == (made[1].night.id, [])


def test_pinned_night_that_is_in_no_series_is_told():
    other = [night(n, 50.0, environment=replace(ENVIRONMENT, driver="1")) for n in range(2)]

    found = examine([*other, night(7, 100.0)], POLICY, other[0].night.id)

    assert found.creep == []
    assert "is in no series of this environment" in found.notes[0]


def test_host_without_the_library_that_finds_steps_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "ruptures", None)

    found = examine(nights(with_step(14, 1, 1.03)), POLICY)

    assert found.notes[0].startswith("trends: no steps looked for")
    assert len(found.suspicions) == 1
