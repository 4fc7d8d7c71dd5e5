"""What one build keeps for the next: it makes builds quick, and never changes a page."""

import os
import shutil
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest

from benchmarks.harness.record_files import decode_night, decode_record, encode
from benchmarks.harness.records import Acceptance, Head
from reports import digests, kept
from reports.digests import Digests
from reports.kept import Kept
from reports.pages import series
from reports.process import Process
from reports.site import Built, build_site
from reports.sources import History, read_stores
from tests.reports.synthetic import MODELS, Generator, write_large

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NIGHTS = 3


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write_large(tmp_path / "store", nights=NIGHTS, num_cases=2)
    return tmp_path / "store"


def build(store: Path, site: Path, cache: Path, *, raw: bool = True) -> tuple[History, Built]:
    """As ``python -m reports build`` does it."""
    found, parts = Digests(cache / "records"), Kept(cache / "parts.json")
    history = read_stores([str(store)], found)
    built = build_site(history, site, now=NOW, kept=parts, raw=raw)
    found.save()
    parts.save()
    return history, built


def contents(site: Path) -> dict[str, bytes]:
    """Of every file, and that a folder is there."""
    return {str(path.relative_to(site)): path.read_bytes() if path.is_file() else b"" for path in site.rglob("*")}


def fresh(store: Path, tmp_path: Path, *, raw: bool = True) -> dict[str, bytes]:
    """The site of a first build."""
    shutil.rmtree(tmp_path / "fresh", ignore_errors=True)
    build_site(read_stores([str(store)]), tmp_path / "fresh", now=NOW, raw=raw)
    return contents(tmp_path / "fresh")


def test_a_rebuild_after_a_night_is_the_site_of_a_first_build(store, tmp_path):
    build(store, tmp_path / "site", tmp_path / "cache")
    Generator(store, MODELS[0], NIGHTS, num_cases=2).night(NIGHTS)

    _, built = build(store, tmp_path / "site", tmp_path / "cache")

    assert contents(tmp_path / "site") == fresh(store, tmp_path)
    assert built.num_files == sum(path.is_file() for path in (tmp_path / "site").rglob("*"))


def test_a_rebuild_reads_new_records_alone_and_makes_no_data_of_a_gpu_without_a_new_night(store, tmp_path, monkeypatch):
    build(store, tmp_path / "site", tmp_path / "cache")
    Generator(store, MODELS[0], NIGHTS, num_cases=2).night(NIGHTS)
    read, made, framed, sampled = [], [], [], []
    case_series, check_samples, night_samples = series.case_series, digests.check_samples, series.night_samples
    monkeypatch.setattr(digests, "decode_record", lambda data: read.append(decode_record(data)) or read[-1])
    monkeypatch.setattr(series, "case_series", lambda line, *rest: made.append(line.model) or case_series(line, *rest))
    monkeypatch.setattr(series, "night_samples", lambda own, n: sampled.append(n.id) or night_samples(own, n))
    monkeypatch.setattr(digests, "check_samples", lambda path, **how: framed.append(path) or check_samples(path, **how))

    build(store, tmp_path / "site", tmp_path / "cache")

    assert len(read) == len(framed) == 5
    assert sampled == [last(store, "nights").stem]
    assert {record.environment.gpu_model for record in read} == set(made) == {MODELS[0]}


def test_histories_read_with_and_without_digests_are_equal(store, tmp_path):
    first, _ = build(store, tmp_path / "site", tmp_path / "cache")

    again = read_stores([str(store)], Digests(tmp_path / "cache" / "records"))

    assert again.nights == first.nights
    assert again.paths == first.paths
    assert list(map(facts, again.records.values())) == list(map(facts, first.records.values()))


def facts(process: Process) -> list[object]:
    """All of it; columns as bytes, for they hold NaN, which is equal to nothing."""
    columns = process.columns
    arrays = [column.tobytes() for column in (columns.values, columns.roofline_pct, columns.control_pct)]
    head = [getattr(process, name) for name in (*Head.__struct_fields__, "source")]
    return [head, columns.shape, arrays, columns.problems, columns.num_dropped]


