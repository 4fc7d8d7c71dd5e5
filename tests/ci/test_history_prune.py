"""`ci history prune`: whose samples are thinned, whose stay, and that no value goes."""

import math
import random
from dataclasses import replace as with_night
from datetime import UTC, datetime
from itertools import count

import pytest
from msgspec.structs import replace

from benchmarks.harness.records import Acceptance
from benchmarks.harness.samples import SampleSeries, is_thinned, read_samples, samples_table, thin
from benchmarks.harness.store import Store, open_store
from ci.config import load_nightly
from ci.exits import Exit, UsageError
from ci.history import prune as prune_module
from ci.history.importing import import_from
from ci.history.prune import DamagedStoreError, Keep, prune
from ci.history.variance import variance
from ci.history.verify import verify
from tests.ci.nights import CASE, ENVIRONMENT
from tests.ci.stores import contents, leave_out, make_night, store_nights

NUMBERS = count()


def days(ids):
    return [int(name[6:8]) for name in ids]


def thinned_days(folder):
    """Days whose records lost samples."""
    paths = sorted((folder / "records").glob("*/*.parquet"))
    return sorted({int(path.name[6:8]) for path in paths if is_thinned(read_samples(path).schema)})


def json_files(folder):
    return {path.name: path.read_bytes() for path in folder.rglob("*.json")}


def test_old_nights_lose_samples_and_no_value(tmp_path):
    store = store_nights(tmp_path, *(make_night(day) for day in range(1, 8)))
    before = json_files(tmp_path)

    done = prune(store, Keep(nights=3, samples=1))

    assert thinned_days(tmp_path) == [1, 2, 3, 4]
    assert json_files(tmp_path) == before
    assert (days(done.nights), len(done.records), done.kept_nights, done.cited) == ([1, 2, 3, 4], 12, 3, {})
    assert verify(tmp_path).problems == []
    assert len(store.records()) == 21
    assert store.quarantined == []


def test_each_series_keeps_samples_evenly_in_time_and_a_further_thinning_goes_on():
    one, other = (
        SampleSeries(
            "device_us",
            op,
            "recoverssm",
            CASE,
            "graph-cold",
            "us",
            tuple(map(float, range(n))),
            tuple(map(float, range(n))),
        )
        for op, n in (("verify", 40), ("commit", 3))
    )
    table = samples_table([one, other])

    four = thin(table, 4)

    assert four.column("value").to_pylist() == [9.0, 19.0, 29.0, 39.0, 0.0, 1.0, 2.0]
    assert thin(table, 0).num_rows == 0
    assert not is_thinned(table.schema)
    assert is_thinned(four.schema)


def test_a_second_time_changes_nothing(tmp_path):
    store = store_nights(tmp_path, *(make_night(day) for day in range(1, 5)))
    prune(store, Keep(nights=1, samples=1))
    before = contents(tmp_path)

    assert prune(store, Keep(nights=1, samples=2)).records == []
    assert contents(tmp_path) == before
    assert len(prune(store, Keep(nights=1, samples=0)).records) == 9


def test_a_process_that_was_left_out_is_thinned_with_its_night(tmp_path):
    store = store_nights(tmp_path, *(leave_out(make_night(day)) for day in (1, 2)))
    night = store.nights()[0]

    done = prune(store, Keep(nights=1, samples=1))

    assert sorted(done.records) == sorted(night.all_records)
    assert verify(tmp_path).problems == []


def test_nights_of_the_last_days_keep_all(tmp_path):
    store = store_nights(tmp_path, *(make_night(day) for day in range(1, 8)))

    prune(store, Keep(days=2, samples=1), now=datetime(2026, 11, 8, 9, tzinfo=UTC))

    assert thinned_days(tmp_path) == [1, 2, 3, 4, 5]


def test_with_both_limits_a_night_keeps_all_that_either_covers(tmp_path):
    store = store_nights(tmp_path, *(make_night(day) for day in range(1, 8)))

    prune(store, Keep(nights=4, days=2, samples=1), now=datetime(2026, 11, 8, 9, tzinfo=UTC))

    assert thinned_days(tmp_path) == [1, 2, 3]


def test_dry_run_says_the_same_and_changes_nothing(tmp_path):
    store = store_nights(tmp_path, *(make_night(day) for day in range(1, 5)))
    before = contents(tmp_path)

    planned = prune(Store(tmp_path, writable=False), Keep(nights=1, samples=1), dry_run=True)

    assert contents(tmp_path) == before
    size = sum(map(len, before.values()))
    assert planned == prune(store, Keep(nights=1, samples=1))
    assert size - sum(map(len, contents(tmp_path).values())) == planned.freed_bytes


def test_every_gpu_model_keeps_its_own_newest_nights(tmp_path):
    h100 = replace(ENVIRONMENT, gpu_model="nvidia-h100")
    store = store_nights(tmp_path, make_night(1, environment=h100), *(make_night(day) for day in (2, 3)))

    prune(store, Keep(nights=1, samples=1))

    assert thinned_days(tmp_path) == [2]


def test_what_the_next_night_is_held_against_keeps_all(tmp_path):
    bad = [make_night(day, accepted=False, exit_code=1) for day in range(2, 6)]
    store = store_nights(tmp_path, make_night(1), *bad)

    done = prune(store, Keep(nights=2, samples=1))

    assert thinned_days(tmp_path) == [2, 3]
    assert "held against it" in next(iter(done.cited.values()))


def regressed_night(night, base):
    verdicts = [replace(night.verdicts[0], verdict="regressed", gated=True), *night.verdicts[1:]]
    return replace(night, verdicts=verdicts, base_night=base, accepted=False, exit_code=1)


