from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest

from benchmarks.harness import store as store_module
from benchmarks.harness.errors import CorruptRecordError
from benchmarks.harness.store import Store, open_store
from tests.harness.stored import MEASUREMENT, add_three, make_night, make_record, make_table


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_record_and_samples_come_back_as_they_went_in(store: Store):
    record = make_record()
    path = store.add_record(record, make_table())

    assert path.relative_to(store.folder) == Path("records/nvidia-h200/20261129T140000Z-abc-000001.json")
    assert store.records() == [record]
    assert store.samples(record).to_pylist() == make_table().to_pylist()
    assert store.quarantined == []


def test_night_comes_back_as_it_went_in(store: Store):
    night = make_night("20261129T150000Z-abc-000002", ["20261129T140000Z-abc-000001"])
    path = store.add_night(night)

    assert path.relative_to(store.folder) == Path("nights/nvidia-h200/20261129T150000Z-abc-000002.json")
    assert store.nights("nvidia-h200") == [night]
    assert store.nights("nvidia-h100") == []


def test_records_are_read_by_id_and_in_order_of_time(store: Store):
    add_three(store)

    assert [record.id[-1] for record in store.records()] == ["0", "1", "2"]
    assert [record.id[-1] for record in store.records(["20261129T140002Z-abc-000002", "unknown"])] == ["2"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda _: b"",
        lambda data: data.replace(b'"schema_version": 1', b'"schema_version": "one"'),
        lambda data: data.replace(b'"schema_version": 1', b'"schema_version": 0'),
        lambda data: data.replace(b'"schema_version": 1,', b""),
        lambda data: data.replace(b"2026-11-29T14:00:00Z", b"yesterday"),
        lambda data: data.replace(b"61.5", b"NaN"),
        lambda data: data.replace(b"61.5", b"1e999"),
        lambda data: data.replace(b"20261129T140001Z-abc-000001", b"20261129T140001Z-abc-000002"),
    ],
    ids=[
        "truncated",
        "empty",
        "wrong type",
        "schema without a step",
        "no schema",
        "no time",
        "nan",
        "infinite",
        "other id",
    ],
)
def test_corrupt_record_is_named_and_set_aside_and_the_rest_used(store: Store, damage):
    paths = add_three(store)
    paths[1].write_bytes(damage(paths[1].read_bytes()))

    assert [record.id[-1] for record in store.records()] == ["0", "2"]
    assert len(store.quarantined) == 1
    assert store.quarantined[0].startswith("records/nvidia-h200/20261129T140001Z-abc-000001.json: ")
    aside = store.folder / "quarantine" / "records" / "nvidia-h200"
    assert {path.name.removeprefix("20261129T140001Z-abc-000001") for path in aside.iterdir()} == {
        ".json",
        ".parquet",
        ".json.reason.txt",
    }
    assert not paths[1].exists()


@pytest.mark.parametrize(
    ("newer", "said"),
    [
        (b'"schema_version": 2, "new_field": 0', "schema_version: 2, this program reads up to 1"),
        (b'"schema_version": 1, "new_field": 0', "unknown field `new_field`"),
    ],
)
def test_file_that_a_newer_program_wrote_is_named_and_left_where_it_is(store: Store, newer: bytes, said: str):
    path = store.add_record(make_record(), make_table())
    path.write_bytes(path.read_bytes().replace(b'"schema_version": 1', newer))

    assert store.records() == []
    assert said in store.quarantined[0]
    assert "newer version of this program wrote it" in store.quarantined[0]
    assert path.exists()
    assert not (store.folder / "quarantine").exists()


def test_samples_without_a_column_that_was_added_later_are_read_with_nothing_in_it(store: Store):
    record = make_record()
    path = store.add_record(record, make_table())
    pq.write_table(make_table().drop_columns(["power_w"]), path.with_suffix(".parquet"))

    assert store.records() == store.records([record.id]) == [record]
    assert store.samples(record).schema == make_table().schema
    assert set(store.samples(record).column("power_w").to_pylist()) == {None}


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.drop_columns(["value"]),
        lambda table: table.append_column("extra", table.column("value")),
        lambda table: table.append_column("value", table.column("value")),
        lambda table: table.set_column(7, "value", table.column("value").cast("float32")),
    ],
    ids=["missing", "unknown", "twice", "other type"],
)
def test_samples_in_other_columns_are_refused(store: Store, change):
    record = make_record()
    path = store.add_record(record, make_table())
    pq.write_table(change(make_table()), path.with_suffix(".parquet"))

    with pytest.raises(CorruptRecordError, match="column"):
        store.samples(record)


def test_truncated_samples_set_their_record_aside(store: Store):
    paths = add_three(store)
    table = paths[1].with_suffix(".parquet")
    table.write_bytes(table.read_bytes()[:-20])

    assert [record.id[-1] for record in store.records()] == ["0", "2"]
    assert len(store.quarantined) == 1


def test_missing_samples_set_their_record_aside(store: Store):
    paths = add_three(store)
    paths[1].with_suffix(".parquet").unlink()

    assert [record.id[-1] for record in store.records()] == ["0", "2"]


