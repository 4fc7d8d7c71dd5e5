"""A fleet of GPUs with years of nights, behind an S3 server that makes each object when it is asked for; and what the
first page of it takes. No number was measured.

    python -m tests.reports.fleet measure --out /tmp/fleet [--write docs/operating.md]

A night of one card is five records of 510 series and their verdicts, as large as real ones. Nothing but what a client
asks for exists, so a fleet of terabytes fits a laptop; listings are whole, a thousand names a page, as S3 gives them.
"""

import argparse
import hashlib
import json
import os
import random
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from bisect import bisect_right
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import escape

from benchmarks.harness.record_files import encode
from benchmarks.harness.records import Night
from ci.marked import write_between_marks
from tests.reports.synthetic import Generator

BUCKET, PREFIX = "fleet", "nights-of-all/"
PROCESSES = 5
VARIANTS = 8  # of the noise of a record; more would show nothing else
PAGE = 1000  # names in one answer to a listing, as of S3
NAME = re.compile(
    r"(?P<kind>records|nights)/(?P<model>[^/]+)/(?P<id>(?P<time>\d{8}T\d{6}Z)-(?P<rest>[^/.]+))\.(?P<ending>\w+)"
)
FLEETS = ((1, 1, 30), (2, 5, 90), (4, 25, 365), (4, 25, 1095), (20, 5, 1095))  # GPU models, cards of each, days
MARK = "fleet"
RECORD_ID, NIGHT_ID = "20000101T000000Z-00000000-000000", "20000101T000001Z-00000000-00000f"


