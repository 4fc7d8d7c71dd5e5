"""What may write: nights are only ever added, the site is one commit, and nothing but plain files gets anywhere."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.harness.store import KINDS, Store
from ci.exits import Exit
from ci.history.archives import Limits
from ci.legs import publish as module
from tests.ci.stores import make_night, store_nights

ROOT = Path(__file__).parents[2]
NAME = "nights/nvidia-h200/20261129T010203Z-abc-000001.json"


@pytest.fixture
def git(tmp_path):
    """Call it with git's arguments, for ``origin`` if not said otherwise."""
    (tmp_path / "home").mkdir()
    env = {**os.environ, "HOME": str(tmp_path / "home"), "GIT_CONFIG_NOSYSTEM": "1"}

    def run(*arguments, cwd=tmp_path / "origin"):
        return subprocess.run(("git", *arguments), cwd=cwd, env=env, check=True, capture_output=True, text=True).stdout

    run("init", "--quiet", "--bare", "--initial-branch=main", "origin", cwd=tmp_path)
    run("clone", "--quiet", "origin", "clone", cwd=tmp_path)
    return run


@pytest.fixture
def collected(git, tmp_path):
    folder = tmp_path / "clone/out/collected"
    (folder / "site").mkdir(parents=True)
    (folder / "site/index.html").write_text("first")
    return folder


@pytest.fixture
def publish(collected, tmp_path):
    """Runs it as the workflow does, in a Python that finds nothing installed."""

    def run():
        command = [sys.executable, "-S", "-m", "ci.legs.publish", "out/collected"]
        env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=tmp_path / "clone", env=env, check=False, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    return run


def put(folder, name, content):
    path = folder / "new" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def test_new_nights_are_added_to_those_there(git, publish, collected, tmp_path):
    for day in (1, 2):
        store_nights(tmp_path / "store", make_night(day))
        for kind in KINDS:
            shutil.copytree(tmp_path / "store" / kind, collected / "new" / kind, dirs_exist_ok=True)
        assert publish()[0] == Exit.PASS

    git("worktree", "add", str(tmp_path / "there"), "perf-history")
    assert [night.created_utc[:10] for night in Store(tmp_path / "there").nights()] == ["2026-11-01", "2026-11-02"]
    assert git("rev-list", "--count", "perf-history") == "2\n"
    assert "nothing new" in publish()[1]
    assert git("rev-list", "--count", "perf-history") == "2\n"


def test_what_is_there_and_was_not_collected_stays(git, publish, collected):
    path = put(collected, NAME, "first")
    publish()
    path.unlink()
    put(collected, NAME.replace("000001", "000002"), "second")

    assert publish()[0] == Exit.PASS
    assert git("show", f"perf-history:{NAME}") == "first"


def test_what_is_there_is_never_overwritten(git, publish, collected):
    put(collected, NAME, "first")
    publish()
    put(collected, NAME, "second")
    put(collected, NAME.replace("000001", "000002"), "third")

    code, said = publish()

    assert code == Exit.INVALID
    assert f"another {NAME} is there" in said
    assert git("ls-tree", "-r", "--name-only", "perf-history").split() == [NAME]
    assert git("show", f"perf-history:{NAME}") == "first"


@pytest.mark.parametrize(
    "name", ["nights/x.json", "code.py", ".github/workflows/x.yml", "records/a/b.sh", "quarantine/a"]
)
def test_files_that_belong_to_no_store_are_refused(git, publish, collected, name):
    put(collected, NAME, "night")
    put(collected, name, "strange")

    code, said = publish()

    assert code == Exit.INVALID
    assert "expected a plain file of a plain name" in said
    assert git("branch", "--list", "perf-history") == ""


@pytest.mark.parametrize("place", [f"new/{NAME}", "site/secret.html"])
def test_a_link_is_refused(git, publish, collected, place):
    (collected / place).parent.mkdir(parents=True, exist_ok=True)
    (collected / place).symlink_to("/etc/passwd")

    code, said = publish()

    assert code == Exit.INVALID
    assert "expected a plain file" in said
    assert git("branch", "--list", "perf-history") == ""


@pytest.mark.parametrize("name", [".github/workflows/x.yml", "a/.htaccess", "two words.html"])
def test_a_site_has_no_hidden_file(git, publish, collected, name):
    (collected / "site" / name).parent.mkdir(parents=True, exist_ok=True)
    (collected / "site" / name).write_text("strange")

    assert publish()[0] == Exit.INVALID
    assert git("branch", "--list", "gh-pages") == ""


