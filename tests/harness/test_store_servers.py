"""A store on a real server, of S3 and of SFTP: writers at once, writers that are killed, damage beside what is good."""

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import fsspec
import pytest

from benchmarks.harness.errors import RemoteError
from benchmarks.harness.objects import Objects
from benchmarks.harness.store import Store, open_store
from ci.history.verify import verify
from reports.publishing import publish
from tests.harness.s3_server import BUCKET, s3_server
from tests.harness.sftp_server import sftp_server
from tests.harness.stored import make_night, make_record, make_table

pytestmark = pytest.mark.long


class Server(NamedTuple):
    """Where URLs of it begin, and the environment variables by which a client finds it and is let in."""

    address: str
    settings: Mapping[str, str]


ROOT = Path(__file__).resolve().parents[2]
WRITER = """
import sys
from benchmarks.harness.errors import AlreadyStoredError
from benchmarks.harness.store import open_store
from tests.harness.stored import make_night, make_record, make_table
url, name, first, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
store = open_store(url)
print("ready", flush=True)
for number in range(first, first + count):
    record = make_record(f"20261129T140000Z-{name}-{number:06d}")
    night = make_night(f"20261129T150000Z-{name}-{number:06d}", [record.id])
    for add, what in ((store.add_record, (record, make_table())), (store.add_night, (night,))):
        try:
            add(*what)
        except AlreadyStoredError:
            pass
    print(number, flush=True)
"""


