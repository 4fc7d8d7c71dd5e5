"""`ci history import`: what comes in, and what a source made by a stranger is refused for."""

import gzip
import io
import os
import struct
import tarfile
import zipfile
from itertools import permutations

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from benchmarks.harness.errors import RemoteError
from benchmarks.harness.record_files import encode
from benchmarks.harness.samples import SCHEMA
from benchmarks.harness.store import Store, open_store
from ci.exits import Exit, MissingDataError
from ci.history import importing
from ci.history.archives import MIB, Limits, UntrustedSourceError
from ci.history.importing import import_from
from ci.history.verify import verify
from tests.ci.stores import MadeNight, contents, leave_out, make_night, samples_of, store_nights

SMALL = Limits(num_members=20, file_bytes=MIB, total_bytes=2 * MIB, packed_bytes=4 * MIB)


@pytest.fixture
def made():
    return make_night(1)


@pytest.fixture
def source(tmp_path, made):
    return store_nights(tmp_path / "source", made).folder


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


def as_folder(source, path):
    return source


def as_tar(source, path):
    with tarfile.open(path, "w") as archive:
        archive.add(source, "artifact/out/store")
    return path


def as_tar_gz(source, path):
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        archive.add(source, ".")
    return path


def as_zip(source, path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(source.rglob("*")):
            archive.write(file, f"out/store/{file.relative_to(source)}")
    return path


PACKERS = [as_folder, as_tar, as_tar_gz, as_zip]


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


# What is refused. Nothing may come into the store then.


@pytest.fixture
def refuse(store):
    def refuse(source, match, **options):
        with pytest.raises(UntrustedSourceError, match=match) as caught:
            import_from(source, store, **options)
        assert caught.value.code == Exit.INVALID
        assert contents(store.folder) == {}

    return refuse


def change_record(source, change):
    path = sorted((source / "records").rglob("*.json"))[0]
    path.write_bytes(change(path.read_bytes()))
    return source


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda data: data[:100], "truncated"),
        (lambda data: b"\xff\xfe" + data, "invalid character"),
        (lambda data: data.replace(b'"duration_s": 20.0', b'"duration_s": NaN'), "invalid"),
        (lambda data: data.replace(b'"seed": 1', b'"seed": "1"'), "Expected `int`"),
        (lambda data: data.replace(b'"seed": 1', b'"seed": 1, "evil": 1'), "unknown field"),
        (lambda data: data.replace(b'"schema_version": 1', b'"schema_version": 2'), "newer program"),
        (lambda data: data.replace(b'"schema_version": 1', b'"schema_version": 0'), "no step leads"),
        (lambda data: data.replace(b'"case_set": "smoke"', b'"case_set": "\\u001b[2J"'), "control characters"),
        (lambda data: data.replace(b'"op": "verify"', b'"op": "../../x"'), "plain name|which the record does not hold"),
        (lambda data: data.replace(b'"value": 100.0', b'"value": 50.0'), "median of its samples"),
        (lambda data: data.replace(b'"gpu_model": "nvidia-h200"', b'"gpu_model": "nvidia-h100"'), "of nvidia-h100"),
        (lambda data: data.replace(b'-000000"', b'-000007"'), "holds id"),
        (lambda data: data.replace(b'"commit": "01', b'"commit": "-01'), "commit '-010+': expected 7"),
        (lambda data: data.replace(b'"command": [', b'"command": [' + b'"a",' * 60_000), "60001 items"),
    ],
    ids=[
        "cut", "no json", "nan", "type", "field", "newer", "older",
        "escape codes", "name", "value", "model", "id", "commit", "many",
    ],
)  # fmt: skip
def test_a_record_that_is_not_what_it_should_be(source, refuse, change, match):
    refuse(change_record(source, change), match)


def test_a_name_that_would_become_a_path(source, refuse, made):
    record = made.records[0]
    named = msgspec.structs.replace(record.cases[0], name="../../../etc/passwd")
    change_record(source, lambda _: encode(msgspec.structs.replace(record, cases=[named], measurements=[])))
    pq.write_table(SCHEMA.empty_table(), sorted((source / "records").rglob("*.parquet"))[0])

    refuse(source, "expected a plain name, got '../../../etc/passwd'")


