"""Stores at URLs, over fsspec's filesystems that need no server."""

import os
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from msgspec.structs import replace

from benchmarks.harness import objects
from benchmarks.harness.errors import AlreadyStoredError, MissingPackageError, RemoteError, UnsentError
from benchmarks.harness.objects import Fact, Objects
from benchmarks.harness.record_files import encode, read_record
from benchmarks.harness.records import Acceptance
from benchmarks.harness.remote_store import RemoteStore, cache_folder
from benchmarks.harness.store import open_store
from tests.harness.stored import make_night, make_record, make_table

NUMBERS = count()


@pytest.fixture(params=["memory", "file"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A place that nobody has written to; ``file`` stands for servers to which a file is written aside and renamed."""
    return f"memory://fleet-{next(NUMBERS)}/store" if request.param == "memory" else f"file://{tmp_path}/there"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECOVERSSM_CACHE_DIR", str(tmp_path / "here"))


def open_on_another_machine(url, tmp_path, monkeypatch, **options):
    with monkeypatch.context() as changed:
        changed.setenv("RECOVERSSM_CACHE_DIR", str(tmp_path / f"machine-{next(NUMBERS)}"))
        return open_store(url, **options)


def test_what_one_machine_stores_another_reads(url, tmp_path, monkeypatch):
    store = open_store(url)
    store.add_record(make_record(), make_table())
    store.add_night(make_night("20261129T150000Z-abc-000009", [make_record().id]))

    other = open_on_another_machine(url, tmp_path, monkeypatch, writable=False)

    assert other.records() == other.records([make_record().id]) == [make_record()]
    assert [night.id for night in other.nights("nvidia-h200")] == ["20261129T150000Z-abc-000009"]
    assert other.samples(make_record()).equals(make_table())
    assert other.quarantined == []


def test_what_others_add_is_seen_when_the_store_is_opened_again(url, tmp_path, monkeypatch):
    assert open_store(url).records() == []
    open_on_another_machine(url, tmp_path, monkeypatch).add_record(make_record(), make_table())

    assert open_store(url, writable=False).records() == [make_record()]


def test_objects_come_once_and_only_those_asked_for(url, tmp_path, monkeypatch):
    store = open_store(url)
    for number in range(3):
        store.add_record(make_record(f"20261129T140000Z-abc-{number:06d}"), make_table())
    asked: list[str] = []
    get = Objects.get
    monkeypatch.setattr(Objects, "get", lambda self, names: asked.extend(names) or get(self, names))
    monkeypatch.setenv("RECOVERSSM_CACHE_DIR", str(tmp_path / "fresh"))

    open_store(url, writable=False).records(["20261129T140000Z-abc-000001"])
    assert sorted(asked) == [f"records/nvidia-h200/20261129T140000Z-abc-000001.{end}" for end in ("json", "parquet")]
    open_store(url, writable=False).records()
    assert len(asked) == 6
    open_store(url, writable=False).records()
    assert len(asked) == 6


def test_a_record_comes_once_also_from_a_server_whose_clock_is_ahead(url, tmp_path, monkeypatch):
    open_on_another_machine(url, tmp_path, monkeypatch).add_record(make_record(), make_table())
    changed_ns, get, asked = objects._changed_ns, Objects.get, list[str]()
    monkeypatch.setattr(objects, "_changed_ns", lambda info: changed_ns(info) + 3600 * 10**9)
    monkeypatch.setattr(Objects, "get", lambda self, names: asked.extend(names) or get(self, names))

    open_store(url, writable=False).files("records", {make_record().id}, "nvidia-h200", samples=False)
    open_store(url, writable=False).records()

    assert [name.rpartition(".")[2] for name in asked] == ["json", "parquet"]


def test_merging_is_idempotent_and_free_of_order(url):
    from ci.history.importing import import_from
    from tests.ci.stores import make_night as make_whole_night
    from tests.ci.stores import store_nights

    folders = [cache_folder(url).parent.parent / f"from-{day}" for day in (1, 2)]
    for day, folder in enumerate(folders, 1):
        store_nights(folder, make_whole_night(day))
    for order in (folders, folders[::-1], folders):
        for folder in order:
            import_from(folder, open_store(url))

    store = open_store(url, writable=False)
    assert len(store.nights()) == 2
    assert len(store.records()) == 6
    assert store.quarantined == []


def test_another_record_of_the_same_id_is_refused_and_the_first_one_stays(url, tmp_path, monkeypatch):
    first, second = make_record(), replace(make_record(), seed=2)
    store, other = open_store(url), open_on_another_machine(url, tmp_path, monkeypatch)
    store.add_record(first, make_table())

    with pytest.raises(AlreadyStoredError, match="another one of this id"):
        other.add_record(second, make_table())

    assert other.records() == [first]


def test_the_same_record_sent_twice_is_one(url, tmp_path, monkeypatch):
    stores = [open_store(url), open_on_another_machine(url, tmp_path, monkeypatch)]
    for store in stores:
        store.add_record(make_record(), make_table())

    assert [store.records() for store in stores] == [[make_record()]] * 2


def test_what_could_not_be_sent_is_sent_when_the_store_is_next_opened(url, tmp_path, monkeypatch):
    store = open_store(url)
    with monkeypatch.context() as changed:
        changed.setattr(Objects, "put", lambda *_, **__: (_ for _ in ()).throw(RemoteError("no network")))
        with pytest.raises(UnsentError, match="Nothing is lost"):
            store.add_record(make_record(), make_table())
    assert open_on_another_machine(url, tmp_path, monkeypatch, writable=False).records() == []

    assert open_store(url).records() == [make_record()]
    assert open_on_another_machine(url, tmp_path, monkeypatch, writable=False).records() == [make_record()]


def test_samples_of_a_writer_that_was_killed_before_the_record_are_no_record(url, tmp_path, monkeypatch):
    Objects(url).put(f"records/nvidia-h200/{make_record().id}.parquet", b"PAR1 cut")
    store = open_store(url)
    assert store.records() == []
    assert store.quarantined == []

    store.add_record(make_record(), make_table())

    assert open_on_another_machine(url, tmp_path, monkeypatch, writable=False).records() == [make_record()]


def test_a_damaged_object_is_left_by_readers_and_set_aside_once_by_a_writer(url, tmp_path, monkeypatch):
    good, bad = (make_record(f"20261129T140000Z-abc-00000{number}") for number in range(2))
    store = open_store(url)
    for record in (good, bad):
        store.add_record(record, make_table())
    name = f"records/nvidia-h200/{bad.id}.json"
    Objects(url).put(name, Objects(url).get([name])[name][:100])

    reader = open_on_another_machine(url, tmp_path, monkeypatch, writable=False)
    assert reader.records() == [good]
    assert len(reader.quarantined) == 1
    assert name in Objects(url).facts("records")
    writer = open_on_another_machine(url, tmp_path, monkeypatch)
    assert writer.records() == [good]
    assert len(writer.quarantined) == 1

    assert name not in Objects(url).facts("records")
    assert f"quarantine/{name}.reason.txt" in Objects(url).facts("quarantine")
    again = open_on_another_machine(url, tmp_path, monkeypatch)
    assert again.records() == [good]
    assert again.quarantined == []


def test_an_acceptance_reaches_machines_that_have_the_night_already(url, tmp_path, monkeypatch):
    night = make_night("20261129T150000Z-abc-000009", [], accepted=False)
    open_store(url).add_night(night)
    other = open_on_another_machine(url, tmp_path, monkeypatch)
    by = Acceptance(owner="kernels", reason="meant", at_utc="2026-11-30T00:00:00Z")

    other.accept_night(replace(night, accepted=True, acceptance=by))

    assert [stored.accepted for stored in open_store(url, writable=False).nights()] == [True]


def test_what_is_removed_at_the_url_goes_from_other_machines(url, tmp_path, monkeypatch):
    store = open_store(url)
    store.add_record(make_record(), make_table())
    other = open_on_another_machine(url, tmp_path, monkeypatch)
    assert other.records() == [make_record()]

    Objects(url).remove(Objects(url).facts("records"))

    assert RemoteStore(other.folder, Objects(url), writable=False).records() == []


def test_a_place_without_a_store_is_absent_to_readers(url):
    from ci.exits import MissingDataError
    from ci.history.layout import open_existing

    with pytest.raises(MissingDataError, match="no such store"):
        open_existing(url)


def test_a_place_where_a_writer_failed_is_absent_to_readers_of_the_same_machine(url):
    """Else a page of nothing is built, and nobody asks why."""
    from ci.exits import MissingDataError
    from ci.history.layout import open_existing

    open_store(url)

    with pytest.raises(MissingDataError, match="no such store"):
        open_existing(url)


def refuse(monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", fail)


@pytest.mark.parametrize("error", [FileNotFoundError("The specified bucket does not exist"), PermissionError("denied")])
def test_a_place_that_cannot_be_written_is_told_before_anything_is_measured(monkeypatch, error):
    store = open_store("memory://nobody/store")
    refuse(monkeypatch, error)

    with pytest.raises(RemoteError, match=f"memory://nobody/store: .* cannot be written: .*{error}"):
        store.require_space(10)


def test_a_place_that_is_away_for_now_keeps_no_night_from_its_start(monkeypatch):
    store = open_store("memory://nobody/store")
    refuse(monkeypatch, ConnectionError("no route"))

    store.require_space(10)


def test_a_package_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(MissingPackageError, match=r"gs://bucket/fleet: .*gcsfs"):
        open_store("gs://bucket/fleet")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(MissingPackageError, match=r"needs fsspec: pip install 'recoverssm\[remote\]'"):
        open_store("memory://fleet")


def test_a_protocol_that_nobody_speaks_is_an_error_that_says_what_is_expected():
    with pytest.raises(RemoteError, match="expected a URL such as"):
        open_store("carrier-pigeon://loft")


def test_a_host_that_cannot_be_reached_is_told():
    with pytest.raises(RemoteError, match=r"sftp://127\.0\.0\.1:9/store: cannot be reached"):
        open_store("sftp://127.0.0.1:9/store")


def test_a_protocol_that_cannot_hold_back_a_second_object_of_one_name_is_for_reading(monkeypatch):
    monkeypatch.setattr("benchmarks.harness.objects.CREATES", set())
    with pytest.raises(RemoteError, match="can only be read"):
        open_store("memory://store")


def test_http_is_for_reading():
    with pytest.raises(RemoteError, match="can only be read"):
        open_store("http://127.0.0.1:9/store")


def test_opening_a_folder_needs_no_fsspec(tmp_path):
    code = "import sys; sys.modules['fsspec'] = None; from benchmarks.harness.store import open_store; open_store('x')"
    root = Path(__file__).resolve().parents[2]
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(root)}, check=True)


@pytest.mark.parametrize("narrows", [True, False])
def test_the_newest_nights_up_to_one_are_found_and_no_others_are_read(url, tmp_path, monkeypatch, narrows):
    ids = [f"2026{month:02d}{day:02d}T150000Z-abc-000009" for month in (1, 2, 6) for day in (1, 2, 3)]
    for id_ in ids:
        open_store(url).add_night(make_night(id_, []))
    monkeypatch.setenv("RECOVERSSM_CACHE_DIR", str(tmp_path / "fresh"))
    monkeypatch.setattr("benchmarks.harness.objects.PREFIX_LISTS", {"memory", "file"} if narrows else set())
    store = open_store(url, writable=False)
    assert (store.ids("nights"), store.ids("nights", newest=2)) == (ids, ids[-2:])
    assert not list(store.folder.rglob("*.json"))

    def found(**options):
        return [night.id for night in store.nights("nvidia-h200", **options)]

    assert found(newest=2) == ids[-2:]
    assert found(newest=4, before=ids[6]) == ids[3:7]
    assert sorted(path.stem for path in store.folder.rglob("*.json")) == sorted({*ids[-2:], *ids[3:7]})
    assert found(newest=100) == ids
    assert [night.id for night in store.recent_nights()] == ids


def test_names_that_lead_out_of_the_store_become_no_files(tmp_path, monkeypatch):
    class Hostile(Objects):
        def folders(self, name):
            return ["nvidia-h200", "..", "../.."]

        def facts(self, folder, prefix=""):
            names = [
                f"{folder}/../../../out.json",
                f"{folder}/..",
                f"{folder}/a/b.json",
                f"{folder}/.x.json",
                "/etc/x.json",
            ]
            return dict.fromkeys(names, Fact(1, 1))

        def get(self, names):
            return dict.fromkeys(names, b"x")

    store = RemoteStore(tmp_path / "a" / "b" / "c", Hostile("memory://hostile"), writable=False)

    store.fetch()
    assert store.records() == store.nights() == []
    assert list(store.read_each(read_record, None, {"../../../../out", "/etc/x"}, "nvidia-h200")) == []

    assert [path for path in tmp_path.rglob("*") if path.is_file() and path.name != ".lock"] == []


def test_a_night_that_was_accepted_elsewhere_before_it_was_known_to_be_sent_stays_accepted(url, monkeypatch):
    night = make_night("20261129T150000Z-abc-000009", [], accepted=False)
    store = open_store(url)
    path = store.add_night(night)
    mark = store.folder / "unsent" / path.relative_to(store.folder)
    mark.touch()  # as a kill would leave it
    by = Acceptance(owner="kernels", reason="meant", at_utc="2026-11-30T00:00:00Z")
    accepted = replace(night, accepted=True, acceptance=by)
    Objects(url).put(path.relative_to(store.folder).as_posix(), encode(accepted))

    assert open_store(url).nights() == [accepted]
    assert not mark.exists()