def test_flipped_bit_inside_samples_is_found_when_the_record_is_asked_for(store: Store):
    paths = add_three(store)
    table = paths[1].with_suffix(".parquet")
    data = bytearray(table.read_bytes())
    data[60] ^= 0xFF  # inside the first column's pages
    table.write_bytes(data)
    record = store.records()[1]

    with pytest.raises(CorruptRecordError, match=table.name):
        store.samples(record)
    assert store.records([record.id]) == []
    assert len(store.quarantined) == 1


def test_corrupt_night_is_set_aside_and_the_others_are_read(store: Store):
    store.add_record(make_record(), make_table())
    store.add_night(make_night("20261129T150000Z-abc-000002", [make_record().id]))
    last = store.add_night(make_night("20261129T160000Z-abc-000003", [make_record().id]))
    last.write_bytes(last.read_bytes()[:-30])

    assert [night.id for night in store.nights()] == ["20261129T150000Z-abc-000002"]
    assert store.quarantined[0].startswith("nights/nvidia-h200/20261129T160000Z-abc-000003.json: ")


def test_check_names_every_file_that_is_no_json_of_a_known_schema(store: Store):
    paths = add_three(store)
    store.add_night(make_night("20261129T150000Z-abc-000002", []))
    other = store.add_night(make_night("20261129T150000Z-abc-000003", [], gpu_model="nvidia-h100"))
    paths[0].write_bytes(paths[0].read_bytes()[:-20])
    paths[1].with_suffix(".parquet").unlink()
    other.write_bytes(other.read_bytes().replace(b'"schema_version": 1', b'"schema_version": 0'))
    newer = store.add_night(make_night("20261129T150000Z-abc-000004", []))
    newer.write_bytes(newer.read_bytes().replace(b'"schema_version": 1', b'"schema_version": 99'))

    store.check()

    assert [note.split(":")[0] for note in store.quarantined] == [
        str(path.relative_to(store.folder)) for path in (paths[0], paths[1], other, newer)
    ]
    assert "left in place" in store.quarantined[-1]
    assert [record.id for record in store.records()] == [paths[2].stem]
    again = Store(store.folder)
    again.check()
    assert again.quarantined == store.quarantined[-1:]


def test_check_leaves_alone_what_is_older_than_recent_nights(store: Store, monkeypatch):
    monkeypatch.setattr(store_module, "RECENT_NIGHTS", 2)
    for day in (1, 2, 3):
        store.add_record(make_record(f"2026110{day}T140000Z-abc-000001"), make_table())
        store.add_night(make_night(f"2026110{day}T150000Z-abc-000009", []))
    paths = [path for kind in ("records", "nights") for path in store.files(kind, None)]
    for path in paths:
        path.write_bytes(b"{")

    store.check()

    assert [path.stem for path in paths if path.exists()] == [
        *("20261101T140000Z-abc-000001", "20261102T140000Z-abc-000001", "20261101T150000Z-abc-000009")
    ]


def test_reading_twice_names_a_file_once(store: Store):
    add_three(store)[0].write_bytes(b"{")
    reader = open_store(store.folder, writable=False)
    reader.records()
    reader.records()

    assert len(reader.quarantined) == 1


def test_record_with_a_number_that_is_not_finite_is_refused(store: Store):
    wrong = msgspec.structs.replace(MEASUREMENT, value=float("nan"))

    with pytest.raises(ValueError, match=r"Record\.measurements"):
        store.add_record(msgspec.structs.replace(make_record(), measurements=[wrong]), make_table())
    assert store.records() == []


def test_table_with_other_columns_is_refused(store: Store):
    with pytest.raises(ValueError, match="expected the columns"):
        store.add_record(make_record(), make_table().drop_columns(["power_w"]))


def test_the_newest_nights_up_to_a_given_one_in_order_of_time(store, monkeypatch):
    monkeypatch.setattr(store_module, "RECENT_NIGHTS", 2)
    ids = [f"2026110{day}T150000Z-abc-000009" for day in range(1, 8)]
    for id_ in ids:
        store.add_night(make_night(id_, []))
    store.add_night(make_night("20261101T160000Z-abc-00000a", [], gpu_model="nvidia-h100"))

    assert [night.id for night in store.nights("nvidia-h200", newest=2)] == ids[-2:]
    assert [night.id for night in store.nights("nvidia-h200", newest=2, before=ids[3])] == ids[2:4]
    assert [night.id for night in store.recent_nights("nvidia-h200", pinned=ids[1])] == [*ids[:2], *ids[-2:]]
    assert [night.gpu_model for night in store.recent_nights()] == ["nvidia-h100", "nvidia-h200", "nvidia-h200"]


def test_nights_are_read_one_by_one_from_the_newest_on(store, monkeypatch):
    ids = [f"2026110{day}T150000Z-abc-000009" for day in range(1, 8)]
    for id_ in ids:
        store.add_night(make_night(id_, []))
    (store.folder / "nights" / "nvidia-h200" / f"{ids[-1]}.json").write_bytes(b"{")
    read: list[set[str]] = []
    nights = Store.nights
    monkeypatch.setattr(Store, "nights", lambda self, model, *, ids: read.append(ids) or nights(self, model, ids=ids))

    night = next(store.newest_first("nvidia-h200"))

    assert (night.id, read) == (ids[-2], [{ids[-1]}, {ids[-2]}])