def write_samples(source, table, **options):
    pq.write_table(table, sorted((source / "records").rglob("*.parquet"))[0], **options)
    return source


class Tagged(pa.ExtensionType):
    def __init__(self):
        super().__init__(pa.float64(), "test.tagged")

    def __arrow_ext_serialize__(self):
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type, serialized):
        return cls()


@pytest.mark.parametrize("registered", [False, True])
def test_extension_types_are_refused(source, refuse, made, registered):
    table = samples_of(made.records[0])
    tagged = pa.ExtensionArray.from_storage(Tagged(), table.column("value").combine_chunks())
    write_samples(source, table.set_column(7, "value", tagged))
    if not registered:
        refuse(source, "extension types")
        return
    pa.register_extension_type(Tagged())
    try:
        refuse(source, "extension types")
    finally:
        pa.unregister_extension_type("test.tagged")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda table: table.append_column("extra", table.column("value")), "unexpected columns"),
        (lambda table: table.drop_columns(["value"]), "value is missing"),
        (lambda table: table.set_column(7, "value", table.column("value").cast("string")), "expected double"),
        (lambda table: table.slice(1), "dropped ones according to the record"),
    ],
    ids=["more", "less", "type", "rows"],
)
def test_samples_that_are_not_what_they_should_be(source, refuse, made, change, match):
    refuse(write_samples(source, change(samples_of(made.records[0]))), match)


def test_samples_that_are_no_parquet(source, refuse):
    sorted((source / "records").rglob("*.parquet"))[0].write_bytes(b"PAR1" + b"\0" * 100 + b"PAR1")

    refuse(source, "thrift")


def test_a_table_of_many_rows_is_refused_before_it_is_read(source, refuse, made, monkeypatch):
    monkeypatch.setattr(importing, "MAX_SAMPLES", 8)
    monkeypatch.setattr(importing, "read_samples", lambda path: pytest.fail("read"))

    refuse(source, "9 samples, 8 at most")


def test_a_table_that_unpacks_to_much_is_refused_before_it_is_read(source, refuse, made, monkeypatch):
    record, read = made.records[0], importing.read_samples
    monkeypatch.setattr(
        importing, "read_samples", lambda path: pytest.fail("read") if path.stem == record.id else read(path)
    )
    monkeypatch.setattr(importing, "MAX_SAMPLES_BYTES", MIB)
    table = pa.Table.from_pylist(
        [row | {"unit": "u" * (4 * MIB)} for row in samples_of(record).to_pylist()], schema=SCHEMA
    )
    write_samples(source, table, compression="zstd")
    assert sorted((source / "records").rglob("*.parquet"))[0].stat().st_size < MIB

    refuse(source, "bytes unpacked, 1048576 at most")


def test_reading_cannot_take_all_memory(source, refuse, monkeypatch):
    monkeypatch.setattr(importing, "MEMORY_BYTES", 512 * MIB)
    monkeypatch.setattr(importing, "decode_record", lambda data: bytearray(1 << 30))

    refuse(source, "MemoryError")


def test_samples_without_a_record(source, refuse):
    sorted((source / "records").rglob("*.json"))[0].unlink()

    refuse(source, "samples without a record")


def test_a_record_without_samples(source, refuse):
    sorted((source / "records").rglob("*.parquet"))[0].unlink()

    refuse(source, "No such file")


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


@pytest.mark.parametrize(
    "name", ["../x.json", "a/../../x.json", "/etc/x.json", "a\\..\\x.json", "C:/x.json", "a\n.json"]
)
@pytest.mark.parametrize("pack", ["tar", "zip"])
def test_names_that_lead_out_are_refused(tmp_path, refuse, name, pack):
    path = tmp_path / "packed"
    if pack == "tar":
        with tarfile.open(path, "w") as archive:
            archive.addfile(tarfile.TarInfo(name))
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(zipfile.ZipInfo(name), b"")

    refuse(path, "leads out of the archive")
    assert not (tmp_path / "x.json").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_in_a_tar_are_refused(tmp_path, refuse, kind):
    info = tarfile.TarInfo("records/nvidia-h200/a.json")
    info.type, info.linkname = kind, "/etc/passwd"
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.addfile(info)

    refuse(tmp_path / "a.tar", "link or special file")


