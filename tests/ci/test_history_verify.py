"""`ci history verify`: a good store passes, and every kind of damage is named."""

import os
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.harness.records import Acceptance, Check
from benchmarks.harness.samples import SCHEMA
from ci.history.checks import night_problems
from ci.history.verify import verify
from ci.validity import check_verdict
from tests.ci.nights import CASE
from tests.ci.stores import contents, leave_out, make_night, samples_of, store_nights

BY = Acceptance(owner="kernels", reason="the new gate costs this much", at_utc="2026-11-30T00:00:00Z")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def made():
    return make_night(1)


@pytest.fixture
def folder(tmp_path, made):
    return store_nights(tmp_path / "store", made).folder


def files(folder, ending):
    return sorted((folder / "records" / "nvidia-h200").glob(f"*.{ending}"))


def night_file(folder):
    return next((folder / "nights" / "nvidia-h200").iterdir())


def test_recorded_nights_that_ship_with_the_source_are_sound():
    found = verify(ROOT / "reports" / "history")

    assert found.problems == []
    assert found.nights >= 1
    assert found.records >= 5


def test_a_record_of_every_case_takes_less_than_a_megabyte():
    largest = max((ROOT / "reports" / "history" / "records").rglob("*.json"), key=lambda path: path.stat().st_size)

    assert largest.stat().st_size < 1_000_000


def test_a_good_store_has_no_problem_and_is_left_as_it_is(folder):
    before = contents(folder)

    found = verify(folder)

    assert (found.records, found.nights, found.problems, found.notes) == (3, 1, [], [])
    assert contents(folder) == before


@pytest.mark.parametrize("commit", ["--no-page", "main", "", "unknown", "abc123"])
def test_a_record_of_a_commit_that_is_no_hash_is_named(tmp_path, commit):
    made = make_night(1, commit=commit)
    found = verify(store_nights(tmp_path / "store", made).folder)

    assert len(found.problems) == len(made.records)
    assert f"commit {commit!r}: expected 7 to 40 hex digits, or null where it is unknown" in found.problems[0]


@pytest.mark.parametrize("commit", [None, "abcdef0", "ABCDEF0", "0" * 40])
def test_a_record_of_a_hash_or_of_no_commit_is_sound(tmp_path, commit):
    assert verify(store_nights(tmp_path / "store", make_night(1, commit=commit)).folder).problems == []


def cut_json(folder):
    path = files(folder, "json")[1]
    path.write_bytes(path.read_bytes()[:200])


def cut_samples(folder):
    path = files(folder, "parquet")[1]
    path.write_bytes(path.read_bytes()[:-10])


def flip_a_byte_of_samples(folder):
    path = files(folder, "parquet")[1]
    data = bytearray(path.read_bytes())
    data[60] ^= 0xFF
    path.write_bytes(data)


def remove_samples(folder):
    files(folder, "parquet")[1].unlink()


def remove_record(folder):
    files(folder, "json")[1].unlink()


def rename_record(folder):
    for ending in ("json", "parquet"):
        path = files(folder, ending)[1]
        path.rename(path.with_stem(path.stem[:-1] + "7"))


def move_to_other_model(folder):
    (folder / "records" / "nvidia-h100").mkdir()
    for ending in ("json", "parquet"):
        path = files(folder, ending)[1]
        path.rename(folder / "records" / "nvidia-h100" / path.name)


def swap_samples(folder):
    first, second, _ = files(folder, "parquet")
    second.write_bytes(first.read_bytes())


def drop_a_sample(folder):
    path = files(folder, "parquet")[1]
    pq.write_table(pq.read_table(path).slice(1), path)


def change_a_verdict(folder):
    path = night_file(folder)
    path.write_bytes(path.read_bytes().replace(b'"value": 75.0', b'"value": 76.0'))


def link_a_file(folder):
    (folder / "records" / "nvidia-h200" / "x.json").symlink_to("/etc/hostname")


