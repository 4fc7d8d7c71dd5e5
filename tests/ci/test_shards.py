"""Nights in shards: measured apart, each told in its records, judged together as one night."""

import msgspec
import pytest

from benchmarks.harness.records import Shard
from benchmarks.harness.samples import SCHEMA
from ci import shards
from ci.exits import Exit, MissingDataError, UsageError
from ci.preview import select_cases
from ci.shards import merge, take_shard
from tests.ci.nights import ENVIRONMENT, QUIET, exact, make_case, make_record, timed

_, CASES = select_cases("smoke", "*")
NAMES = [case.name for case in CASES]


def of_cases(names, values=QUIET, **changes):
    return [
        make_record(
            [item for name in names for item in (timed(value, case=name), exact(1000.0, case=name))],
            cases=[make_case(name) for name in names],
            checks=[],
            **changes,
        )
        for value in values
    ]


@pytest.fixture
def sharded(fake_night):
    def measure(index, count=2, values=QUIET, **changes):
        shard, own = take_shard(f"{index}/{count}", "n1", CASES)
        names = [case.name for case in own]
        found = of_cases(names, values, **changes)
        options = {"shard": shard, "selected": names, "out": fake_night.tmp / f"out{index}", "processes": len(found)}
        return fake_night.night(found, **options)

    measure.night = fake_night
    measure.merge = lambda: merge(fake_night.open(), "n1", "*", fake_night.tmp / "merged")
    return measure


def keys(night):
    return {(v.key, v.verdict, v.value) for v in night.verdicts}


def test_shard_measures_its_cases_tells_it_in_its_records_and_makes_no_night(sharded):
    result = sharded(1)

    assert (result.code, result.nights) == (Exit.PASS, [])
    assert result.messages == [
        f"shard 1/2: with the others in one store: python -m ci merge n1 --store {sharded.night.store}"
    ]
    assert {record.shard for record in sharded.night.stored()} == {Shard(night="n1", index=1, count=2)}
    own = ",".join(case.name for case in take_shard("1/2", "n1", CASES)[1])
    assert {line.split()[3] for line in sharded.night.started} == {own}


def test_merged_shards_are_the_night_that_one_run_would_have_made(sharded):
    sharded(2)
    sharded(1)
    (merged,), _, code = sharded.merge()

    whole = sharded.night.night(of_cases(NAMES), selected=NAMES, store=str(sharded.night.tmp / "whole")).nights[0]

    assert (code, merged.accepted, merged.lacks, len(merged.records)) == (Exit.PASS, True, [], 10)
    assert keys(merged) == keys(whole)
    assert {v.n_processes for v in merged.verdicts} == {5}
    assert sharded.night.open().nights() == [merged]


def test_night_knows_the_shard_that_it_lacks_and_is_no_base(sharded):
    sharded(1)

    (night,), _, code = sharded.merge()

    assert (code, night.exit_code, night.accepted) == (Exit.MISSING, 3, False)
    assert night.lacks == ["2/2"]
    assert "shard 2/2: no record of it" in night.notes


def test_night_merged_again_is_not_held_against_itself(sharded):
    sharded(1)
    sharded(2)
    sharded.merge()

    (again,), _, code = sharded.merge()

    assert (code, again.base_night) == (Exit.PASS, None)
    assert {v.verdict for v in again.verdicts} == {"new"}


def test_series_of_an_absent_shard_are_missing_against_the_base_night(sharded):
    sharded.night.night(of_cases(NAMES), selected=NAMES)
    sharded(1)

    (night,), _, _ = sharded.merge()

    absent = {case.name for case in take_shard("2/2", "n1", CASES)[1]}
    assert {v.case for v in night.verdicts if v.verdict == "missing"} == absent
    assert {v.verdict for v in night.verdicts if v.case not in absent} == {"unchanged"}


def test_shard_with_too_few_processes_makes_the_night_no_base(sharded):
    sharded(1)
    sharded(2, values=QUIET[:4])

    (night,), _, code = sharded.merge()

    assert (code, night.accepted) == (Exit.PASS, False)
    assert "4 processes: 5 are needed" in night.notes[0]


