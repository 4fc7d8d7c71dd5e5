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


def test_leg_that_is_refused_writes_no_line_of_its_own_into_the_log(artifacts, tmp_path):
    folder = artifacts("h200", make_night(2))
    night = '{"schema_version": 1, "x\\n::error::y": 1}'
    (tmp_path / "nights/nvidia-h200").mkdir(parents=True)
    (tmp_path / "nights/nvidia-h200/20261129T010203Z-abc-000001.json").write_text(night)
    with tarfile.open(folder / "night-h200" / "night.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "nights", "nights")

    (leg,) = collect(folder, ["h200"], Store(tmp_path / "store"))

    assert leg.code == Exit.INVALID
    assert len(leg.said.splitlines()) == 1


def test_model_whose_last_night_is_too_old_is_overdue(tmp_path):
    store = store_nights(tmp_path / "store", make_night(28))  # 2026-11-28 at nine
    soon, late = (dt.datetime(2026, 11, day, 12, tzinfo=dt.UTC) for day in (29, 30))

    assert overdue(store, ["nvidia-h2*"], 30, soon) == []
    assert overdue(store, ["nvidia-h2*"], 30, late) == [
        "nvidia-h2*: the last night is 51 hours old (2026-11-28T09:00:00Z), limit 30"
    ]
    assert overdue(store, ["nvidia-gb300*"], 30, soon) == ["nvidia-gb300*: the store has no night"]


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


def test_night_of_a_clock_that_ran_ahead_does_not_silence_the_check(tmp_path):
    store = store_nights(tmp_path / "store", make_night(27), make_night(30))
    now = dt.datetime(2026, 11, 29, 12, tzinfo=dt.UTC)

    (told,) = overdue(store, ["nvidia-h2*"], 24, now)

    assert "2026-11-27T" in told


def test_check_with_no_number_of_hours_tells(tmp_path):
    store = store_nights(tmp_path / "store", make_night(28))

    assert overdue(store, ["nvidia-h2*"], float("nan"), dt.datetime(2026, 11, 29, tzinfo=dt.UTC)) != []


@pytest.mark.parametrize("names", ["", " , ", "h100,,../h200", "a b"])
def test_legs_have_plain_names(tmp_path, names):
    done = CliRunner().invoke(app, ["collect", str(tmp_path), "--expect", names, "--store", str(tmp_path / "s")])

    assert done.exit_code == Exit.USAGE
    assert "--expect: expected" in done.output


def test_folder_of_artifacts_that_is_not_there_is_refused(tmp_path):
    command = ["collect", str(tmp_path / "none"), "--expect", "h100", "--store", str(tmp_path / "s")]

    assert CliRunner().invoke(app, command).exit_code == Exit.USAGE


def test_model_must_be_named(tmp_path):
    store_nights(tmp_path / "store", make_night(28))

    done = CliRunner().invoke(app, ["overdue", "--gpu-model", ",", "--store", str(tmp_path / "store")])

    assert done.exit_code == Exit.USAGE


@pytest.fixture
def runs(artifacts, tmp_path):
    """Call it with a run, a leg and its nights."""

    def leave(run, leg, *nights):
        source = artifacts(f"{leg}.{run}", *nights) / f"night-{leg}.{run}"
        target = tmp_path / "runs" / run / f"night-{leg}"
        target.parent.mkdir(parents=True, exist_ok=True)
        source.rename(target)
        return tmp_path / "runs"

    return leave


def test_leg_that_ended_after_the_page_was_built_is_collected_by_the_next(runs, tmp_path):
    folder = runs("99", "h100", make_night(1))
    runs("100", "h200", make_night(2))

    legs = collect(folder, ["h100", "h200"], Store(tmp_path / "store"))

    assert [(leg.name, leg.code) for leg in legs] == [
        ("h100 of run 99", Exit.PASS),
        ("h100", Exit.MISSING),
        ("h200", Exit.PASS),
    ]
    assert len(Store(tmp_path / "store").nights()) == 2
    again = collect(folder, ["h100", "h200"], Store(tmp_path / "store"))
    assert [leg.name for leg in again] == ["h100", "h200"]


def test_newest_run_is_that_of_the_highest_number(runs, tmp_path):
    folder = runs("9", "h200", make_night(1))
    (folder / "10").mkdir()

    *_, leg = collect(folder, ["h200"], Store(tmp_path / "store"))

    assert leg.code == Exit.MISSING


def test_old_leg_that_is_refused_is_told_and_fails_nothing(runs, tmp_path):
    folder = runs("9", "h200", make_night(1))
    runs("10", "h200", make_night(2))
    (folder / "9/night-h200/night.tar.gz").write_bytes(b"\x1f\x8b")

    old, new = collect(folder, ["h200"], Store(tmp_path / "store"))

    assert (old.code, new.code) == (Exit.PASS, Exit.PASS)
    assert "not taken in" in old.said


def test_overdue_ends_with_missing_data(tmp_path):
    store_nights(tmp_path / "store", make_night(28))

    done = CliRunner().invoke(app, ["overdue", "--gpu-model", "nvidia-gb300*", "--store", str(tmp_path / "store")])

    assert (done.exit_code, done.output) == (Exit.MISSING, "nvidia-gb300*: the store has no night\n")


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
    os.utime(clone / "out/leg/store/nights/new.json", (0, 0))  # as after a clock that was set back
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


GH = """#!/bin/sh
echo "$@" >> {said}
case "$2 $3" in
  "list "*) case "$*" in *"--event schedule"*) echo 12;; *"--event workflow_dispatch"*) echo 11;; *) echo 13;; esac ;;
  "download 12") exit 1 ;;
  "download 11") mkdir -p out/artifacts/11/night-h200 && echo night > out/artifacts/11/night-h200/night.tar.gz ;;
esac
"""


def test_artifacts_of_the_newest_runs_of_this_branch_lie_run_by_run_and_none_of_a_pull_request(
    checkout, tmp_path, monkeypatch
):
    said, gh = tmp_path / "said", tmp_path / "bin" / "gh"
    gh.parent.mkdir()
    gh.write_text(GH.format(said=said))
    gh.chmod(0o755)

    out = checkout("env", f"PATH={gh.parent}:{os.environ['PATH']}", "GITHUB_REF_NAME=main", "make", "leg-artifacts")

    runs = tmp_path / "clone/out/artifacts"
    assert sorted(path.name for path in runs.iterdir()) == ["11", "12"]
    assert (runs / "11/night-h200/night.tar.gz").exists()
    assert "run 12: nothing was downloaded" in out
    assert "--workflow nightly.yml --branch main " in said.read_text()