def damage(path: Path, how: str) -> None:
    data = path.read_bytes()
    middle = len(data) // 2
    damaged = {
        "empty": b"",
        "cut": data[:middle],
        "flipped": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
        "foreign": b"{}" * middle,
    }
    path.write_bytes(damaged[how])


@pytest.mark.parametrize("how", ["empty", "cut", "flipped", "foreign"])
@pytest.mark.parametrize("name", [f"records/{MODELS[0]}-202501", "parts.json"])
def test_a_damaged_cache_changes_nothing_and_is_made_anew(store, tmp_path, name, how):
    build(store, tmp_path / "site", tmp_path / "cache")
    whole = (tmp_path / "cache" / name).read_bytes()
    damage(tmp_path / "cache" / name, how)

    build(store, tmp_path / "site", tmp_path / "cache")

    assert contents(tmp_path / "site") == fresh(store, tmp_path)
    assert len((tmp_path / "cache" / name).read_bytes()) == len(whole)
    assert not opened(store, tmp_path / "cache")


def opened(store: Path, cache: Path) -> list[Path]:
    """Records that are read from their files."""
    found, read = Digests(cache / "records"), []
    with pytest.MonkeyPatch.context() as patch:
        read_bytes = Path.read_bytes
        patch.setattr(Path, "read_bytes", lambda path: read.append(path) or read_bytes(path))
        read_stores([str(store)], found)
    return [path for path in read if path.parent.parent.name == "records"]


def test_a_cache_of_other_code_is_no_cache(store, tmp_path, monkeypatch):
    build(store, tmp_path / "site", tmp_path / "cache")

    for module in (digests, kept):
        monkeypatch.setattr(module, "_code", lambda: b"other code")

    assert len(opened(store, tmp_path / "cache")) == len(MODELS) * NIGHTS * 5
    assert Kept(tmp_path / "cache" / "parts.json").unchanged("series/nvidia-h200", b"", tmp_path) is None


@pytest.mark.parametrize("name", ["ci/thresholds.toml", "reports/peers.toml", "reports/pages/series.py"])
def test_other_limits_or_other_code_are_seen(tmp_path, monkeypatch, name):
    monkeypatch.setattr(kept, "ROOT", tmp_path)
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_text("before")
    before = kept._code.__wrapped__()

    (tmp_path / name).write_text("after")

    assert kept._code.__wrapped__() != before


def test_a_night_leaves_what_is_kept_of_other_months_and_models_as_it_is(store, tmp_path):
    build(store, tmp_path / "site", tmp_path / "cache")
    kept_files = {path: path.stat() for path in (tmp_path / "cache" / "records").iterdir()}
    Generator(store, MODELS[0], NIGHTS, num_cases=2).night(40)

    build(store, tmp_path / "site", tmp_path / "cache")

    now = {path: path.stat() for path in (tmp_path / "cache" / "records").iterdir()}
    assert {path.name for path in now.keys() - kept_files.keys()} == {f"{MODELS[0]}-202502"}
    assert all((now[path].st_ino, now[path].st_mtime_ns) == (s.st_ino, s.st_mtime_ns) for path, s in kept_files.items())


def test_records_that_only_look_otherwise_are_not_decoded_again(store, tmp_path, monkeypatch):
    """As those of a branch that was checked out anew."""
    build(store, tmp_path / "site", tmp_path / "cache")
    for path in store.glob("records/*/*.json"):
        os.utime(path, ns=(0, 0))
    expected = fresh(store, tmp_path)
    monkeypatch.setattr(digests, "decode_record", None)

    build(store, tmp_path / "site", tmp_path / "cache")

    assert contents(tmp_path / "site") == expected
    assert not opened(store, tmp_path / "cache")


def last(store: Path, kind: str, place: int = -1) -> Path:
    return sorted((store / kind / MODELS[0]).glob("*.json"))[place]


def amend(store: Path) -> None:
    path = last(store, "nights")
    path.write_bytes(encode(msgspec.structs.replace(decode_night(path.read_bytes()), notes=["amended"])))