def test_nights_of_a_regression_keep_all(tmp_path):
    nights = [make_night(day) for day in range(1, 10)]
    for at in (3, 4, 5):
        night = regressed_night(nights[at].night, nights[1].night.id)
        nights[at] = with_night(nights[at], night=night)
    verdicts = [replace(item, verdict="unchanged", gated=True) for item in nights[6].night.verdicts]
    nights[6] = with_night(nights[6], night=replace(nights[6].night, verdicts=verdicts))
    store = store_nights(tmp_path, *nights)

    done = prune(store, Keep(nights=1, samples=1))

    assert days(done.cited) == [2, 4, 6, 7]
    assert all("a regression of verify" in why for why in done.cited.values())
    assert thinned_days(tmp_path) == [1, 3, 5, 8]


def test_nights_that_are_pinned_accepted_by_an_owner_or_named_by_an_alarm_keep_all(tmp_path, monkeypatch):
    nights = [make_night(day) for day in range(1, 8)]
    by = Acceptance(owner="kernels", reason="meant", at_utc="2026-11-30T00:00:00Z")
    nights[1] = with_night(nights[1], night=replace(nights[1].night, acceptance=by))
    alarm = f"device_us/verify: worse, by +3.0 % since night {nights[3].night.id} (after 1, up to 2), 5 nights"
    nights[5] = with_night(nights[5], night=replace(nights[5].night, alarms=[alarm]))
    store = store_nights(tmp_path, *nights)
    config = load_nightly()
    pinned = replace(config.pinned[0], night=nights[0].night.id)
    monkeypatch.setattr(prune_module, "load_nightly", lambda: replace(config, pinned=[pinned]))

    done = prune(store, Keep(nights=1, samples=1))

    assert list(done.cited.values()) == ["pinned in ci/nightly.toml", "an owner accepted it", "an alarm names it"]
    assert days(done.cited) == [1, 2, 4]
    assert thinned_days(tmp_path) == [3, 5, 6]


def test_nights_at_a_change_point_keep_all(tmp_path):
    draw = random.Random(4)
    levels = [level * math.exp(draw.gauss(0, 0.002)) for level in [100.0] * 12 + [110.0] * 12]
    nights = [
        make_night(day, levels=[level * (1 + part) for part in (-2e-3, -1e-3, 0, 1e-3, 2e-3)])
        for day, level in enumerate(levels, 1)
    ]
    store = store_nights(tmp_path, *nights)

    done = prune(store, Keep(nights=1, samples=1))

    assert days(done.cited) == [12, 13]
    assert set(done.cited.values()) == {"a step of a series lies at it"}


def test_thinned_samples_are_no_evidence_of_spread_and_stores_still_merge(tmp_path):
    nights = [make_night(day) for day in range(1, 4)]
    pruned, whole = store_nights(tmp_path / "pruned", *nights), store_nights(tmp_path / "whole", *nights)
    prune(pruned, Keep(nights=1, samples=1))

    table = variance([str(pruned.folder)], gpu_model="*")

    assert {spread.num_processes for spread in table.spreads} == {3}
    assert sum("thinned" in note for note in table.notes) == 6
    for source, store in ((pruned.folder, whole), (whole.folder, pruned)):
        before = contents(store.folder)
        assert import_from(source, store).already_there == 12
        assert contents(store.folder) == before
    assert len(import_from(pruned.folder, Store(tmp_path / "new")).records) == 9
    assert thinned_days(tmp_path / "new") == [1, 2]


def test_a_store_at_a_url_is_thinned_there(tmp_path, monkeypatch):
    monkeypatch.setenv("RECOVERSSM_CACHE_DIR", str(tmp_path / "here"))
    url = f"memory://prune-{next(NUMBERS)}"
    store_nights(tmp_path / "from", *(make_night(day) for day in range(1, 4)))
    import_from(tmp_path / "from", open_store(url))

    planned = prune(open_store(url, writable=False), Keep(nights=1, samples=1), dry_run=True)
    assert planned == prune(open_store(url), Keep(nights=1, samples=1))

    monkeypatch.setenv("RECOVERSSM_CACHE_DIR", str(tmp_path / "elsewhere"))
    store = open_store(url, writable=False)
    assert len(store.records()) == 9
    assert thinned_days(store.folder) == [1, 2]


def test_nothing_is_thinned_when_a_night_cannot_be_read(tmp_path):
    store = store_nights(tmp_path, *(make_night(day) for day in range(1, 5)))
    next((tmp_path / "nights").rglob("*.json")).write_bytes(b"{")
    before = contents(tmp_path)

    with pytest.raises(DamagedStoreError, match="nothing was thinned") as caught:
        prune(Store(store.folder, writable=False), Keep(nights=1))
    assert caught.value.code == Exit.INVALID
    assert contents(tmp_path) == before


def test_samples_that_cannot_be_read_are_left_alone_and_named(tmp_path):
    store = store_nights(tmp_path, *(make_night(day) for day in range(1, 4)))
    bad = sorted((tmp_path / "records").rglob("*.parquet"))[0]
    bad.write_bytes(b"PAR1")

    done = prune(store, Keep(nights=1, samples=1))

    assert [bad.stem in line for line in done.left_alone] == [True]
    assert len(done.records) == 5


def test_what_keeps_its_samples_must_be_said():
    with pytest.raises(UsageError, match="--keep-nights N, --keep-days D"):
        Keep()


@pytest.mark.parametrize("days", [float("inf"), 1e12, 800_000.0])
def test_more_days_than_time_has_cover_every_night(tmp_path, days):
    store = store_nights(tmp_path / "store", make_night(1), make_night(2))

    assert prune(store, Keep(days=days), now=datetime(2026, 12, 1, tzinfo=UTC)).nights == []