@pytest.fixture(scope="module", params=["s3", "sftp"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if request.param == "s3":
        with s3_server() as settings:
            yield Server(f"s3://{BUCKET}", settings)
    else:
        folder = tmp_path_factory.mktemp("sftp")
        with sftp_server(folder) as (address, settings):
            yield Server(f"{address}{folder}", settings)


@pytest.fixture
def url(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of a place that nobody has written to."""
    for name, value in server.settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)  # this user's agent
    monkeypatch.setenv("RECOVERSSM_CACHE_DIR", str(tmp_path / "here"))
    return f"{server.address}/{tmp_path.name}"


def start(url: str, cache: Path, *arguments: object) -> "subprocess.Popen[str]":
    """A writer on another machine: one with a cache of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RECOVERSSM_CACHE_DIR": str(cache)}
    command = [sys.executable, "-c", WRITER, url, *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)


def whole(url: str) -> Store:
    store = open_store(url, writable=False)
    store.fetch()
    return store


def test_two_fleets_that_write_at_once_lose_nothing(url, tmp_path):
    writers = [start(url, tmp_path / name, name, 0, 15) for name in ("east", "west")]
    outputs = [writer.communicate(timeout=300)[0] for writer in writers]

    assert [writer.returncode for writer in writers] == [0, 0], outputs
    store = whole(url)
    assert len(store.records()) == len(store.nights()) == 30
    assert store.quarantined == []
    assert verify(store.folder).problems == []


def test_a_writer_killed_at_random_moments_loses_nothing_that_was_finished(url, tmp_path):
    draw, first, finished = random.Random(7), 0, set()
    for _ in range(5):
        writer = start(url, tmp_path / "there", "abc", first, 1_000)
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        killer = threading.Timer(draw.uniform(0.05, 0.5), writer.kill)
        killer.start()
        done = [int(line) for line in writer.communicate()[0].rpartition("\n")[0].splitlines()]
        assert writer.returncode == -signal.SIGKILL
        finished |= set(done)
        first = done[-1] + 1 if done else first

    store = whole(url)
    assert {int(record.id[-6:]) for record in store.records()} >= finished
    assert {int(night.id[-6:]) for night in store.nights()} >= finished
    assert finished
    assert store.quarantined == []
    assert verify(store.folder).problems == []


def test_a_truncated_object_beside_good_ones_costs_itself_alone(url):
    store = open_store(url)
    records = [make_record(f"20261129T140000Z-abc-{number:06d}") for number in range(4)]
    for record in records:
        store.add_record(record, make_table())
    for record, ending in ((records[1], "json"), (records[2], "parquet")):
        name = f"records/nvidia-h200/{record.id}.{ending}"
        Objects(url).put(name, Objects(url).get([name])[name][:-50])

    again = open_store(url)

    assert again.records() == [records[0], records[3]]
    assert len(again.quarantined) == 2
    assert set(Objects(url).facts("records")) == {
        f"records/nvidia-h200/{record.id}.{ending}"
        for record in (records[0], records[3])
        for ending in ("json", "parquet")
    }


def test_the_commands_read_and_write_there(url, tmp_path):
    from tests.ci.stores import make_night as make_whole_night
    from tests.ci.stores import store_nights

    store_nights(tmp_path / "from", *(make_whole_night(day) for day in (1, 2, 3)))
    for command, code in (
        (["ci", "history", "import", str(tmp_path / "from"), "--store", url], 0),
        (["ci", "history", "verify", "--store", url], 0),
        (["ci", "history", "query", "--store", url, "--op", "verify", "--json"], 0),
        (["ci", "history", "variance", "--store", url, "--json"], 0),
        (["ci", "history", "prune", "--store", url, "--keep-nights", "1", "--samples", "1"], 0),
        (["reports", "build", "--store", url, "--format", "markdown", "--out", str(tmp_path / "summary.md")], 0),
    ):
        done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == code, (command, done.stderr)
    facts = Objects(url).facts("records")
    thinned = [
        name
        for name in facts
        if name.endswith(".parquet") and b"recoverssm_thinned_to" in Objects(url).get([name])[name]
    ]
    assert (len(Objects(url).facts("nights")), len(facts), len(thinned)) == (3, 18, 6)


def test_a_store_can_be_read_from_a_web_server(tmp_path, monkeypatch):
    monkeypatch.setenv("RECOVERSSM_CACHE_DIR", str(tmp_path / "here"))
    there = Store(tmp_path / "there")
    there.add_record(make_record(), make_table())
    there.add_night(make_night("20261129T150000Z-abc-000009", [make_record().id]))
    handler = partial(SimpleHTTPRequestHandler, directory=str(there.folder))
    handler.func.log_message = lambda *_: None
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        store = open_store(f"http://127.0.0.1:{server.server_port}", writable=False)
        assert store.records() == [make_record()]
        assert len(store.nights()) == len(store.nights()) == 1
        server.shutdown()


@pytest.fixture
def site(tmp_path: Path) -> Path:
    from reports.site import MARKER

    (tmp_path / "site").mkdir()
    for place in (MARKER, "index.html", "page.css", "data.js"):
        (tmp_path / "site" / place).touch()
    return tmp_path / "site"


def test_a_site_is_published_and_only_what_differs_again(url, site):
    assert publish(site, url).num_sent == 3
    assert publish(site, url).num_sent == 0


@pytest.mark.parametrize("server", ["s3"], indirect=True)
def test_a_site_is_published_with_the_types_that_browsers_need(url, site):
    publish(site, url)

    filesystem, root = fsspec.url_to_fs(url)
    types = [filesystem.info(f"{root}/{place}")["ContentType"] for place in ("index.html", "page.css", "data.js")]
    assert types == ["text/html", "text/css", "text/javascript"]


def test_an_object_that_is_to_be_new_is_refused_where_one_is(url):
    Objects(url).put("nights/a.json", b"first", new=True)

    with pytest.raises(FileExistsError):
        Objects(url).put("nights/a.json", b"second", new=True)

    assert Objects(url).get(["nights/a.json"]) == {"nights/a.json": b"first"}


def test_of_writers_that_bring_one_name_at_once_one_is_let_in(url):
    places = [Objects(url) for _ in range(4)]

    def bring(at: int, number: int) -> bool:
        try:
            places[at].put(f"nights/{number}.json", bytes([at]) * 100_000, new=True)
        except FileExistsError:
            return False
        return True

    with ThreadPoolExecutor(len(places)) as pool:
        for number in range(10):
            let_in = list(pool.map(bring, range(len(places)), [number] * len(places)))
            assert let_in.count(True) == 1
            (content,) = places[0].get([f"nights/{number}.json"]).values()
            assert content == bytes([let_in.index(True)]) * 100_000
    assert set(places[0].facts("nights")) == {f"nights/{number}.json" for number in range(10)}


@pytest.mark.parametrize("server", ["sftp"], indirect=True)
def test_a_host_that_nobody_knows_is_refused(url, tmp_path, monkeypatch):
    (tmp_path / ".ssh").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))

    with pytest.raises(RemoteError, match="not found in known_hosts"):
        open_store(url)


@pytest.mark.parametrize("server", ["sftp"], indirect=True)
def test_a_lost_connection_is_made_again(url):
    store = open_store(url)
    store.add_record(make_record(), make_table())
    store._objects._fs.client.close()

    store.add_night(make_night("20261129T150000Z-abc-000009", [make_record().id]))

    assert open_store(url, writable=False).ids("nights") == ["20261129T150000Z-abc-000009"]
