"""`ci history import`: what comes in, in any order and as often as one likes, and what never changes."""

from itertools import permutations

import msgspec
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from benchmarks.harness.errors import RemoteError
from benchmarks.harness.samples import SCHEMA
from benchmarks.harness.store import Store, open_store
from ci.exits import MissingDataError
from ci.history.archives import UntrustedSourceError
from ci.history.importing import import_from
from ci.history.verify import verify
from tests.ci.history_import.packing import PACKERS
from tests.ci.stores import contents, leave_out, make_night, samples_of, store_nights


@pytest.mark.parametrize("pack", PACKERS, ids=lambda pack: pack.__name__)
def test_all_that_a_source_holds_comes_in(tmp_path, source, store, made, pack):
    done = import_from(pack(source, tmp_path / "packed"), store)

    assert (done.records, done.nights) == ([record.id for record in made.records], [made.night.id])
    assert store.nights() == [made.night]
    assert store.records(made.night.records) == made.records
    assert verify(store.folder).problems == []


def test_a_folder_inside_the_store_may_be_given(source, store, made):
    import_from(source / "records", store)

    assert store.records() == made.records


def test_doing_it_again_changes_nothing(source, store):
    import_from(source, store)
    before = contents(store.folder)

    done = import_from(source, store)

    assert (done.records, done.nights, done.already_there) == ([], [], 4)
    assert contents(store.folder) == before


def test_dry_run_writes_nothing(source, store, made):
    done = import_from(source, store, dry_run=True)

    assert len(done.records) == 3
    assert not store.folder.exists()


def test_sources_may_come_in_any_order(tmp_path, made):
    first = store_nights(tmp_path / "first", made).folder
    nights, records = tmp_path / "nights-only", tmp_path / "records-only"
    (nights).mkdir()
    (records).mkdir()
    (first / "nights").rename(nights / "nights")
    (first / "records").rename(records / "records")
    other = store_nights(tmp_path / "other", make_night(2)).folder

    results = []
    for number, order in enumerate(permutations([nights, records, other])):
        store = Store(tmp_path / f"store-{number}")
        for source in order:
            import_from(source, store)
        results.append(contents(store.folder))

    assert all(result == results[0] for result in results)
    assert verify(tmp_path / "store-0").problems == []


def test_a_night_before_its_records_is_a_note(source, store, made):
    done = import_from(source / "nights", store)

    assert done.notes == [f"night {made.night.id}: 3 of its 3 records are yet to come"]


def test_a_process_that_a_night_left_out_comes_with_it(tmp_path, store):
    made = leave_out(make_night(1))
    source = store_nights(tmp_path / "source", made).folder

    assert import_from(source / "nights", store).notes == [f"night {made.night.id}: 3 of its 3 records are yet to come"]
    assert len(import_from(source, store).records) == 3
    assert verify(store.folder).problems == []


def test_what_is_no_file_of_a_store_is_passed_over(source, store):
    (source / "site").mkdir()
    (source / "site" / "index.html").write_text("<html>")
    (source / "quarantine" / "records" / "nvidia-h200").mkdir(parents=True)
    (source / "quarantine" / "records" / "nvidia-h200" / "a.json").write_text("{")

    assert import_from(source, store).passed_over == 3  # with the lock file
    assert not (store.folder / "site").exists()


def test_columns_that_a_later_harness_added_are_filled_with_nothing(source, store, made):
    path = sorted((source / "records").rglob("*.parquet"))[0]
    pq.write_table(samples_of(made.records[0]).drop_columns(["power_w"]), path)

    import_from(source, store)

    assert store.samples(made.records[0]).schema == SCHEMA


def test_differing_content_of_an_id_is_never_overwritten(source, store, made):
    other = msgspec.structs.replace(made.records[0], seed=2)
    store.add_record(other, samples_of(other))
    before = contents(store.folder)

    with pytest.raises(UntrustedSourceError, match="another one of this id; nothing is ever overwritten"):
        import_from(source, store)
    assert contents(store.folder) == before


def test_differing_samples_of_an_id_are_never_overwritten(source, store, made):
    record = made.records[0]
    table = samples_of(record)
    store.add_record(record, table.set_column(8, SCHEMA.field("ended_s"), table.column("value")))

    with pytest.raises(UntrustedSourceError, match="another one of this id"):
        import_from(source, store)


def test_differing_night_of_an_id_is_never_overwritten(source, store, made):
    store.add_night(msgspec.structs.replace(made.night, accepted=False))

    with pytest.raises(UntrustedSourceError, match="another one of this id"):
        import_from(source, store)


def test_nothing_to_import_is_missing_data(tmp_path, store):
    (tmp_path / "empty").mkdir()

    for path in (tmp_path / "empty", tmp_path / "absent"):
        with pytest.raises(MissingDataError):
            import_from(path, store)


def test_place_that_refuses_to_be_written_gets_nothing_and_keeps_nothing_here(source, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError("denied")

    monkeypatch.setenv("RECOVERSSM_CACHE_DIR", str(tmp_path / "here"))
    store = open_store("memory://nobody/store")
    monkeypatch.setattr(MemoryFileSystem, "pipe_file", refuse)

    with pytest.raises(RemoteError, match="denied"):
        import_from(source, store)
    assert not list(store.folder.rglob("*.json"))