def link_a_folder(folder):
    (folder / "records" / "elsewhere").symlink_to("/etc")


def leave_a_temporary_file(folder):
    (folder / "records" / "nvidia-h200" / ".a.json.1.tmp").write_bytes(b"{")


def put_a_stranger(folder):
    (folder / "records" / "notes.txt").write_text("hello")


def make_a_pipe(folder):
    os.mkfifo(folder / "records" / "nvidia-h200" / "pipe.json")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (cut_json, "cannot be read: DecodeError"),
        (cut_samples, "cannot be read: ArrowInvalid"),
        (flip_a_byte_of_samples, "cannot be read: OSError"),
        (remove_samples, "its samples (.parquet) are missing"),
        (remove_record, "left by a writer that was killed"),
        (rename_record, "holds id"),
        (move_to_other_model, "is of GPU model nvidia-h200"),
        (swap_samples, "but the median of its samples is 100.0"),
        (
            drop_a_sample,
            "3 samples and 0 dropped ones according to the record, 2 samples and 0 dropped ones in the table",
        ),
        (change_a_verdict, "value 76.0, but its records' median is 75.0"),
        (link_a_file, "a link or special file"),
        (link_a_folder, "a link or special file"),
        (leave_a_temporary_file, "left by a writer that was killed"),
        (put_a_stranger, "not a file of a store"),
        (make_a_pipe, "a link or special file"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_damage_is_found_and_named(folder, damage, said):
    damage(folder)

    problems = verify(folder).problems

    assert any(said in problem for problem in problems), problems


def test_a_night_whose_record_is_gone_says_which(folder, made):
    remove_record(folder)
    remove_samples(folder)

    assert verify(folder).problems == [
        f"nights/nvidia-h200/{made.night.id}.json: record {made.records[1].id} is not in the store, or cannot be read"
    ]


def test_a_process_that_a_night_left_out_is_held_against_no_verdict(tmp_path):
    made = leave_out(make_night(1, levels=[100.0, 900.0, 101.0, 99.0]), 1)

    assert verify(store_nights(tmp_path / "store", made).folder).problems == []


def test_the_check_of_a_process_that_was_left_out_may_fail_its_night(made):
    check = Check(case=CASE, op="verify", provider="recoverssm", metric="out_error", value=1.0, limit=0.1, passed=False)
    records = [msgspec.structs.replace(made.records[0], checks=[check]), *made.records[1:]]
    night = leave_out(made, 0).night
    night = msgspec.structs.replace(night, verdicts=[*night.verdicts, check_verdict([check], 3)])

    assert night_problems(night, {record.id: record for record in records}) == []


def test_a_process_that_was_left_out_and_is_gone_or_counted_as_well_is_found(made):
    records = {record.id: record for record in made.records}
    night = leave_out(made, 0).night
    first = made.records[0].id

    assert night_problems(night, {name: record for name, record in records.items() if name != first}) == [
        f"record {first} is not in the store, or cannot be read"
    ]
    both = msgspec.structs.replace(made.night, left_out=[first])
    assert night_problems(both, records) == ["it names a record twice"]


def test_samples_of_a_series_that_the_record_lacks_are_found(tmp_path, made):
    record = made.records[0]
    store = store_nights(tmp_path / "store")
    store.add_record(msgspec.structs.replace(record, measurements=record.measurements[1:]), samples_of(record))

    (problem,) = verify(store.folder).problems
    assert "which the record does not hold" in problem


def test_a_series_that_is_there_twice_is_found(tmp_path, made):
    record = made.records[0]
    twice = msgspec.structs.replace(record, measurements=[*record.measurements, record.measurements[-1]])
    store = store_nights(tmp_path / "store")
    store.add_record(twice, samples_of(record))

    assert "is there twice" in verify(store.folder).problems[0]


def test_a_base_night_that_is_elsewhere_is_a_note(tmp_path):
    found = verify(store_nights(tmp_path / "store", make_night(1, base_night="20260101T000000Z-x-000000")).folder)

    assert found.problems == []
    assert "its base night 20260101T000000Z-x-000000 is not here" in found.notes[0]


def test_files_set_aside_earlier_are_a_note(folder):
    (folder / "quarantine" / "records" / "nvidia-h200").mkdir(parents=True)
    (folder / "quarantine" / "records" / "nvidia-h200" / "a.json").write_bytes(b"{")

    found = verify(folder)

    assert found.problems == []
    assert found.notes == ["1 files set aside earlier lie below quarantine/, with the reasons"]


def test_older_schema_is_a_note_with_the_way_on(folder, monkeypatch):
    path = files(folder, "json")[0]
    path.write_bytes(path.read_bytes().replace(b'"schema_version": 1', b'"schema_version": 0'))
    monkeypatch.setattr("benchmarks.harness.migrations.STEPS", {0: lambda kind, obj: obj})

    found = verify(folder)

    assert found.problems == []
    assert "1 records of an older schema version" in found.notes[0]


def test_newer_schema_is_a_problem_that_blames_no_file(folder):
    path = night_file(folder)
    path.write_bytes(path.read_bytes().replace(b'"schema_version": 1', b'"schema_version": 9'))

    (problem,) = verify(folder).problems
    assert "use the newer program that wrote it" in problem


def test_samples_that_do_not_count_are_counted_and_left_out_of_the_median(tmp_path, made):
    record = made.records[0]
    items = [msgspec.structs.replace(m, n_dropped=1) if m.n_samples else m for m in record.measurements]
    rows = samples_of(record).to_pylist()
    late = [row | {"sample": 3, "value": 10 * row["value"], "accepted": False} for row in rows if row["sample"] == 2]
    table = pa.Table.from_pylist([*rows, *late], schema=SCHEMA)
    store = store_nights(tmp_path / "store")
    store.add_record(msgspec.structs.replace(record, measurements=items), table)

    assert verify(store.folder).problems == []

    store.add_record(msgspec.structs.replace(record, id="20261101T050000Z-x-000001"), table)
    assert "3 samples and 0 dropped ones according to the record" in verify(store.folder).problems[0]


def test_a_series_without_a_value_may_keep_the_samples_that_were_too_few(tmp_path, made):
    record = made.records[0]
    failed = [msgspec.structs.replace(m, status="failed", value=None, n_samples=0) for m in record.measurements]
    store = store_nights(tmp_path / "store")

    store.add_record(msgspec.structs.replace(record, measurements=failed), samples_of(record))

    assert verify(store.folder).problems == []


def test_a_failed_check_is_a_value_that_its_records_hold():
    check = Check(case=CASE, op="verify", provider="recoverssm", metric="out_error", value=0.5, limit=0.1, passed=False)
    made = make_night(1)
    records = [msgspec.structs.replace(record, checks=[check]) for record in made.records]
    verdict = check_verdict([check], len(records))
    night = msgspec.structs.replace(made.night, verdicts=[verdict, *made.night.verdicts], accepted=False)

    assert night_problems(night, {record.id: record for record in records}) == []
    other = msgspec.structs.replace(verdict, value=0.4)
    wrong = msgspec.structs.replace(night, verdicts=[other])
    assert night_problems(wrong, {record.id: record for record in records}) != []


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"accepted": True, "exit_code": 1}, "ended with 1 and counts as accepted, by nobody"),
        ({"accepted": False, "acceptance": BY}, "kernels accepted it, and it does not count"),
    ],
)
def test_a_night_that_is_accepted_by_nobody_is_named(made, changes, named):
    night = msgspec.structs.replace(made.night, **changes)

    problems = night_problems(night, {record.id: record for record in made.records})

    assert [named in problem for problem in problems] == [True]
