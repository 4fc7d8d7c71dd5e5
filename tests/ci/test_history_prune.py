"""`ci history prune`: what goes, and what must stay for nights to come."""

from datetime import UTC, datetime

import msgspec
import pytest

from benchmarks.harness.store import Store
from ci.exits import Exit, UsageError
from ci.history.prune import DamagedStoreError, Keep, prune
from ci.history.verify import verify
from ci.night import Tonight, choose_base
from tests.ci.nights import CASE, ENVIRONMENT
from tests.ci.stores import contents, leave_out, make_night, samples_of, store_nights

OTHER = CASE.replace("b32", "b1")


def days(nights):
    return [int(night.id[6:8]) for night in nights]


def kept(store):
    return days(store.nights())


def test_the_newest_nights_stay_with_their_records(tmp_path):
    store = store_nights(tmp_path, *(make_night(day) for day in range(1, 8)))

    done = prune(store, Keep(nights=3))

    assert kept(store) == [5, 6, 7]
    assert (len(done.nights), len(done.records), done.kept_nights, done.needed) == (4, 12, 3, {})
    assert done.freed_bytes > 0
    assert len(store.records()) == 9
    assert verify(tmp_path).problems == []


def test_a_process_that_was_left_out_goes_and_stays_with_its_night(tmp_path):
    # The second is the base of what stays, so records of no night would be older than all that stays only by chance.
    nights = [leave_out(make_night(day)) for day in (1, 2, 3)]
    nights.append(make_night(4, base_night=nights[0].night.id))
    store = store_nights(tmp_path, *nights)

    prune(store, Keep(nights=1))

    staying = {name for night in store.nights() for name in (*night.records, *night.left_out)}
    assert kept(store) == [1, 4]
    assert {record.id for record in store.records()} == staying
    assert verify(tmp_path).problems == []


def test_nights_of_the_last_days_stay(tmp_path):
    store = store_nights(tmp_path, *(make_night(day) for day in range(1, 8)))

    prune(store, Keep(days=2), now=datetime(2026, 11, 8, 9, tzinfo=UTC))

    assert kept(store) == [6, 7]


def test_with_both_limits_a_night_stays_that_either_covers(tmp_path):
    store = store_nights(tmp_path, *(make_night(day) for day in range(1, 8)))

    prune(store, Keep(nights=4, days=2), now=datetime(2026, 11, 8, 9, tzinfo=UTC))

    assert kept(store) == [4, 5, 6, 7]


def test_dry_run_says_the_same_and_removes_nothing(tmp_path):
    store = store_nights(tmp_path, *(make_night(day) for day in range(1, 5)))
    before = contents(tmp_path)

    planned = prune(Store(tmp_path, writable=False), Keep(nights=1), dry_run=True)

    assert contents(tmp_path) == before
    assert planned == prune(store, Keep(nights=1))


def test_the_last_accepted_night_stays_however_old(tmp_path):
    bad = [make_night(day, accepted=False, exit_code=1) for day in range(2, 6)]
    store = store_nights(tmp_path, make_night(1), *bad)

    done = prune(store, Keep(nights=2))

    assert kept(store) == [1, 4, 5]
    assert "judged against" in next(iter(done.needed.values()))


def test_the_base_of_a_night_that_stays_stays(tmp_path):
    first = make_night(1)
    judged = make_night(3, base_night=first.night.id)
    store = store_nights(tmp_path, first, make_night(2), judged)

    done = prune(store, Keep(nights=1))

    assert kept(store) == [1, 3]
    assert done.needed == {first.night.id: f"night {judged.night.id}, which stays, was judged against it"}


def test_the_newest_accepted_night_of_every_environment_stays(tmp_path):
    older_driver = msgspec.structs.replace(ENVIRONMENT, driver="570.0")
    nights = [
        make_night(1, environment=older_driver),
        make_night(2, environment=older_driver),
        make_night(3),
        make_night(4),
    ]
    store = store_nights(tmp_path, *nights)

    prune(store, Keep(nights=1))

    assert kept(store) == [2, 4]


def test_every_gpu_model_keeps_its_own_nights(tmp_path):
    h100 = msgspec.structs.replace(ENVIRONMENT, gpu_model="nvidia-h100")
    store = store_nights(tmp_path, make_night(1, environment=h100), *(make_night(day) for day in (2, 3)))

    prune(store, Keep(nights=1))

    assert days(store.nights("nvidia-h100")) == [1]
    assert days(store.nights("nvidia-h200")) == [3]


@pytest.mark.parametrize("selected", [[CASE], [OTHER], [CASE, OTHER]])
def test_tonight_is_judged_against_the_same_night_as_before_pruning(tmp_path, selected):
    nights = [make_night(1, cases=[CASE, OTHER]), make_night(2), make_night(3, cases=[OTHER]), make_night(4)]
    store = store_nights(tmp_path, *nights, make_night(5, accepted=False))
    tonight = Tonight("smoke", "*", selected, make_night(9, cases=selected).records)
    before = choose_base(store.nights(), store.records, tonight, 3)

    prune(store, Keep(nights=1))

    assert kept(store) == [1, 3, 4, 5]
    assert choose_base(store.nights(), store.records, tonight, 3) == before


def test_the_newest_accepted_value_of_every_series_stays(tmp_path):
    newer = make_night(2)
    fewer = msgspec.structs.replace(newer.night, verdicts=newer.night.verdicts[1:])
    store = store_nights(tmp_path, make_night(1))
    for record in newer.records:
        store.add_record(record, samples_of(record))
    store.add_night(fewer)

    done = prune(store, Keep(nights=1))

    assert kept(store) == [1, 2]
    assert list(done.needed.values()) == ["it has the newest accepted value of a series"]


def test_records_of_no_night_go_when_they_are_older_than_what_stays(tmp_path):
    store = store_nights(tmp_path, make_night(3), make_night(5))
    for made in (make_night(1), make_night(8)):
        store.add_record(made.records[0], samples_of(made.records[0]))

    done = prune(store, Keep(nights=1))

    assert done.records[0] == make_night(1).records[0].id
    assert {record.id[6:8] for record in store.records()} == {"05", "08"}


def test_nothing_is_removed_from_a_damaged_store(tmp_path):
    store = store_nights(tmp_path, *(make_night(day) for day in range(1, 5)))
    next((tmp_path / "records").rglob("*.parquet")).write_bytes(b"")
    before = contents(tmp_path)

    with pytest.raises(DamagedStoreError, match="nothing was removed") as caught:
        prune(Store(store.folder, writable=False), Keep(nights=1))
    assert caught.value.code == Exit.INVALID
    assert contents(tmp_path) == before


def test_how_much_stays_must_be_said():
    with pytest.raises(UsageError, match="--keep-nights N, --keep-days D"):
        Keep()
