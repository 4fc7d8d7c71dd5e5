"""The folder of a store: what is there after writers that fail, are killed, or write at once."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from benchmarks.harness import store_folder
from benchmarks.harness.errors import AlreadyStoredError, StoreError, StoreFullError
from benchmarks.harness.store import Store, open_store
from tests.harness.stored import add_three, contents_of, files_of, make_record, make_table

ADD = """
import sys
from pathlib import Path
from benchmarks.harness.store import Store
from tests.harness.stored import make_record, make_table
store = Store(Path(sys.argv[1]))
for i in range(10):
    store.add_record(make_record(f"20261129T140000Z-{sys.argv[2]}-{i:06d}"), make_table())
    store.records()
print(store.quarantined)
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def test_nothing_is_ever_overwritten(store: Store):
    path = store.add_record(make_record(), make_table())
    before = contents_of(store.folder)

    with pytest.raises(AlreadyStoredError, match=path.stem):
        store.add_record(msgspec.structs.replace(make_record(), seed=2), make_table())
    assert contents_of(store.folder) == before


def test_files_are_on_the_disk_before_they_have_their_names_and_the_folders_after(store, monkeypatch):
    done, rename = [], Path.rename
    monkeypatch.setattr(os, "fsync", lambda descriptor: done.append(Path(f"/proc/self/fd/{descriptor}").readlink()))
    monkeypatch.setattr(Path, "rename", lambda old, new: done.append(new) or rename(old, new))

    path = store.add_record(make_record(), make_table())

    names = [place.name for place in done[-5:]]
    assert [name.endswith(".tmp") for name in names] == [True, True, False, False, False]
    assert done[-3:] == [path.with_suffix(".parquet"), path, path.parent]
    assert {path.parent.parent, store.folder} <= set(done[:-5])  # the folders that are new


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("failing_call", ["_write_through", "_sync_folder", "rename"])
@pytest.mark.parametrize("after", [0, 1])
def test_full_disk_leaves_no_file_under_a_final_name(
    store: Store, monkeypatch: pytest.MonkeyPatch, code: int, failing_call: str, after: int
):
    store.add_record(make_record("20261129T130000Z-abc-000000"), make_table())
    before = files_of(store.folder)
    calls = [0]
    owner, name = (Path, "rename") if failing_call == "rename" else (store_folder, failing_call)
    works = getattr(owner, name)

    def fail(*args: object) -> object:
        calls[0] += 1
        if calls[0] > after or failing_call == "_sync_folder":
            if failing_call == "_write_through":
                args[0].write_bytes(b"half")
            raise OSError(code, os.strerror(code))
        return works(*args)

    monkeypatch.setattr(owner, name, fail)
    with pytest.raises(StoreFullError, match="Make room"):
        store.add_record(make_record(), make_table())
    assert files_of(store.folder) == before


def test_interrupted_write_leaves_the_others_readable(store: Store, monkeypatch: pytest.MonkeyPatch):
    store.add_record(make_record("20261129T130000Z-abc-000000"), make_table())

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(store_folder, "_write_through", interrupt)
    with pytest.raises(KeyboardInterrupt):
        store.add_record(make_record(), make_table())
    assert [record.id for record in store.records()] == ["20261129T130000Z-abc-000000"]
    assert store.quarantined == []


def test_files_left_by_a_killed_writer_are_named_and_set_aside(store: Store):
    add_three(store)
    folder = store.folder / "records" / "nvidia-h200"
    (folder / ".20261129T140009Z-abc-000009.json.123.tmp").write_bytes(b'{"id"')
    (folder / "20261129T140009Z-abc-000009.parquet").write_bytes(b"PAR1")

    assert len(store.records()) == 3
    assert sorted(note.split(": ")[0].rsplit("/", 1)[1] for note in store.quarantined) == [
        ".20261129T140009Z-abc-000009.json.123.tmp",
        "20261129T140009Z-abc-000009.parquet",
    ]
    assert all("interrupted" in note for note in store.quarantined)
    assert len(list(folder.iterdir())) == 6


def test_record_whose_writer_was_killed_before_its_json_can_be_added_again(store: Store):
    path = store.add_record(make_record(), make_table())
    path.unlink()
    path.with_suffix(".parquet").write_bytes(b"PAR1")

    store.add_record(make_record(), make_table())

    assert [record.id for record in store.records([make_record().id])] == [make_record().id]
    assert store.quarantined == []


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_disk_that_takes_no_more_does_not_keep_the_readable_files_from_being_used(
    store: Store, monkeypatch: pytest.MonkeyPatch, code: int
):
    paths = add_three(store)
    paths[1].write_bytes(b"{")
    paths[2].with_name(".x.json.1.tmp").write_bytes(b"")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Path, "replace", refuse)
    assert [record.id[-1] for record in store.records()] == ["0", "2"]
    assert len(store.quarantined) == 2
    assert all(f"not set aside: {os.strerror(code)}" in note for note in store.quarantined)


def test_store_that_is_only_read_is_never_written_to(store: Store):
    paths = add_three(store)
    paths[0].write_bytes(b"{")
    paths[1].with_suffix(".parquet").write_bytes(b"PAR1")
    paths[2].with_name(".x.json.1.tmp").write_bytes(b"")
    before = contents_of(store.folder)
    reader = open_store(store.folder, writable=False)

    assert [record.id[-1] for record in reader.records()] == ["2"]
    assert len(reader.quarantined) == 3
    assert contents_of(store.folder) == before
    with pytest.raises(StoreError, match="opened for reading only"):
        reader.add_record(make_record(), make_table())


@pytest.mark.parametrize("name", ["../up", "a/b", "", ".hidden"])
def test_name_that_leaves_the_store_is_refused(store: Store, name: str):
    with pytest.raises(StoreError, match="plain name"):
        store.add_record(make_record(name), make_table())


def test_file_is_no_store(tmp_path: Path):
    (tmp_path / "file").write_text("")

    with pytest.raises(StoreError, match="expected a folder"):
        open_store(tmp_path / "file")


def test_store_that_can_be_written_to_stays_as_it_is(store: Store):
    add_three(store)
    before = files_of(store.folder)

    store.require_space(1000)
    assert files_of(store.folder) == before


def test_absent_folder_is_an_empty_store(tmp_path: Path):
    store = open_store(tmp_path / "nowhere")

    assert store.records() == []
    assert store.nights() == []
    assert not store.folder.exists()


def test_two_processes_adding_at_once_lose_nothing(store: Store):
    root = Path(__file__).parents[2]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", ADD, str(store.folder), name],
            cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for name in ("aaa", "bbb")
    ]  # fmt: skip
    printed = [process.communicate(timeout=60) for process in processes]

    assert printed == [("[]\n", ""), ("[]\n", "")]
    assert len(store.records()) == 20
    assert store.quarantined == []
