"""The first page alone, from the newest nights: what it says, what it reads, and that it does not grow with a store."""

import os
import re
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.harness.objects import Objects
from benchmarks.harness.store import open_store
from reports.cli import app
from reports.site import build_site, build_today
from reports.sources import read_newest, read_stores
from tests.reports.fleet import BUCKET, PREFIX, Fleet, counts, environment, server
from tests.reports.synthetic import MODELS, write_large

NUMBERS = count()
NAVIGATION = re.compile(r"<nav.*?</nav>", re.DOTALL)
ROOT = Path(__file__).resolve().parents[2]


def page_of(site):
    return NAVIGATION.sub("", (site / "index.html").read_text())


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("newest")
    write_large(folder, nights=6, num_cases=2)
    return folder


def test_with_all_nights_it_is_the_page_of_the_whole_site(golden_store, now, tmp_path):
    build_site(read_stores([str(golden_store)]), tmp_path / "whole", now=now)
    build_today(read_newest([str(golden_store)], 100), tmp_path / "alone", now=now)

    assert page_of(tmp_path / "alone") == page_of(tmp_path / "whole")


def test_only_the_newest_nights_and_their_records_are_read(store):
    history = read_newest([str(store)], 2)

    assert {model: len(history.of(model)) for model in history.gpu_models()} == dict.fromkeys(MODELS, 2)
    assert [night.id for night in history.of(MODELS[0])] == [n.id for n in read_stores([str(store)]).of(MODELS[0])][-2:]
    assert len(history.records) == 2 * 2 * 5
    assert history.damaged == []


def test_the_night_that_a_newest_one_was_held_against_is_read_too(tmp_path):
    from tests.ci.stores import make_night, store_nights

    first = make_night(1)
    nights = [first, *(make_night(day) for day in (2, 3, 4)), make_night(5, base_night=first.night.id)]
    store_nights(tmp_path, *nights)

    history = read_newest([str(tmp_path)], 2)

    assert [night.id[6:8] for night in history.nights.values()] == ["01", "04", "05"]
    assert len(history.records) == 9


def test_from_a_url_come_no_samples_and_no_old_nights(store, tmp_path, monkeypatch):
    monkeypatch.setenv("RECOVERSSM_CACHE_DIR", str(tmp_path / "here"))
    url = f"memory://today-{next(NUMBERS)}"
    for path in store.rglob("*.*"):
        if path.is_file():
            Objects(url).put(path.relative_to(store).as_posix(), path.read_bytes())
    asked: list[str] = []
    get = Objects.get
    monkeypatch.setattr(Objects, "get", lambda self, names: asked.extend(names) or get(self, names))

    history = read_newest([url], 2)
    assert sorted(name.partition("/")[0] for name in asked) == ["nights"] * 4 + ["records"] * 20
    assert not [name for name in asked if name.endswith(".parquet")]
    assert list(history.nights) == list(read_newest([str(store)], 2).nights)
    read_newest([url], 2)
    assert len(asked) == 24

    assert len(open_store(url, writable=False).records()) == 60  # with what is here already, and its samples
    assert len(asked) == 4 + 60 + 60


def test_it_leaves_the_other_pages_of_a_site_and_names_those_that_are_not_there(store, tmp_path):
    history = read_newest([str(store)], 2)
    build_today(history, tmp_path / "new", newest=2)
    alone = (tmp_path / "new" / "index.html").read_text()
    assert "Made of the newest 2 nights" in alone
    assert 'title="This page was not built' in alone

    build_site(read_stores([str(store)]), tmp_path / "whole")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "whole").glob("[!i]*.html")}
    build_today(history, tmp_path / "whole", newest=2)

    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert 'title="This page was not built' not in (tmp_path / "whole" / "index.html").read_text()


def test_the_command_prints_the_page_and_a_damaged_record_exits_4(tmp_path):
    write_large(tmp_path / "store", nights=2, num_cases=2, models=MODELS[:1])
    options = ["today", "--store", str(tmp_path / "store"), "--out", str(tmp_path / "site")]
    assert CliRunner().invoke(app, options).output.strip() == str(tmp_path / "site" / "index.html")

    next((tmp_path / "store" / "records").rglob("*.json")).write_text("{")
    result = CliRunner().invoke(app, options)

    assert result.exit_code == 4
    assert "left out, unreadable: store/records" in result.output


def test_a_cache_that_cannot_be_written_is_told_and_fails_nothing(store, tmp_path):
    (tmp_path / ".site.cache").touch()

    result = CliRunner().invoke(app, ["today", "--store", str(store), "--out", str(tmp_path / "site")])

    assert result.exit_code == 0
    assert "notice: cache: " in result.output


@pytest.mark.long
def test_what_it_asks_a_server_for_does_not_grow_with_the_years(tmp_path):
    found = []
    for days in (70, 1000):
        with server(Fleet(models=2, cards=2, days=days, num_cases=2), latency_ms=0) as address:
            settings = environment(address, tmp_path / str(days))
            command = [sys.executable, "-m", "reports", "today", "--store", f"s3://{BUCKET}/{PREFIX.rstrip('/')}"]
            command += ["--out", str(tmp_path / f"site-{days}")]
            before = counts(address)
            subprocess.run(command, check=True, env={**os.environ, **settings}, cwd=ROOT)
            found.append([now - then for now, then in zip(counts(address), before, strict=True)])

    (requests, num_bytes), (more_requests, more_bytes) = found
    assert more_requests == requests
    assert abs(more_bytes - num_bytes) < 0.05 * num_bytes
