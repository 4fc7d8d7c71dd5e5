"""Trends of the nights in a store: which are read, what a night writes, and the command."""

import json
from statistics import median
from types import SimpleNamespace

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
from ci.show import next_step
from ci.trends.stored import MAX_NIGHTS, read_nights
from tests.ci.levels import STEPS, day_of, noise, with_step
from tests.ci.nights import ENVIRONMENT, exact, make_record, make_records, timed
from tests.ci.stores import make_night, put_at_url, store_nights


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
