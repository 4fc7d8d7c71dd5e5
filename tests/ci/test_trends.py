"""Nights after each other: what is an alarm, what is only measured again, what cuts a series and what does not."""

import json
import math
import random
import sys
from statistics import median
from types import SimpleNamespace

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from benchmarks.harness.records import Subject
from benchmarks.harness.samples import SCHEMA
from benchmarks.harness.store import Store
from ci.__main__ import app
from ci.announce.feed import feed
from ci.config import load_nightly
from ci.exits import Exit
from ci.gpus import Gpu
from ci.history.layout import HISTORY
from ci.policy import KnownRegression, KnownRegressions, load_policy
from ci.show import next_step
from ci.trends import report
from ci.trends.examine import examine
from ci.trends.series import Measured, nightly_series
from ci.trends.stored import MAX_NIGHTS, read_nights
from tests.ci.nights import CASE, CONTROLS, ENVIRONMENT, exact, make_record, make_records, timed
from tests.ci.stores import make_night, put_at_url, store_nights

POLICY = load_policy()
STEPS = (0.001, -0.001, 0.0, 0.002, -0.002)  # of the processes of a night


def day_of(number):
    """Nights from Monday 2 November 2026 on, one a day."""
    return (11, 2 + number) if number < 29 else (12, number - 28)


def night(number, level, *, spread=STEPS, **changes):
    """The records are about verify of recoverssm alone, ``level`` us; commit and sources differ from night to night."""
    month, day = day_of(number)
    changes = {"source_hash": f"source {number}", **changes}
    made = make_night(day, month=month, levels=[level * (1 + step) for step in spread], **changes)
    records = [replace(r, measurements=[m for m in r.measurements if _is_ours(m)]) for r in made.records]
    return Measured(made.night, records)


def _is_ours(m):
    return (m.op, m.provider) == ("verify", "recoverssm")


def nights(levels, **changes):
    return [night(number, level, **changes) for number, level in enumerate(levels)]


def noise(count, sd=0.002, seed=4):
    rng = random.Random(seed)
    return [100 * math.exp(rng.gauss(0, sd)) for _ in range(count)]


def with_step(before, after, factor):
    levels = noise(before + after)
    return levels[:before] + [level * factor for level in levels[before:]]


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


def test_nights_up_to_the_pinned_one_are_read_however_old_they_are(tmp_path):
    made = [make_night(2 + n) for n in range(20)]
    store = store_nights(tmp_path / "store", *made)
    many = [made[n].night for n in range(20)]
    later = [replace(many[-1], id=f"2027-{n}", records=[]) for n in range(MAX_NIGHTS)]

    read = read_nights(store, [*many, *later], many[5].id)

    assert [one.night.id for one in read[:6]] == [one.id for one in many[:6]]
    assert len(read) == 6 + MAX_NIGHTS
    assert len(read[0].records) == 3


def test_earlier_merging_of_the_same_records_is_no_second_night(tmp_path):
    made = [make_night(2 + n) for n in range(3)]
    store = store_nights(tmp_path / "store", *made)
    first, second, third = (one.night for one in made)
    partly = replace(second, id=f"{second.id}-partly", records=second.records[:1], left_out=second.records[1:2])

    read = read_nights(store, [first, partly, second, third], None)
    pinned = read_nights(store, [first, partly, second, third], partly.id)

    assert [one.night for one in read] == [first, second, third]
    assert [one.night for one in pinned] == [first, partly, third]


def test_pinned_nights_of_this_repository_are_recorded_and_accepted():
    recorded = {one.id: one for one in Store(HISTORY, writable=False).nights()}
    for row in load_nightly().pinned:
        assert recorded[row.night].accepted
        assert recorded[row.night].gpu_model == row.gpu_model


def test_host_without_the_library_that_finds_steps_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "ruptures", None)

    found = examine(nights(with_step(14, 1, 1.03)), POLICY)

    assert found.notes[0].startswith("trends: no steps looked for")
    assert len(found.suspicions) == 1


