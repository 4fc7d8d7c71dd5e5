"""The public A/A set: what goes in comes out, whoever brings it, as often as they like."""

from dataclasses import replace

import msgspec
import pytest
from typer.testing import CliRunner

from benchmarks.harness.store import Store
from ci.__main__ import app
from ci.calibrate import dataset
from ci.calibrate.dataset import merged
from ci.calibrate.publish import from_records, publish
from ci.exits import MissingDataError, UsageError
from tests.ci.collected import SAMPLES, collection
from tests.ci.nights import drifting, make_record, timed
from tests.ci.stores import put_at_url

OPS = {"verify": (10.0, 0.3), "commit": (300.0, 0.5)}


@pytest.fixture
def store(tmp_path):
    def fill(name, **facts):
        filled = Store(tmp_path / name)
        for record, samples in collection(name, OPS, **{"plain": 3, "delays": (2.0,), "each": 2, **facts}):
            filled.add_record(record, samples)
        return str(tmp_path / name)

    return fill


def test_set_reads_back_as_it_was_written(tmp_path, store):
    publish([store("one")], tmp_path / "v1")
    found = dataset.read(tmp_path / "v1")

    assert [one.delay_pct for one in found.processes] == [None] * 3 + [2.0] * 2
    assert [series.op for series in found.series] == ["commit", "verify"]
    assert found.series[0].num_requests == 32
    value = found.values[found.processes[3].process, found.series[1].key]
    assert (len(value.samples), len(value.sm_mhz), value.delay_pct) == (SAMPLES, SAMPLES, 2.0)
    assert value.median == pytest.approx(sorted(value.samples)[SAMPLES // 2], rel=0.01)
    assert found.occasions == ["one"]
    assert len(found.processes[0].card) == 12


def test_publishing_again_changes_no_byte(tmp_path, store):
    source = store("one")
    publish([source], tmp_path / "v1")
    before = dataset.fingerprint(tmp_path / "v1")
    publish([source, str(tmp_path / "v1")], tmp_path / "v1")

    assert dataset.fingerprint(tmp_path / "v1") == before


def test_what_the_set_has_is_not_read_again(tmp_path, store, monkeypatch):
    folder = store("one")
    publish([folder], tmp_path / "v1")
    url, asked = put_at_url(Store(tmp_path / "one"), tmp_path, monkeypatch)

    publish([url], tmp_path / "v1")
    assert asked == []

    store("there", hours=2.0, seed=1)
    assert publish([url], tmp_path / "v1").occasions == ["one", "there"]
    assert len([name for name in asked if name.endswith(".json")]) == 5


def test_an_op_that_was_retired_does_not_come_back(tmp_path, store):
    folder = store("one")
    publish([folder], tmp_path / "v1", [("commit", "2999-01-01T00:00:00Z")])
    before = dataset.fingerprint(tmp_path / "v1")
    publish([folder], tmp_path / "v1")

    assert dataset.fingerprint(tmp_path / "v1") == before


def test_occasions_come_in_order_of_time_whoever_is_first(tmp_path, store):
    early, late = store("early"), store("late", hours=2.0, seed=1)
    publish([late], tmp_path / "a")
    publish([early], tmp_path / "a")
    publish([early, late], tmp_path / "b")

    assert dataset.read(tmp_path / "a").occasions == ["early", "late"]
    assert dataset.fingerprint(tmp_path / "a") == dataset.fingerprint(tmp_path / "b")


def test_an_op_that_is_timed_in_another_way_loses_its_older_values_alone(tmp_path, store):
    old, new = store("old"), store("new", hours=2.0, seed=1)
    since = max(one.began_utc for one in publish([old], tmp_path / "old-alone").processes)[:-1] + ".5+00:00"
    args = ["calibrate", "publish", old, new, "--out", str(tmp_path / "v1"), "--retire", f"commit@{since}"]

    assert CliRunner().invoke(app, args).exit_code == 0
    found = dataset.read(tmp_path / "v1")
    ops = {
        (one.occasion, key[1]) for (process, key) in found.values for one in found.processes if one.process == process
    }
    assert ops == {("old", "verify"), ("new", "commit"), ("new", "verify")}


@pytest.mark.parametrize(
    "text", ["commit_plan", "commit_plan@yesterday", "@2026-11-30T00:05Z", "commit_plan@2026-11-30"]
)
def test_retired_op_without_a_time_is_refused(tmp_path, store, text):
    result = CliRunner().invoke(app, ["calibrate", "publish", store("one"), "--out", str(tmp_path), "--retire", text])

    assert result.exit_code == 2
    assert "OP@UTC" in result.output


def test_process_in_which_the_card_drifted_is_kept_and_does_not_count():
    (record, samples), *_ = collection("one", OPS, plain=1)
    found = from_records([(msgspec.structs.replace(record, controls=drifting(300.0)), samples)])

    assert "the card drifted" in found.processes[0].unsound
    assert found.chosen(occasion="one", delay_pct=None) == []


def test_series_without_a_value_has_no_row():
    (record, samples), *_ = collection("one", OPS, plain=1)
    lost = [msgspec.structs.replace(record.measurements[0], value=None, status="failed"), record.measurements[1]]
    found = from_records([(msgspec.structs.replace(record, measurements=lost), samples)])

    medians = found.medians(found.processes)
    assert medians.shape == (1, 2)
    assert sorted(medians[0] > 0) == [False, True]


def test_process_with_other_values_is_refused():
    data = from_records(list(collection("one", OPS, plain=2)))
    (at, value), *_ = data.values.items()
    other = replace(data, values={at: replace(value, median=1.5 * value.median)})

    with pytest.raises(UsageError, match="two sources have different values of device_us/"):
        merged([data, other])


def test_two_codes_on_one_occasion_are_refused():
    (record, samples), (other, more) = collection("one", OPS, plain=2)
    subject = msgspec.structs.replace(other.subject, source_hash="other")
    parts = [from_records([(record, samples)]), from_records([(msgspec.structs.replace(other, subject=subject), more)])]

    with pytest.raises(UsageError, match="expected one source_hash, found abc, other"):
        dataset.merged(parts)


def test_store_of_nights_alone_is_no_collection(tmp_path):
    store = Store(tmp_path / "store")
    store.add_record(make_record([timed(100.0)]), next(collection("one", OPS, plain=1))[1].slice(0, 0))

    with pytest.raises(MissingDataError, match="holds no record of a collection"):
        publish([str(tmp_path / "store")], tmp_path / "v1")


def test_collection_without_device_times_is_refused(tmp_path):
    (record, samples), *_ = collection("one", OPS, plain=1)
    store = Store(tmp_path / "store")
    store.add_record(msgspec.structs.replace(record, measurements=[]), samples.slice(0, 0))

    with pytest.raises(MissingDataError, match="collected without a GPU"):
        publish([str(tmp_path / "store")], tmp_path / "v1")
    assert not (tmp_path / "v1").exists()


def test_command_says_what_the_set_holds(tmp_path, store):
    result = CliRunner().invoke(
        app, ["calibrate", "publish", store("one"), "--out", str(tmp_path / "v1")], catch_exceptions=False
    )

    assert result.exit_code == 0
    assert "one: 3 processes as they are, 2 +2 %" in result.output


def test_absent_set_says_how_to_get_one(tmp_path):
    with pytest.raises(MissingDataError, match="no A/A set"):
        dataset.read(tmp_path)
