"""A large history, made small: what builds share, keep and leave alone. ``tests.reports.synthetic`` has the numbers."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from benchmarks.harness.store import Store
from reports.site import build_site
from reports.sources import read_records, read_stores
from tests.reports.synthetic import MODELS, Generator, write_large

NOW = datetime(2026, 1, 1, tzinfo=UTC)  # pages say when they were built


@pytest.fixture(scope="module")
def large_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("large")
    write_large(store, nights=3, num_cases=2)
    return store


def files_of(site: Path) -> dict[Path, tuple[int, bytes]]:
    return {
        path.relative_to(site): (path.stat().st_mtime_ns, path.read_bytes())
        for path in site.rglob("*")
        if path.is_file()
    }


def test_records_that_share_what_is_equal_say_what_they_said(large_store):
    history = read_records([str(large_store)])
    stored = Store(large_store, writable=False)

    assert list(history.records.values()) == stored.records()
    assert list(history.nights.values()) == stored.nights()
    first, *_, last = history.records.values()
    assert first.measurements[0].case is last.measurements[0].case
    assert first.cases[0] is last.cases[0]


def test_both_models_have_all_their_nights_and_series(large_store):
    history = read_stores([str(large_store)])

    assert {model: len(history.of(model)) for model in history.gpu_models()} == dict.fromkeys(MODELS, 3)
    assert len({line.key for record in history.records.values() for line in record.columns.shape.lines}) == 2 * 15


def test_a_rebuild_is_the_site_that_a_first_build_would_be_and_leaves_equal_files_alone(large_store, tmp_path):
    store = tmp_path / "store"
    write_large(store, nights=3, num_cases=2)
    build_site(read_stores([str(store)]), tmp_path / "site", now=NOW)
    before = files_of(tmp_path / "site")
    Generator(store, MODELS[0], 3, num_cases=2).night(3)
    history = read_stores([str(store)])

    built = build_site(history, tmp_path / "site", now=NOW)
    fresh = build_site(history, tmp_path / "fresh", now=NOW)

    after = files_of(tmp_path / "site")
    assert {path: content for path, (_, content) in after.items()} == {
        path: content for path, (_, content) in files_of(tmp_path / "fresh").items()
    }
    assert built.num_files == fresh.num_files == len(after)
    other = [path for path in after if path.parts[:2] in {("data", MODELS[1]), ("raw", "records")} and path in before]
    assert len(other) > 2 * 3 * 5
    assert all(after[path][0] == before[path][0] for path in other)


def test_a_night_that_an_owner_accepted_later_is_copied_anew(large_store, tmp_path):
    import msgspec

    from benchmarks.harness.records import Acceptance
    from tests.reports.golden import HEADLINE, NightPlan, golden_cases, write_night

    store = Store(tmp_path / "store")
    write_night(store, NightPlan(1, processes=1, exit_code=1, red_case=HEADLINE), golden_cases()[:1])
    build_site(read_stores([str(store.folder)]), tmp_path / "site")
    by = Acceptance(owner="kernels", reason="meant", at_utc="2026-11-30T00:00:00Z")
    path = store.accept_night(msgspec.structs.replace(store.nights()[0], accepted=True, acceptance=by))

    build_site(read_stores([str(store.folder)]), tmp_path / "site")

    assert (tmp_path / "site" / "raw" / path.relative_to(store.folder)).read_bytes() == path.read_bytes()