def test_links_in_a_zip_are_refused(tmp_path, refuse):
    info = zipfile.ZipInfo("records/nvidia-h200/a.json")
    info.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(info, "/etc/passwd")

    refuse(tmp_path / "a.zip", "link or special file")


@pytest.mark.parametrize("make", [lambda path: path.symlink_to("/etc"), os.mkfifo], ids=["link", "pipe"])
def test_links_and_pipes_in_a_folder_are_refused(source, refuse, make):
    make(source / "records" / "other")

    refuse(source, "link or special file")


def test_an_encrypted_zip_is_refused(tmp_path, refuse):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("records/nvidia-h200/a.json", "{}")
    data = bytearray((tmp_path / "a.zip").read_bytes())
    data[data.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "a.zip").write_bytes(data)

    refuse(tmp_path / "a.zip", "encrypted")


def test_a_name_that_is_there_twice_with_other_content_is_refused(tmp_path, refuse):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for content in (b"{}", b"[]"):
            info = tarfile.TarInfo("records/nvidia-h200/a.json")
            info.size = 2
            archive.addfile(info, io.BytesIO(content))

    refuse(tmp_path / "a.tar", "there twice")


def bomb_zip(path, size, name="records/nvidia-h200/a.json"):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, b"\0" * size)
    return path


def bomb_tar_gz(path, size, name="records/nvidia-h200/a.json"):
    info = tarfile.TarInfo(name)
    info.size = size
    with tarfile.open(path, "w:gz") as archive:
        archive.addfile(info, io.BytesIO(b"\0" * size))
    return path


@pytest.mark.parametrize("bomb", [bomb_zip, bomb_tar_gz], ids=["zip", "tar.gz"])
def test_a_small_file_that_unpacks_to_much_is_refused(tmp_path, refuse, bomb):
    path = bomb(tmp_path / "bomb", 64 * MIB)
    assert path.stat().st_size < MIB

    refuse(path, "larger than 1048576 bytes", limits=SMALL)


def test_a_tar_gz_whose_other_members_unpack_to_much_is_refused(tmp_path, refuse):
    refuse(bomb_tar_gz(tmp_path / "bomb", 64 * MIB, "site/page.html"), "2097152 bytes unpacked", limits=SMALL)


def test_a_zip_whose_header_lies_about_a_size_is_refused(tmp_path, refuse):
    path = bomb_zip(tmp_path / "bomb", 8 * MIB)
    data = path.read_bytes()
    path.write_bytes(data.replace(struct.pack("<I", 8 * MIB), struct.pack("<I", 10)))

    refuse(path, "damaged|larger than", limits=SMALL)


def test_many_small_files_that_together_are_much_are_refused(tmp_path, refuse):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for index in range(4):
            archive.writestr(f"records/nvidia-h200/{index}.json", b"\0" * (MIB - 1))

    refuse(tmp_path / "a.zip", "more than 2097152 bytes", limits=SMALL)


@pytest.mark.parametrize("pack", ["tar", "zip"])
def test_too_many_members_are_refused(tmp_path, refuse, pack):
    path = tmp_path / "packed"
    if pack == "tar":
        with tarfile.open(path, "w") as archive:
            for index in range(21):
                archive.addfile(tarfile.TarInfo(f"{index}.txt"))
    else:
        with zipfile.ZipFile(path, "w") as archive:
            for index in range(21):
                archive.writestr(f"{index}.txt", b"")

    refuse(path, "more than 20 members", limits=SMALL)