def test_shards_of_several_hosts_are_one_night_and_their_host_times_are_new(sharded):
    sharded.night.night(of_cases(NAMES), selected=NAMES)
    sharded(1)
    sharded(2, environment=msgspec.structs.replace(ENVIRONMENT, cpu_model="another"))

    (night,), _, code = sharded.merge()

    assert (code, night.accepted) == (Exit.PASS, True)


def test_shards_of_different_drivers_are_no_one_night(sharded):
    sharded(1)
    sharded(2, environment=msgspec.structs.replace(ENVIRONMENT, driver="581.0"))

    (night,), _, code = sharded.merge()

    assert code == Exit.INVALID
    assert "were measured in different environments" in night.notes[0]


@pytest.mark.parametrize(("shard", "night"), [("1/2", None), (None, "n1"), ("3/2", "n1"), ("1/2", "a b"), ("1/2", "")])
def test_half_a_shard_is_refused(shard, night):
    with pytest.raises(UsageError):
        take_shard(shard, night, CASES)


def test_shard_without_cases_is_refused():
    with pytest.raises(MissingDataError, match="there are 6 cases"):
        take_shard("8/8", "n1", CASES)


def test_night_without_records_is_refused(sharded):
    with pytest.raises(MissingDataError, match="no record of a night n1"):
        sharded.merge()


def test_shards_of_several_counts_are_refused(sharded):
    sharded(1)
    sharded(1, count=3)

    with pytest.raises(UsageError, match="in one number of shards"):
        sharded.merge()


def test_nothing_is_stored_where_the_shards_of_one_gpu_model_do_not_fit(sharded):
    other = msgspec.structs.replace(ENVIRONMENT, gpu_model="nvidia-z")
    sharded(1)
    sharded(1, environment=other)
    sharded(1, count=3, environment=other)

    with pytest.raises(UsageError, match="on nvidia-z: expected one set"):
        sharded.merge()
    assert sharded.night.open().nights() == []


def test_shards_of_different_sources_are_no_one_night(sharded):
    sharded(1)
    sharded(2, subject=msgspec.structs.replace(make_record([]).subject, source_hash="another"))

    (night,), _, code = sharded.merge()

    assert (code, night.accepted) == (Exit.INVALID, False)
    assert "measured different sources" in night.notes[0]


def test_shard_measured_twice_counts_with_all_its_processes(sharded):
    """As by two hosts, or by a fleet that lost sight of a job."""
    sharded(1)
    sharded(1)
    sharded(2)

    (night,), _, code = sharded.merge()

    assert (code, night.accepted, len(night.records)) == (Exit.PASS, True, 15)
    own = {case.name for case in take_shard("1/2", "n1", CASES)[1]}
    assert {(v.case in own, v.n_processes) for v in night.verdicts} == {(True, 10), (False, 5)}


def test_merging_again_stores_nothing_new_until_there_is_something_new_to_say(sharded):
    sharded(1)
    (first,), _, _ = sharded.merge()
    (same,), told, code = sharded.merge()

    assert (same, code) == (first, Exit.MISSING)
    assert told == [f"night {first.id}: merged before, and nothing has changed since"]

    sharded(2)
    (whole,), told, _ = sharded.merge()
    assert (whole.lacks, told) == ([], [])
    assert sharded.night.open().nights() == [first, whole]


def test_shards_are_looked_for_backwards_and_no_further_than_needed(sharded, monkeypatch):
    """A fleet's store holds millions of records, at a URL."""
    sharded(1)
    sharded(2)
    old = [msgspec.structs.replace(make_record([]), id=f"20250101T000000Z-aaaaaaaa-{n:06}") for n in range(30)]
    for record in old:
        sharded.night.open().add_record(record, SCHEMA.empty_table())
    monkeypatch.setattr(shards, "BATCH", 8)
    read, original = [], shards.read_record
    monkeypatch.setattr(shards, "read_record", lambda path: read.append(1) or original(path))

    (night,), _, _ = sharded.merge()

    assert len(night.records) == 10
    assert len(read) == 24  # two batches with some of them, and one with none