def test_night_writes_its_trends_and_the_gate_that_confirms_them(fake_night):
    levels = [median(noise(9, seed=number)) for number in range(20)]
    for number, level in enumerate(levels):
        month, day = day_of(number)
        store_nights(fake_night.store, make_night(day, month=month, levels=[level * (1 + s) for s in STEPS]))
    month, day = day_of(20)
    subject = Subject(commit="f" * 40, source_hash="new", version="0.1.0")
    slow = make_records([103.5 * (1 + step) for step in STEPS], created_utc=f"2026-{month}-{day}T00:00:00Z")
    slow = [replace(record, subject=subject) for record in slow]

    result = fake_night.night(slow)

    written = json.loads((fake_night.tmp / "out" / "trends-nvidia-h200.json").read_text())
    assert written["night"] == result.nights[0].id
    assert [one["op"] for one in written["suspected"]] == ["verify"]
    assert written["confirm"][0]["head"] == "f" * 40
    assert any(note.startswith("trends: suspected") for note in result.nights[0].notes)


def test_night_whose_step_is_carried_now_fails_though_no_verdict_does(fake_night):
    """Its base is the night before, which is as slow."""
    for number, level in enumerate(with_step(15, 2, 1.02)):
        month, day = day_of(number)
        store_nights(fake_night.store, make_night(day, month=month, levels=[level * (1 + s) for s in STEPS]))
    tonight, tomorrow = (
        make_night(day, month=month, levels=[102.0 * (1 + step) for step in STEPS]).records
        for month, day in (day_of(17), day_of(18))
    )

    result = fake_night.night(tonight)

    night = result.nights[0]
    assert not any(v.fails for v in night.verdicts)
    assert (result.code, night.accepted) == (Exit.REGRESSED, False)
    assert any(alarm.startswith("device_us/verify/recoverssm/") for alarm in night.alarms)
    assert "python -m ci trends" in next_step(night, "S")
    assert b"alarm: device_us/verify/recoverssm/" in feed([night])
    assert fake_night.night(tomorrow).code == Exit.PASS  # told once


def test_command_tells_what_every_night_told_and_json_has_it_all(tmp_path):
    levels = with_step(14, 1, 1.04)
    made = [make_night(2 + n, levels=[level * (1 + s) for s in STEPS]) for n, level in enumerate(levels)]
    store = store_nights(tmp_path / "store", *made)

    shown = CliRunner().invoke(app, ["trends", "--store", str(store.folder)])
    as_json = CliRunner().invoke(app, ["trends", "--store", str(store.folder), "--json"])

    assert shown.exit_code == 0
    assert "15 nights" in shown.output
    (found,) = json.loads(as_json.stdout)
    assert found["gpu_model"] == "nvidia-h200"
    assert {one["op"] for one in found["suspected"]} == {"verify", "commit"}


def test_command_reads_the_newest_nights_and_no_samples(tmp_path, monkeypatch):
    monkeypatch.setattr("ci.trends.stored.MAX_NIGHTS", 3)
    store = store_nights(tmp_path / "store", *(make_night(2 + n) for n in range(8)))
    url, asked = put_at_url(store, tmp_path, monkeypatch)

    shown = CliRunner().invoke(app, ["trends", "--store", url])

    assert "3 nights" in shown.output
    assert len([name for name in asked if name.startswith("nights")]) == 3
    assert len([name for name in asked if name.endswith(".parquet")]) == 0
    assert len(asked) == 3 + 3 * 3


def test_confirming_runs_the_gates_of_this_machines_cards_and_gives_their_code(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(
        "ci.trends.cli.subprocess.run",
        lambda command, check: started.append(command[1:5]) or SimpleNamespace(returncode=1),
    )
    levels = with_step(14, 1, 1.04)
    made = [
        make_night(2 + n, levels=[level * (1 + s) for s in STEPS], source_hash=f"source {n}")
        for n, level in enumerate(levels)
    ]
    store = store_nights(tmp_path / "store", *made)

    def confirm(name):
        monkeypatch.setattr("ci.gpus.find_gpus", lambda: [Gpu("GPU-1", name)])
        return CliRunner().invoke(app, ["trends", "--store", str(store.folder), "--confirm"]).exit_code

    assert confirm("NVIDIA H100") == 0
    assert started == []
    assert confirm("NVIDIA H200") == 1
    assert started == [["-m", "ci", "gate", "--base"]]


def test_store_without_a_night_of_a_card_exits_3(tmp_path):
    compiled = make_record(
        [exact(1.0, contract="static"), timed(1.0, contract="static", metric="registers")],
        environment=replace(ENVIRONMENT, gpu_model="sm_90"),
    )
    Store(tmp_path / "store").add_record(compiled, SCHEMA.empty_table())

    shown = CliRunner().invoke(app, ["trends", "--store", str(tmp_path / "store")])

    assert shown.exit_code == 3