def test_sizes_are_those_of_an_import():
    limits = Limits()
    assert (module.MAX_FILES, module.MAX_FILE_BYTES, module.MAX_BYTES) == (
        limits.num_members,
        limits.file_bytes,
        limits.total_bytes,
    )


@pytest.mark.parametrize(
    ("name", "most", "said"),
    [("MAX_FILE_BYTES", 4, "5 bytes, 4 at most"), ("MAX_FILES", 0, "1 files"), ("MAX_BYTES", 4, "5 b")],
)
def test_more_than_that_is_refused(collected, monkeypatch, name, most, said):
    monkeypatch.chdir(collected.parents[1])
    monkeypatch.setattr(module, name, most)

    with pytest.raises(module.StrangeFileError, match=said):
        module.plain_tree(collected / "site", module.PAGE_FILE)


def test_others_who_push_meanwhile_lose_nothing(git, publish, collected, tmp_path):
    """A hook of the remote stands for another fleet: it is there first."""
    put(collected, NAME, "first")
    publish()
    put(collected, NAME.replace("000001", "000002"), "second")
    hook = tmp_path / "origin/hooks/pre-receive"
    hook.write_text(
        "#!/bin/sh\nrm hooks/pre-receive\nunset GIT_QUARANTINE_PATH GIT_OBJECT_DIRECTORY\n"
        "new=$(git -c user.name=x -c user.email=x@x commit-tree -p perf-history -m theirs 'perf-history^{tree}')\n"
        "git update-ref refs/heads/perf-history $new\n"
    )
    hook.chmod(0o755)

    assert publish()[0] == Exit.PASS
    assert git("log", "--format=%s", "perf-history").splitlines()[1] == "theirs"
    assert len(git("ls-tree", "-r", "--name-only", "perf-history").split()) == 2


def test_the_site_is_one_commit_and_the_checkout_stays_as_it_is(git, publish, collected, tmp_path):
    for text in ("first", "second"):
        (collected / "site/index.html").write_text(text)
        assert publish()[0] == Exit.PASS

    assert git("show", "gh-pages:index.html") == "second"
    assert git("rev-list", "--count", "gh-pages") == "1\n"
    assert git("diff", "--cached", "--name-only", cwd=tmp_path / "clone") == ""


def test_without_a_site_the_nights_come_in_and_the_site_before_stays(git, publish, collected):
    publish()
    (collected / "site/index.html").unlink()
    put(collected, NAME, "night")

    code, said = publish()

    assert code == Exit.MISSING
    assert "no site" in said
    assert git("show", "gh-pages:index.html") == "first"
    assert git("show", f"perf-history:{NAME}") == "night"


def test_a_remote_that_cannot_be_asked_is_told(git, publish, collected, tmp_path):
    put(collected, NAME, "night")
    (tmp_path / "origin").rename(tmp_path / "gone")

    code, said = publish()

    assert code == Exit.BROKEN
    assert "git ls-remote origin" in said


def test_make_leaves_what_came_in_since_it_began_and_the_site_as_plain_files(git, tmp_path):
    clone = tmp_path / "clone"
    (clone / "Makefile").write_bytes((ROOT / "Makefile").read_bytes())
    subprocess.run(["make", "leg-begin"], cwd=clone, check=True, capture_output=True)
    store_nights(clone / "out/leg/store", make_night(2))
    for name in ("index.html", "data/night.js", ".recoverssm-site"):  # that mark is for `reports publish`
        (clone / "out/site" / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / "out/site" / name).write_text(name)

    subprocess.run(["make", "collected"], cwd=clone, check=True, capture_output=True)

    left = {path.relative_to(clone / "out/collected").as_posix() for path in (clone / "out/collected").rglob("*.*")}
    assert {name for name in left if name.startswith("site")} == {"site/index.html", "site/data/night.js"}
    assert len(Store(clone / "out/collected/new").nights()) == 1
    assert ".lock" not in {Path(name).name for name in left}

    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(["make", "publish", f"PYTHON={sys.executable} -S"], cwd=clone, env=env, check=True)
    assert len(git("ls-tree", "-r", "--name-only", "perf-history").split()) == 7
    assert git("show", "gh-pages:data/night.js") == "data/night.js"
