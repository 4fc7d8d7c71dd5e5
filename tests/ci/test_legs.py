"""Nights of several runners: brought together, missing, refused, overdue; and what make does around them."""

import datetime as dt
import io
import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.harness.store import Store, open_store
from ci.__main__ import app
from ci.exits import Exit
from ci.legs.collect import SPARE_NIGHTS, collect, overdue
from tests.ci.stores import make_night, put_at_url, store_nights

ROOT = Path(__file__).parents[2]


@pytest.fixture
def artifacts(tmp_path):
    """Call it with a leg and its nights; it leaves their archive as GitHub unpacks it."""

    def leave(leg, *nights):
        folder = tmp_path / leg
        store_nights(folder, *nights)
        place = tmp_path / "artifacts" / f"night-{leg}"
        place.mkdir(parents=True)
        with tarfile.open(place / "night.tar.gz", "w:gz") as archive:
            for part in ("records", "nights"):
                if (folder / part).exists():
                    archive.add(folder / part, part)
        return tmp_path / "artifacts"

    (tmp_path / "artifacts").mkdir()
    return leave


def test_nights_of_all_legs_come_into_one_store(artifacts, tmp_path):
    artifacts("h100", make_night(1))
    folder = artifacts("h200", make_night(2))

    legs = collect(folder, ["h100", "h200"], Store(tmp_path / "store"))

    assert [(leg.name, leg.code, len(leg.nights)) for leg in legs] == [("h100", Exit.PASS, 1), ("h200", Exit.PASS, 1)]
    assert len(Store(tmp_path / "store").nights()) == 2
    again = collect(folder, ["h100", "h200"], Store(tmp_path / "store"))
    assert [(leg.code, leg.nights) for leg in again] == [(Exit.PASS, []), (Exit.PASS, [])]


def test_leg_without_a_runner_is_missing_and_the_others_are_taken_in(artifacts, tmp_path):
    folder = artifacts("h200", make_night(2))

    done = CliRunner().invoke(app, ["collect", str(folder), "--expect", "h100, h200", "--store", str(tmp_path / "s")])

    assert done.exit_code == Exit.MISSING
    assert "h100: missing: no runner took it" in done.output
    assert len(Store(tmp_path / "s").nights()) == 1


