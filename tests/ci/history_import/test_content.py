"""Records, samples and nights that a stranger may have made: what is refused, before it takes memory."""

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.harness.record_files import encode
from benchmarks.harness.samples import SCHEMA
from ci.history import importing
from ci.history.archives import MIB, UntrustedSourceError
from ci.history.importing import import_from
from tests.ci.stores import MadeNight, contents, samples_of, store_nights


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