@dataclass
class Fleet:
    """Names, sizes and contents of a store, made from a name alone."""

    models: int
    cards: int
    days: int
    first_day: int = 0  # ordinal; so many days before yesterday when left out
    num_cases: int = 34
    _names: dict[str, list[str]] = field(default_factory=dict)
    _records: dict[tuple[str, int], bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.first_day = self.first_day or datetime.now(UTC).date().toordinal() - self.days - 2

    @property
    def num_nights(self) -> int:
        return self.models * self.cards * self.days

    @cached_property
    def gpu_models(self) -> list[str]:
        return [f"nvidia-sim{number:03d}" for number in range(self.models)]

    @cached_property
    def generators(self) -> dict[str, Generator]:
        folder = Path(tempfile.mkdtemp(prefix="fleet-"))
        made = {model: Generator(folder, model, 1, self.num_cases) for model in self.gpu_models}
        shutil.rmtree(folder)
        return made

    def start(self, model: str, night: int) -> datetime:
        """Cards of a model take turns over the day."""
        day, card = divmod(night, self.cards)
        first = datetime.fromordinal(self.first_day).replace(tzinfo=UTC)
        return first + timedelta(days=day, seconds=card * 86_000 // self.cards + self.gpu_models.index(model))

    def names(self, kind: str, model: str) -> list[str]:
        """Of one folder, sorted."""
        if (folder := f"{kind}/{model}/") not in self._names:
            names = []
            for night in range(self.cards * self.days):
                at = self.start(model, night)
                if kind == "nights":
                    names.append(f"{folder}{self.night_id(model, night)}.json")
                else:
                    for process in range(PROCESSES):
                        stem = f"{folder}{self.record_id(at, night, process)}"
                        names += [f"{stem}.json", f"{stem}.parquet"]
            self._names[folder] = names
        return self._names[folder]

    def record_id(self, at: datetime, night: int, process: int) -> str:
        return f"{at + timedelta(minutes=process):%Y%m%dT%H%M%SZ}-{night:08x}-00000{process:x}"

    def night_id(self, model: str, night: int) -> str:
        return f"{self.start(model, night) + timedelta(minutes=9):%Y%m%dT%H%M%SZ}-{night:08x}-00000f"

    def size(self, name: str) -> int:
        """All objects of one kind and model are equally long but for the digits of their noise."""
        return len(self.content(name)) if name.endswith(".json") else len(self._samples(name))

    def content(self, name: str) -> bytes:
        """Raises KeyError for a name that the store does not hold."""
        found = NAME.fullmatch(name)
        if found is None or found["model"] not in self.gpu_models:
            raise KeyError(name)
        night, ending = found["rest"].split("-")
        at = datetime.strptime(found["time"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        if found["ending"] == "parquet":
            return self._samples(name)
        if found["kind"] == "nights":
            return self._night(found["model"], int(night, 16))
        return self._record(found["model"], int(night, 16), int(ending, 16), at, found["id"])

    def _samples(self, name: str) -> bytes:
        return self.generators[name.split("/")[1]].samples

    def _record(self, model: str, night: int, process: int, at: datetime, id_: str) -> bytes:
        variant = (night * PROCESSES + process) % VARIANTS
        if (model, variant) not in self._records:
            made = self.generators[model]._record(
                0, datetime(2000, 1, 1, tzinfo=UTC), RECORD_ID, random.Random(variant)
            )
            self._records[model, variant] = encode(made)
        card = f"GPU-{hashlib.sha256(f'{model} {night % self.cards}'.encode()).hexdigest()[:12]}"
        text = self._records[model, variant]
        for old, new in (
            (RECORD_ID, id_),
            ("2000-01-01T00:00:00Z", f"{at:%Y-%m-%dT%H:%M:%SZ}"),
            (f"{0:040x}", f"{night // self.cards:040x}"),
            ("GPU-synthetic-0", card[:15]),
        ):
            text = text.replace(old.encode(), new.encode())
        return text

    def _night(self, model: str, night: int) -> bytes:
        at = self.start(model, night)
        made = Night(
            id=self.night_id(model, night),
            created_utc=f"{at + timedelta(minutes=9):%Y-%m-%dT%H:%M:%SZ}",
            case_set="nightly",
            gpu_model=model,
            records=[self.record_id(at, night, process) for process in range(PROCESSES)],
            base_night=self.night_id(model, night - 1) if night else None,
            verdicts=self.generators[model].verdicts,
            accepted=True,
            exit_code=0,
        )
        return encode(made)


class Handler(BaseHTTPRequestHandler):
    """The part of S3 that reading needs: ListObjectsV2, GetObject, HeadObject."""

    protocol_version = "HTTP/1.1"
    fleet: Fleet
    latency_s = 0.0
    num_requests = 0
    num_bytes = 0

    def do_GET(self) -> None:
        type(self).num_requests += 1
        time.sleep(self.latency_s)
        place = urlsplit(self.path)
        key = unquote(place.path).removeprefix(f"/{BUCKET}").strip("/")
        try:
            if place.path == "/counts":
                body = json.dumps([self.num_requests, self.num_bytes]).encode()
            elif not key:
                body = _listing(self.fleet, {name: values[0] for name, values in parse_qs(place.query).items()})
            else:
                body = self.fleet.content(key.removeprefix(PREFIX))
        except KeyError:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        else:
            self._answer(200, body)

    do_HEAD = do_GET

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Last-Modified", "Sat, 28 Nov 2026 12:00:00 GMT")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)
            type(self).num_bytes += len(body)

    def log_message(self, *_: object) -> None:
        """Silent."""


def _listing(fleet: Fleet, query: Mapping[str, str]) -> bytes:
    prefix, size = query.get("prefix", "").removeprefix(PREFIX), int(query.get("max-keys", PAGE))
    parts = prefix.split("/")
    names: list[str] = []
    common: list[str] = []
    if query.get("delimiter") and len(parts) <= 2:
        folders = ["nights", "records"] if len(parts) == 1 else [f"{parts[0]}/{model}" for model in fleet.gpu_models]
        common = [f"{folder}/" for folder in folders if folder.startswith(prefix)]
    elif len(parts) > 2 or not query.get("delimiter"):
        kinds = [parts[0]] if len(parts) > 1 else ["nights", "records"]
        models = [parts[1]] if len(parts) > 2 else fleet.gpu_models
        names = [name for kind in kinds for model in models for name in fleet.names(kind, model)]
    first = bisect_right(names, query.get("continuation-token", ""))
    own = (
        [name for name in names[first:] if name.startswith(prefix)]
        if prefix.count("/") > 1 and parts[-1]
        else names[first:]
    )
    shown = own[:size]
    more = len(own) > size
    contents = "".join(
        f"<Contents><Key>{escape(PREFIX + name)}</Key><LastModified>2026-11-28T12:00:00.000Z</LastModified>"
        f"<ETag>&quot;0&quot;</ETag><Size>{_size(fleet, name)}</Size></Contents>"
        for name in shown
    )
    folders = "".join(f"<CommonPrefixes><Prefix>{PREFIX}{name}</Prefix></CommonPrefixes>" for name in common)
    token = f"<NextContinuationToken>{quote(shown[-1])}</NextContinuationToken>" if more else ""
    return (
        f"<?xml version='1.0'?><ListBucketResult><Name>{BUCKET}</Name><KeyCount>{len(shown)}</KeyCount>"
        f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}{contents}{folders}</ListBucketResult>"
    ).encode()


_SIZES: dict[tuple[str, str, str], int] = {}


def _size(fleet: Fleet, name: str) -> int:
    """Of the first object of its kind: digits of noise make a difference of bytes, which no reader here minds."""
    kind = (*name.split("/")[:2], name.rpartition(".")[2])
    if kind not in _SIZES:
        _SIZES[kind] = fleet.size(name)
    return _SIZES[kind]


def serve(fleet: Fleet, port: int, latency_s: float) -> None:
    Handler.fleet, Handler.latency_s = fleet, latency_s
    for model in fleet.gpu_models:  # what a server has on its disk
        for name in [*fleet.names("nights", model)[:1], *fleet.names("records", model)[: 2 * VARIANTS]]:
            fleet.content(name)
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


@contextmanager
def server(fleet: Fleet, latency_ms: float) -> Iterator[str]:
    """The address of a process that serves ``fleet`` until the block ends."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    facts = (fleet.models, fleet.cards, fleet.days, fleet.first_day, fleet.num_cases, port, latency_ms)
    child = subprocess.Popen([sys.executable, "-m", "tests.reports.fleet", "serve", *map(str, facts)])
    try:
        for _ in range(600):
            try:
                counts(f"http://127.0.0.1:{port}")
                break
            except OSError:
                time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        child.terminate()
        child.wait()


def counts(address: str) -> tuple[int, int]:
    """Requests that the server answered, and bytes that it sent."""
    with urllib.request.urlopen(f"{address}/counts", timeout=10) as answer:
        requests, num_bytes = json.load(answer)
    return requests, num_bytes


def environment(address: str, cache: Path) -> dict[str, str]:
    """By which s3fs finds the server, and nothing of this user's."""
    return {
        **os.environ,
        "AWS_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_SECRET_ACCESS_KEY": "nothing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "RECOVERSSM_CACHE_DIR": str(cache),
    }


def timed(
    fleet: Fleet, cache: Path, latency_ms: float, *command: str, exit_codes: Container[int] = (0,)
) -> dict[str, float]:
    """Of one command, to which the store's URL is added: seconds, of a core too, peak memory so far, requests, MB."""
    with server(fleet, latency_ms) as address:
        arguments = [sys.executable, "-m", *command, f"s3://{BUCKET}/{PREFIX.rstrip('/')}"]
        before_counts = counts(address)
        started, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(arguments, check=False, env=environment(address, cache), stdout=subprocess.DEVNULL)
        if done.returncode not in exit_codes:
            raise RuntimeError(f"{' '.join(command)}: exit {done.returncode}")
        seconds, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
        requests, num_bytes = (now - then for now, then in zip(counts(address), before_counts, strict=True))
    core = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        "seconds": round(seconds, 1),
        "core_seconds": round(core, 1),
        "peak_mib": round(after.ru_maxrss / 1024),
        "requests": requests - 1,  # the count itself
        "megabytes": round(num_bytes / 1e6, 1),
    }


def measure(out: Path, latency_ms: float, fleets: tuple[tuple[int, int, int], ...]) -> list[dict[str, float]]:
    rows = []
    for models, cards, days in fleets:
        shutil.rmtree(out, ignore_errors=True)
        fleet = Fleet(models, cards, days)
        later = Fleet(models, cards, days + 1, fleet.first_day)
        page = ("reports", "today", "--out", str(out / "site"), "--store")
        first = timed(fleet, out / "cache", latency_ms, *page)
        again = timed(later, out / "cache", latency_ms, *page)
        question = ("ci", "history", "query", "--metric", "verify_overhead", "--json", "--store")
        asked = timed(fleet, out / "fresh", latency_ms, *question)
        model = fleet.gpu_models[0]
        sizes = [fleet.size(fleet.names("nights", model)[-1]), fleet.size(fleet.names("records", model)[0])]
        rows.append(
            {
                "gpus": models * cards,
                "models": models,
                "days": days,
                "nights": fleet.num_nights,
                "values_gb": round(fleet.num_nights * (sizes[0] + PROCESSES * sizes[1]) / 1e9, 1),
                "index_kb": round((out / "site" / "index.html").stat().st_size / 1000),
                **first,
                "one_day_later": again["seconds"],
                "query_seconds": asked["seconds"],
                "query_core_seconds": asked["core_seconds"],
            }
        )
    return rows


def table(rows: list[dict[str, float]], latency_ms: float) -> str:
    """Markdown."""
    columns = {
        "GPUs": "gpus",
        "models": "models",
        "days": "days",
        "nights": "nights",
        "values, GB": "values_gb",
        "Today, s": "seconds",
        "of a core": "core_seconds",
        "requests": "requests",
        "MB read": "megabytes",
        "peak MiB": "peak_mib",
        "a day later, s": "one_day_later",
        "query, s": "query_seconds",
    }
    heads, keys = list(columns), list(columns.values())
    lines = ["| " + " | ".join(heads) + " |", "|" + "---:|" * len(heads)]
    lines += ["| " + " | ".join(f"{row[key]:g}" for key in keys) + " |" for row in rows]
    said = (
        f"Every request is answered after {latency_ms:g} ms; {os.cpu_count()} cores run the command, the server, and "
        "what else the machine had to do. First with nothing kept; a day later only what is new is read."
    )
    return "\n".join([said, "", *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("--out", type=Path, required=True, help="folder of cache and site; emptied")
    measuring.add_argument("--latency-ms", type=float, default=20.0, help="of every answer, as between data centres")
    measuring.add_argument("--write", type=Path, help="document to write the table into, between its marks")
    measuring.add_argument("--fleet", action="append", help="MODELS,CARDS,DAYS, more than once")
    serving = commands.add_parser("serve")
    serving.add_argument("facts", nargs=7, type=float)
    chosen = parser.parse_args()
    if chosen.command == "serve":
        *shape, port, latency_ms = chosen.facts
        serve(Fleet(*map(int, shape)), int(port), latency_ms / 1000)
    fleets = tuple(tuple(map(int, one.split(","))) for one in chosen.fleet) if chosen.fleet else FLEETS
    rows = measure(chosen.out, chosen.latency_ms, fleets)
    sys.stdout.write(json.dumps(rows, indent=1) + "\n")
    if chosen.write:
        write_between_marks(chosen.write, MARK, table(rows, chosen.latency_ms))


if __name__ == "__main__":
    main()