def test_leg_that_ended_before_its_night_is_missing(artifacts, tmp_path):
    made = make_night(1)
    folder = artifacts("h100", made)
    with tarfile.open(folder / "night-h100" / "night.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "h100" / "records", "records")

    (leg,) = collect(folder, ["h100"], Store(tmp_path / "store"))

    assert (leg.code, leg.said) == (Exit.MISSING, "missing: 3 records, but no night was judged")


def test_leg_that_left_something_else_is_refused_alone(artifacts, tmp_path):
    folder = artifacts("h200", make_night(2))
    (folder / "night-h100").mkdir()
    with tarfile.open(folder / "night-h100" / "night.tar.gz", "w:gz") as archive:
        stray = tarfile.TarInfo("../../outside")
        stray.size = 1
        archive.addfile(stray, io.BytesIO(b"x"))

    done = CliRunner().invoke(
        app, ["collect", str(folder), "--expect", "h100,h200", "--store", str(tmp_path / "s"), "--json"]
    )

    assert done.exit_code == Exit.INVALID
    assert [leg["code"] for leg in json.loads(done.stdout)["legs"]] == [4, 0]


def test_model_whose_last_night_is_too_old_is_overdue(tmp_path):
    store = store_nights(tmp_path / "store", make_night(28))  # 2026-11-28 at nine
    soon, late = (dt.datetime(2026, 11, day, 12, tzinfo=dt.UTC) for day in (29, 30))

    assert overdue(store, ["nvidia-h2*"], 30, soon) == []
    assert overdue(store, ["nvidia-h2*"], 30, late) == [
        "nvidia-h2*: the last night is 51 hours old (2026-11-28T09:00:00Z), limit 30"
    ]
    assert overdue(store, ["nvidia-gb300*"], 30, soon) == ["nvidia-gb300*: there has never been a night"]


def test_no_more_than_the_last_nights_are_read(tmp_path, monkeypatch):
    store = store_nights(tmp_path / "store", *(make_night(day) for day in range(20, 29)))
    url, asked = put_at_url(store, tmp_path, monkeypatch)

    late = overdue(open_store(url, writable=False), ["nvidia-h2*"], 30, dt.datetime(2026, 11, 29, tzinfo=dt.UTC))

    assert (late, len(asked)) == ([], SPARE_NIGHTS)


def test_what_comes_in_is_looked_for_by_name(artifacts, tmp_path, monkeypatch):
    store = store_nights(tmp_path / "store", *(make_night(day) for day in range(10, 16)))
    url, asked = put_at_url(store, tmp_path, monkeypatch)
    folder = artifacts("h200", make_night(15), make_night(16))

    (leg,) = collect(folder, ["h200"], open_store(url))

    assert leg.code == Exit.PASS, leg.said
    assert {name.split("/")[2][:8] for name in asked} == {"20261115", "20261116"}


def test_overdue_ends_with_missing_data(tmp_path):
    store_nights(tmp_path / "store", make_night(28))

    done = CliRunner().invoke(app, ["overdue", "--gpu-model", "nvidia-gb300*", "--store", str(tmp_path / "store")])

    assert (done.exit_code, done.output) == (Exit.MISSING, "nvidia-gb300*: there has never been a night\n")


@pytest.fixture
def checkout(tmp_path):
    """A clone with our Makefile, whose origin may have a branch perf-history; call it with git's arguments."""
    names = ("AUTHOR_NAME", "AUTHOR_EMAIL", "COMMITTER_NAME", "COMMITTER_EMAIL")
    env = {**os.environ, **{f"GIT_{name}": "someone@localhost" for name in names}}

    def run(*command, cwd=tmp_path / "clone"):
        return subprocess.run(command, cwd=cwd, env=env, check=True, capture_output=True, text=True).stdout

    (tmp_path / "origin").mkdir()
    run("git", "init", "--quiet", "--initial-branch=main", cwd=tmp_path / "origin")
    run("git", "commit", "--quiet", "--allow-empty", "--message=first", cwd=tmp_path / "origin")
    run("git", "clone", "--quiet", "origin", "clone", cwd=tmp_path)
    shutil.copy(ROOT / "Makefile", tmp_path / "clone")
    return run


def test_leg_gets_the_nights_so_far_and_leaves_only_what_is_new(checkout, tmp_path):
    origin, clone = tmp_path / "origin", tmp_path / "clone"
    checkout("git", "checkout", "--quiet", "--orphan", "perf-history", cwd=origin)
    (origin / "nights").mkdir()
    (origin / "nights/old.json").write_text("old")
    checkout("git", "add", ".", cwd=origin)
    env_time = "2026-11-29T00:00:00Z"
    checkout("env", f"GIT_COMMITTER_DATE={env_time}", "git", "commit", "--quiet", "--message=old", cwd=origin)

    checkout("make", "leg-begin")
    assert (clone / "out/leg/store/nights/old.json").read_text() == "old"
    (clone / "out/leg/store/nights/new.json").write_text("new")
    newer = (clone / "out/leg/begun").stat().st_mtime + 1
    os.utime(clone / "out/leg/store/nights/new.json", (newer, newer))
    checkout("make", "leg-end")

    with tarfile.open(clone / "out/leg/night.tar.gz") as archive:
        assert archive.getnames() == ["nights/new.json"]


def test_first_leg_has_no_nights_before_it(checkout, tmp_path):
    assert "no branch perf-history yet" in checkout("make", "leg-begin")
    checkout("make", "leg-end")

    with tarfile.open(tmp_path / "clone/out/leg/night.tar.gz") as archive:
        assert archive.getnames() == []


def test_leg_that_cannot_ask_for_the_nights_so_far_does_not_begin(checkout, tmp_path):
    shutil.rmtree(tmp_path / "origin")

    with pytest.raises(subprocess.CalledProcessError):
        checkout("make", "leg-begin")


def test_site_is_published_as_one_commit_and_the_checkout_stays_as_it_is(checkout, tmp_path):
    (tmp_path / "clone/out/site").mkdir(parents=True)
    for text in ("first", "second"):
        (tmp_path / "clone/out/site/index.html").write_text(text)
        checkout("make", "publish")

    assert checkout("git", "show", "gh-pages:index.html", cwd=tmp_path / "origin") == "second"
    assert checkout("git", "rev-list", "--count", "gh-pages", cwd=tmp_path / "origin") == "1\n"
    assert checkout("git", "diff", "--cached", "--name-only") == ""
