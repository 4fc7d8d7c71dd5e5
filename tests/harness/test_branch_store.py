import subprocess
from pathlib import Path

import pytest

from benchmarks.harness import branch_store
from benchmarks.harness.branch_store import BranchStore, open_branch_store
from benchmarks.harness.errors import BranchError, StoreError
from benchmarks.harness.store import open_store
from tests.harness.stored import make_night, make_record, make_table

BRANCH = "perf-history"
RECORD_ID = make_record().id


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.invalid", "-c", "commit.gpgsign=false")
    return subprocess.run(
        ["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture(autouse=True)
def _no_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a fresh runner: git knows no user and reads no settings of this machine."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "no-config"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("HOME", str(tmp_path))


def make_workspace(folder: Path, origin: Path | None = None) -> Path:
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    (folder / "code.py").write_text("one = 1\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "begin")
    if origin is not None:
        git(folder, "remote", "add", "origin", str(origin))
    return folder


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    return make_workspace(tmp_path / "one" / "work")


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    folder = tmp_path / "origin.git"
    folder.mkdir()
    git(folder, "init", "-q", "--bare")
    return folder


def files_on(folder: Path, ref: str) -> list[str]:
    return git(folder, "ls-tree", "-r", "--name-only", ref).splitlines()


def test_missing_branch_is_made_without_a_parent_and_without_code(workspace: Path):
    store = open_branch_store(BRANCH, workspace=workspace)

    assert store.folder == workspace.parent / "work-perf-history"
    assert git(workspace, "rev-list", "--count", BRANCH) == "1"
    assert files_on(workspace, BRANCH) == []
    assert git(workspace, "rev-parse", "--abbrev-ref", "HEAD") == "main"
    assert git(workspace, "status", "--porcelain") == ""


def test_every_addition_is_a_commit(workspace: Path):
    store = open_branch_store(BRANCH, workspace=workspace)
    store.add_record(make_record(), make_table())
    store.add_night(make_night("20261129T150000Z-abc-000001", [RECORD_ID]))

    assert sorted(files_on(workspace, BRANCH)) == [
        "nights/nvidia-h200/20261129T150000Z-abc-000001.json",
        f"records/nvidia-h200/{RECORD_ID}.json",
        f"records/nvidia-h200/{RECORD_ID}.parquet",
    ]
    assert git(workspace, "log", "-1", "--format=%s", BRANCH) == "history: night 20261129T150000Z-abc-000001"


def test_branch_is_found_again(workspace: Path):
    open_branch_store(BRANCH, workspace=workspace).add_record(make_record(), make_table())

    assert open_branch_store(BRANCH, workspace=workspace).records() == [make_record()]


def test_store_is_opened_by_its_prefix(workspace: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(workspace)
    store = open_store(f"branch:{BRANCH}")

    assert isinstance(store, BranchStore)


def test_deleted_worktree_is_checked_out_again(workspace: Path):
    store = open_branch_store(BRANCH, workspace=workspace)
    store.add_record(make_record(), make_table())
    store.folder.rename(workspace.parent / "gone")

    assert open_branch_store(BRANCH, workspace=workspace).records() == [make_record()]


def test_night_is_pushed_and_found_from_another_clone(workspace: Path, origin: Path, tmp_path: Path):
    git(workspace, "remote", "add", "origin", str(origin))
    store = open_branch_store(BRANCH, workspace=workspace)
    store.add_record(make_record(), make_table())
    store.add_night(make_night("20261129T150000Z-abc-000001", [RECORD_ID]))
    other = open_branch_store(BRANCH, workspace=make_workspace(tmp_path / "two" / "work", origin))

    assert [night.id for night in other.nights()] == ["20261129T150000Z-abc-000001"]
    assert other.records() == [make_record()]


def test_two_hosts_that_push_at_once_keep_both_nights(workspace: Path, origin: Path, tmp_path: Path):
    git(workspace, "remote", "add", "origin", str(origin))
    first = open_branch_store(BRANCH, workspace=workspace)
    first.add_night(make_night("20261129T150000Z-abc-000001", []))
    second = open_branch_store(BRANCH, workspace=make_workspace(tmp_path / "two" / "work", origin))
    first.add_night(make_night("20261129T150000Z-abc-000002", []))
    second.add_night(make_night("20261129T150000Z-abc-000003", []))

    assert len(files_on(origin, BRANCH)) == 3


def test_failed_push_loses_nothing_and_says_what_to_do(
    workspace: Path, origin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(branch_store, "PUSH_TRIES", 2)
    git(workspace, "remote", "add", "origin", str(origin))
    store = open_branch_store(BRANCH, workspace=workspace)
    origin.rename(tmp_path / "unplugged.git")

    with pytest.raises(BranchError, match=r"Nothing is lost.*Push later: git -C"):
        store.add_night(make_night("20261129T150000Z-abc-000001", []))
    assert files_on(workspace, BRANCH) == ["nights/nvidia-h200/20261129T150000Z-abc-000001.json"]
    (tmp_path / "unplugged.git").rename(origin)
    open_branch_store(BRANCH, workspace=workspace).publish()
    assert len(files_on(origin, BRANCH)) == 1


def test_unreachable_remote_does_not_start_a_second_history(workspace: Path, tmp_path: Path):
    git(workspace, "remote", "add", "origin", str(tmp_path / "nowhere.git"))

    with pytest.raises(BranchError, match="Give a folder as --store"):
        open_branch_store(BRANCH, workspace=workspace)
    assert git(workspace, "branch", "--list", BRANCH) == ""


def test_files_that_could_not_be_committed_are_committed_next_time(workspace: Path, monkeypatch: pytest.MonkeyPatch):
    store = open_branch_store(BRANCH, workspace=workspace)
    lock = workspace / ".git" / "worktrees" / store.folder.name / "index.lock"
    lock.write_text("")

    with pytest.raises(BranchError, match="Nothing is lost: the files are in"):
        store.add_record(make_record(), make_table())
    lock.unlink()
    open_branch_store(BRANCH, workspace=workspace)
    assert len(files_on(workspace, BRANCH)) == 2


def test_corrupt_record_is_set_aside_on_the_branch_too(workspace: Path):
    store = open_branch_store(BRANCH, workspace=workspace)
    store.add_record(make_record(), make_table()).write_bytes(b"{")

    assert store.records() == []
    assert sorted(files_on(workspace, BRANCH)) == [
        f"quarantine/records/nvidia-h200/{RECORD_ID}.json",
        f"quarantine/records/nvidia-h200/{RECORD_ID}.json.reason.txt",
        f"quarantine/records/nvidia-h200/{RECORD_ID}.parquet",
    ]
    assert git(store.folder, "status", "--porcelain", "--untracked-files=no") == ""


def test_hooks_of_the_workspace_do_not_run_on_the_history(workspace: Path):
    hook = workspace / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    open_branch_store(BRANCH, workspace=workspace).add_record(make_record(), make_table())

    assert len(files_on(workspace, BRANCH)) == 2


def test_folder_without_a_repository_is_a_clear_error(tmp_path: Path):
    with pytest.raises(StoreError, match="not a git repository"):
        open_branch_store(BRANCH, workspace=tmp_path)


def test_killed_rebase_is_undone_and_loses_no_file(workspace: Path, origin: Path):
    git(workspace, "remote", "add", "origin", str(origin))
    store = open_branch_store(BRANCH, workspace=workspace)
    store.publish()
    store.add_record(make_record(), make_table())
    git(store.folder, "-c", "sequence.editor=sed -i 1ibreak", "rebase", "-q", "-i", "HEAD~1")
    left = store.folder / "nights" / "nvidia-h200" / "20261129T150000Z-abc-000001.json"
    left.parent.mkdir(parents=True)
    left.write_text("{}")

    open_branch_store(BRANCH, workspace=workspace)

    assert git(store.folder, "symbolic-ref", "--short", "HEAD") == BRANCH
    assert f"records/nvidia-h200/{RECORD_ID}.json" in files_on(workspace, BRANCH)
    assert str(left.relative_to(store.folder)) in files_on(workspace, BRANCH)


def test_other_branch_in_the_folder_is_refused_and_not_written_to(workspace: Path):
    folder = open_branch_store(BRANCH, workspace=workspace).folder
    git(folder, "checkout", "-q", "-b", "other")

    with pytest.raises(BranchError, match=f"has other checked out; go back: git -C .* checkout {BRANCH}"):
        open_branch_store(BRANCH, workspace=workspace)


def test_branch_that_is_only_read_is_not_made(workspace: Path):
    store = open_branch_store("typo", writable=False, workspace=workspace)

    assert store.nights() == []
    assert not store.folder.exists()
    assert git(workspace, "branch", "--list", "typo") == ""


@pytest.mark.parametrize("name", ["", "--help", "-d"])
def test_name_that_git_would_take_for_an_option_is_refused(workspace: Path, name: str):
    with pytest.raises(BranchError, match="expected branch:NAME"):
        open_branch_store(name, workspace=workspace)
