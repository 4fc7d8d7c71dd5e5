"""`ci history migrate`, from the first committed night: a schema before ours and the steps from it are made up."""

import shutil
from pathlib import Path

import msgspec
import pytest

from benchmarks.harness.record_files import decode_night, decode_record
from benchmarks.harness.records import SCHEMA_VERSION
from benchmarks.harness.store import Store
from ci.exits import Exit, UsageError
from ci.history.migrate import MigrationError, migrate
from ci.history.verify import verify
from tests.ci.stores import contents

HISTORY = Path(__file__).resolve().parents[2] / "reports" / "history"


def first_to_zero(kind, obj):
    """As if version 0 had called the set of cases differently and had given a night's exit code as a word."""
    older = {name: value for name, value in obj.items() if name not in ("case_set", "exit_code")}
    older |= {"schema_version": 0, "set": obj["case_set"]}
    return older | ({"passed": obj["exit_code"] == 0} if kind == "night" else {})


def zero_to_first(kind, obj):
    newer = {name: value for name, value in obj.items() if name not in ("set", "passed")}
    return newer | {"case_set": obj["set"]} | ({"exit_code": 0 if obj["passed"] else 1} if kind == "night" else {})


STEPS = {-1: lambda kind, obj: {**obj, "set": obj["set"].lower()}, 0: zero_to_first}


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
    """The first committed night with its records, as they are."""
    folder = tmp_path_factory.mktemp("golden")
    night_path = min((HISTORY / "nights").rglob("*.json"), key=lambda path: path.name)
    records = decode_night(night_path.read_bytes()).records
    paths = [night_path, *(p for name in records for p in (HISTORY / "records").glob(f"*/{name}.*"))]
    for path in paths:
        target = folder / path.relative_to(HISTORY)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    return folder


@pytest.fixture
def older(golden, tmp_path):
    """The golden night in the schema before the first."""
    folder = shutil.copytree(golden, tmp_path / "older")
    for path in folder.rglob("*.json"):
        kind = "night" if path.parent.parent.name == "nights" else "record"
        path.write_bytes(msgspec.json.encode(first_to_zero(kind, msgspec.json.decode(path.read_bytes()))))
    return folder


def decoded(folder):
    nights = {path.name: decode_night(path.read_bytes()) for path in folder.glob("nights/*/*.json")}
    return nights | {path.name: decode_record(path.read_bytes()) for path in folder.glob("records/*/*.json")}


def test_the_first_committed_night_comes_to_the_newest_schema(golden, tmp_path):
    folder = shutil.copytree(golden, tmp_path / "store")

    migrate(Store(folder))

    versions = {msgspec.json.decode(path.read_bytes())["schema_version"] for path in folder.rglob("*.json")}
    assert versions == {SCHEMA_VERSION}
    assert verify(folder).problems == []
    assert decoded(folder) == decoded(golden)


def test_migrating_in_place_loses_nothing(golden, older):
    done = migrate(Store(older), steps=STEPS)

    assert (len(done.rewritten), done.newest_already) == (6, 0)
    assert decoded(older) == decoded(golden)
    assert verify(older).problems == []


def test_steps_follow_each_other(golden, older):
    for path in older.rglob("*.json"):
        raw = msgspec.json.decode(path.read_bytes())
        path.write_bytes(msgspec.json.encode({**raw, "schema_version": -1, "set": raw["set"].upper()}))

    migrate(Store(older), steps=STEPS)

    assert decoded(older) == decoded(golden)


def test_migrating_into_a_new_folder_leaves_the_old_one_alone(golden, older, tmp_path):
    before = contents(older)

    migrate(Store(older, writable=False), out=tmp_path / "new", steps=STEPS)

    assert decoded(tmp_path / "new") == decoded(golden)
    assert verify(tmp_path / "new").problems == []
    assert contents(older) == before


def test_doing_it_again_changes_nothing(older):
    migrate(Store(older), steps=STEPS)
    before = contents(older)

    done = migrate(Store(older), steps=STEPS)

    assert (done.rewritten, done.newest_already) == ([], 6)
    assert contents(older) == before


def test_dry_run_writes_nothing(older):
    before = contents(older)

    done = migrate(Store(older, writable=False), dry_run=True, steps=STEPS)

    assert len(done.rewritten) == 6
    assert contents(older) == before


def test_an_interrupted_migration_leaves_a_store_of_both_versions_that_can_be_read_and_goes_on(
    golden, older, monkeypatch
):
    monkeypatch.setattr("benchmarks.harness.migrations.STEPS", STEPS)
    real, left = Path.replace, [2]

    def fail_later(path, target):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return real(path, target)

    monkeypatch.setattr(Path, "replace", fail_later)
    with pytest.raises(KeyboardInterrupt):
        migrate(Store(older))
    monkeypatch.setattr(Path, "replace", real)

    assert {record.id for record in Store(older, writable=False).records()} == {
        record.id for record in Store(golden, writable=False).records()
    }
    assert len(migrate(Store(older)).rewritten) == 4
    assert decoded(older) == decoded(golden)


def test_a_file_that_cannot_be_read_stops_it_before_anything_is_written(older, tmp_path):
    bad = sorted(older.glob("records/*/*.json"))[2]
    bad.write_bytes(bad.read_bytes()[:100])
    before = contents(older)

    for out in (None, tmp_path / "new"):
        with pytest.raises(MigrationError, match=bad.name) as caught:
            migrate(Store(older), out=out, steps=STEPS)
        assert caught.value.code == Exit.INVALID
    assert contents(older) == before
    assert not (tmp_path / "new").exists()


def test_a_step_whose_result_is_no_record_stops_it(older):
    with pytest.raises(MigrationError, match="unknown field `set`"):
        migrate(Store(older), steps={0: lambda kind, obj: obj})


def test_a_folder_that_exists_is_refused(older, tmp_path):
    with pytest.raises(UsageError, match="exists"):
        migrate(Store(older), out=tmp_path, steps=STEPS)