def test_a_long_list_of_members_is_refused_before_it_is_read(tmp_path, refuse, monkeypatch):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for index in range(21):
            archive.writestr(f"{index}.txt", b"")
    monkeypatch.setattr(zipfile, "ZipFile", lambda file: pytest.fail("read"))

    refuse(tmp_path / "a.zip", "more than 20 members", limits=SMALL)


def test_an_extended_header_that_claims_much_is_refused_before_it_is_read(tmp_path, refuse):
    info = tarfile.TarInfo("PaxHeader")
    info.type, info.size = tarfile.XHDTYPE, 1 << 40
    with gzip.open(tmp_path / "a.tar.gz", "wb") as file:
        file.write(info.tobuf(tarfile.GNU_FORMAT))
        file.write(b"\0" * 4096)

    refuse(tmp_path / "a.tar.gz", "a part of the archive claims")


def test_an_archive_too_large_as_a_file_is_refused(tmp_path, refuse):
    path = tmp_path / "a.zip"
    with path.open("wb") as file:
        file.truncate(5 * MIB)

    refuse(path, "larger than 4194304 bytes", limits=SMALL)


@pytest.mark.parametrize(
    "content",
    [b"", b"hello", b"PK", b"PK\x05\x06" + b"\0" * 5, gzip.compress(b"hello"), gzip.compress(b"\1" * 2000)[:-9]],
    ids=["empty", "text", "PK", "cut zip", "gzip of text", "cut gzip"],
)
def test_what_is_no_archive_is_refused(tmp_path, store, content):
    path = tmp_path / "a"
    path.write_bytes(content)

    with pytest.raises((UntrustedSourceError, MissingDataError)):
        import_from(path, store)
    assert contents(store.folder) == {}


@pytest.mark.parametrize("pack", [as_tar_gz, as_zip, as_tar], ids=lambda pack: pack.__name__)
def test_a_truncated_archive_is_refused(tmp_path, source, refuse, pack):
    path = pack(source, tmp_path / "packed")
    data = path.read_bytes()
    for share in (0.2, 0.5, 0.8):
        path.write_bytes(data[: int(len(data) * share)])
        refuse(path, "packed")


def test_nothing_to_import_is_missing_data(tmp_path, store):
    (tmp_path / "empty").mkdir()

    for path in (tmp_path / "empty", tmp_path / "absent"):
        with pytest.raises(MissingDataError):
            import_from(path, store)


@pytest.mark.parametrize("records_first", [False, True], ids=["together", "records before"])
def test_night_whose_values_its_records_do_not_hold_is_refused(tmp_path, store, made, records_first):
    first, *others = made.night.verdicts
    lying = msgspec.structs.replace(made.night, verdicts=[msgspec.structs.replace(first, value=50.0), *others])
    source = store_nights(tmp_path / "source", MadeNight(lying, made.records)).folder
    if records_first:
        import_from(source / "records", store)
    before = contents(store.folder)

    with pytest.raises(UntrustedSourceError, match=r"value 50\.0, but its records' median is 100\.0"):
        import_from(source, store)

    assert contents(store.folder) == before


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data[:-1],
        lambda data: data[:-8],
        lambda data: data[:-6] + bytes([data[-6] ^ 1]) + data[-5:],
        lambda d: d + b"x",
    ],
)
def test_archive_is_read_to_the_checksum_at_its_end(source, store, tmp_path, spoil):
    packed = tmp_path / "night.tar.gz"
    with tarfile.open(packed, "w:gz") as archive:
        archive.add(source, ".")
    packed.write_bytes(spoil(packed.read_bytes()))

    with pytest.raises(UntrustedSourceError, match="damaged"):
        import_from(packed, store)


def test_place_that_refuses_to_be_written_gets_nothing_and_keeps_nothing_here(source, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError("denied")

    monkeypatch.setenv("RECOVERSSM_CACHE_DIR", str(tmp_path / "here"))
    store = open_store("memory://nobody/store")
    monkeypatch.setattr(MemoryFileSystem, "pipe_file", refuse)

    with pytest.raises(RemoteError, match="denied"):
        import_from(source, store)
    assert not list(store.folder.rglob("*.json"))