def accept(store: Path) -> None:
    path = last(store, "nights", 0)
    by = Acceptance(owner="kernels", reason="meant", at_utc="2026-01-01T00:00:00Z")
    path.write_bytes(encode(msgspec.structs.replace(decode_night(path.read_bytes()), acceptance=by)))


def remove_night(store: Path) -> None:
    path = last(store, "nights", 1)
    for id_ in decode_night(path.read_bytes()).records:
        for record in (store / "records" / MODELS[0]).glob(f"{id_}.*"):
            record.unlink()
    path.unlink()


CHANGES = {
    "amended": amend,
    "accepted": accept,
    "removed": remove_night,
    "without a record": lambda store: last(store, "records").unlink(),
    "without samples": lambda store: last(store, "records").with_suffix(".parquet").unlink(),
    "with a damaged record": lambda store: damage(last(store, "records"), "cut"),
    "damaged": lambda store: damage(last(store, "nights"), "cut"),
    "of another model alone": lambda store: shutil.rmtree(store / "nights" / MODELS[0]),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_after_a_night_was_changed_in_place_a_rebuild_is_the_site_of_a_first_build(store, tmp_path, change):
    before, _ = build(store, tmp_path / "site", tmp_path / "cache")
    change(store)

    after, _ = build(store, tmp_path / "site", tmp_path / "cache")

    assert (after.nights, list(after.records)) != (before.nights, list(before.records))
    assert contents(tmp_path / "site") == fresh(store, tmp_path)


def test_a_record_that_was_written_anew_under_its_name_is_read_anew(store, tmp_path):
    build(store, tmp_path / "site", tmp_path / "cache")
    path = sorted((store / "records" / MODELS[0]).glob("*.json"))[0]
    record, before = decode_record(path.read_bytes()), path.stat()
    items = [msgspec.structs.replace(item, value=1.0) for item in record.measurements]
    path.write_bytes(encode(msgspec.structs.replace(record, measurements=items)).ljust(before.st_size))

    history, _ = build(store, tmp_path / "site", tmp_path / "cache")

    assert set(history.records[record.id].columns.values) == {1.0}
    assert contents(tmp_path / "site") == fresh(store, tmp_path)


def test_a_night_that_says_something_else_now_is_shown_as_it_is(store, tmp_path):
    build(store, tmp_path / "site", tmp_path / "cache")
    path = sorted((store / "nights" / MODELS[0]).glob("*.json"))[-1]
    night = decode_night(path.read_bytes())
    path.write_bytes(encode(msgspec.structs.replace(night, exit_code=1, alarms=["a step"])))

    build(store, tmp_path / "site", tmp_path / "cache")

    assert b"a step" in contents(tmp_path / "site")["regressions.html"]
    assert contents(tmp_path / "site") == fresh(store, tmp_path)


def test_samples_that_changed_are_shown_and_damaged_ones_are_told(store, tmp_path):
    build(store, tmp_path / "site", tmp_path / "cache")
    first, second = sorted((store / "records" / MODELS[0]).glob("*.parquet"))[:2]
    table = pq.read_table(first)
    pq.write_table(table.slice(0, table.num_rows // 2), first)
    second.write_bytes(b"no table")

    history, _ = build(store, tmp_path / "site", tmp_path / "cache")

    assert len(history.damaged) == 1
    assert contents(tmp_path / "site") == fresh(store, tmp_path)


def test_a_data_file_that_somebody_changed_is_written_again(store, tmp_path):
    build(store, tmp_path / "site", tmp_path / "cache")
    data = tmp_path / "site" / "data" / MODELS[1]
    changed, gone = data / "timeline.js", next(data.glob("series-*.js"))
    changed.write_bytes(changed.read_bytes().replace(b"2025", b"2035"))
    gone.unlink()

    build(store, tmp_path / "site", tmp_path / "cache")

    assert contents(tmp_path / "site") == fresh(store, tmp_path)


def test_a_public_site_takes_nothing_from_one_with_raw_files(store, tmp_path):
    build(store, tmp_path / "site", tmp_path / "cache")

    build(store, tmp_path / "site", tmp_path / "cache", raw=False)

    assert contents(tmp_path / "site") == fresh(store, tmp_path, raw=False)
