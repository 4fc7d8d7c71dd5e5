"""Whole nights, measured by prepared processes: what is judged, kept and refused."""

import errno
import json
import os

import msgspec
import pytest
from filelock import FileLock

from benchmarks.harness import record_files, records
from benchmarks.harness.errors import LockHeldError
from benchmarks.harness.lock import GpuLock
from benchmarks.harness.store import Store
from ci.exits import BrokenEnvironmentError, Exit, UsageError
from ci.gpus import Gpu
from ci.history.verify import verify
from ci.succession import Succession
from tests.ci.nights import CASE, CONTROLS, QUIET, exact, make_record, make_records, timed


@pytest.fixture
def one_gpu(monkeypatch):
    monkeypatch.setattr("ci.nightly.find_gpus", lambda: [Gpu("GPU-1", "NVIDIA H200")])
    monkeypatch.setattr("ci.nightly.require_usable", lambda gpu: None)


def verdicts(night):
    return {v.metric: v.verdict for v in night.verdicts}


def test_first_night_is_new_and_passes(fake_night):
    result = fake_night.night(make_records())

    night = result.nights[0]
    assert result.code == Exit.PASS
    assert verdicts(night) == {"device_us": "new", "cache_bytes": "new"}
    assert night.accepted
    assert night.base_night is None
    assert Store(fake_night.store).nights() == [night]
    assert {r.id for r in fake_night.stored()} == set(night.records)


def test_second_night_is_judged_against_the_first(fake_night):
    first = fake_night.night(make_records()).nights[0]

    second = fake_night.night(make_records()).nights[0]

    assert second.base_night == first.id
    assert verdicts(second) == {"device_us": "unchanged", "cache_bytes": "unchanged"}
    assert len(fake_night.stored()) == 10


def test_process_in_which_the_card_drifted_is_left_out_of_its_night_and_of_later_bases(fake_night):
    slow = [msgspec.structs.replace(CONTROLS[1], median_us=280.0)]
    drifted = make_record([timed(900.0), exact(1000.0)], controls=[CONTROLS[0], *slow])
    result = fake_night.night([drifted, *make_records()], processes=6)

    night = result.nights[0]
    assert result.code == Exit.PASS
    assert (night.accepted, len(night.records), night.left_out) == (True, 5, [drifted.id])
    assert f"record {drifted.id}: left out: control copy took +12.0 % at the end" in " ".join(night.notes)
    assert {v.metric: v.value for v in night.verdicts}["device_us"] == 100.0
    assert not any(problem.startswith("nights/") for problem in verify(fake_night.store).problems)
    assert drifted.id in {record.id for record in fake_night.stored()}

    later = fake_night.night(make_records()).nights[0]
    assert (later.base_night, verdicts(later)["device_us"]) == (night.id, "unchanged")


def test_night_that_is_left_with_too_few_processes_is_no_base(fake_night):
    slow = [msgspec.structs.replace(CONTROLS[1], median_us=280.0)]
    drifted = make_record([timed(900.0), exact(1000.0)], controls=[CONTROLS[0], *slow])
    result = fake_night.night([drifted, *make_records(QUIET[:4])])

    night = result.nights[0]
    assert result.code == Exit.INVALID
    assert (night.accepted, len(night.records), night.left_out) == (False, 4, [drifted.id])
    assert night.notes[0] == "4 of 5 processes can be believed, 5 are needed"


def test_each_process_gets_a_seed_of_its_own_and_the_same_command(fake_night):
    fake_night.night(make_records(), commit="fedcba98", pattern="kimi*")

    seeds = [line.split()[1] for line in fake_night.started]
    assert len(set(seeds)) == 5
    assert {line.split(" ", 2)[2] for line in fake_night.started} == {"smoke kimi* fedcba98 "}


def test_other_projects_kernels_are_asked_for_in_every_process_wherever_it_starts(fake_night, monkeypatch):
    seen = []
    monkeypatch.setattr(Succession, "run", lambda self, starter, record, arguments: seen.append(arguments) or "not run")
    monkeypatch.chdir(fake_night.tmp)

    fake_night.run(providers="vllm_native,fla_chunk", provider_files=["mine.py:Mine"], processes=1)

    ((*_, first, names, second, file),) = seen
    assert (first, names, second) == ("--providers", "vllm_native,fla_chunk", "--provider")
    assert file == f"{fake_night.tmp.resolve()}/mine.py:Mine"


def test_regression_exits_1_and_is_no_base_for_the_next_night(fake_night):
    good = fake_night.night(make_records()).nights[0]

    slow = fake_night.night(make_records([v * 1.05 for v in QUIET]))
    again = fake_night.night(make_records([v * 1.05 for v in QUIET]))

    assert slow.code == again.code == Exit.REGRESSED
    assert not slow.nights[0].accepted
    assert slow.nights[0].exit_code == 1
    assert again.nights[0].base_night == good.id
    assert "+5.00 %" in slow.nights[0].verdicts[0].reason


def test_more_cache_bytes_by_one_is_a_regression(fake_night):
    fake_night.night(make_records())

    result = fake_night.night([make_record([timed(v), exact(1001.0)]) for v in QUIET])

    assert result.code == Exit.REGRESSED
    assert verdicts(result.nights[0]) == {"cache_bytes": "regressed", "device_us": "unchanged"}


def test_vanished_series_exits_3(fake_night):
    fake_night.night(make_records())

    result = fake_night.night([make_record([exact(1000.0)]) for _ in QUIET])

    assert result.code == Exit.MISSING
    assert verdicts(result.nights[0])["device_us"] == "missing"
    assert not result.nights[0].accepted


def test_records_without_any_measurement_exit_3(fake_night):
    assert fake_night.night([make_record([]) for _ in QUIET]).code == Exit.MISSING


@pytest.mark.parametrize("bad", [0.0, -3.0])
def test_value_that_is_no_time_exits_4(fake_night, bad):
    result = fake_night.night(make_records([*QUIET[:4], bad]))

    assert result.code == Exit.INVALID
    assert verdicts(result.nights[0])["device_us"] == "invalid"


def test_failed_check_exits_4_though_the_times_are_fine(fake_night):
    check = records.Check(
        case=CASE, op="verify", provider="recoverssm", metric="out_error", value=0.2, limit=0.01, passed=False
    )
    broken = [make_record([timed(v), exact(1000.0)], checks=[check]) for v in QUIET]

    result = fake_night.night(broken, do=dict.fromkeys(range(5), "4"))

    night = result.nights[0]
    assert result.code == Exit.INVALID
    assert verdicts(night) == {"out_error": "invalid", "device_us": "invalid", "cache_bytes": "new"}
    assert "0.2, limit 0.01" in night.verdicts[0].reason or "0.2, limit 0.01" in night.verdicts[1].reason


def test_broken_record_is_named_and_set_aside_and_the_rest_is_used(fake_night):
    found = [*make_records()[:4], b'{"schema_version": 1, "id": "cut off']

    result = fake_night.night(found)

    night = result.nights[0]
    assert result.code == Exit.INVALID
    assert len(night.records) == 4
    (named,) = night.quarantined
    assert "out/quarantine/" in named
    assert "truncated" in named
    aside = list((fake_night.tmp / "out" / "quarantine").rglob("*.json"))
    assert [p.read_bytes() for p in aside] == [found[-1]]
    assert not night.accepted


def test_second_run_on_one_gpu_is_told_who_holds_it(fake_night, one_gpu):
    with GpuLock("GPU-1", command="make something"), pytest.raises(BrokenEnvironmentError) as caught:
        fake_night.night(make_records())

    assert caught.value.code == Exit.BROKEN
    assert f"pid {os.getpid()} (make something)" in str(caught.value)
    assert "--wait" in caught.value.next_step
    assert fake_night.started == []


def test_lock_is_held_while_measuring_and_free_afterwards(fake_night, one_gpu, monkeypatch):
    def held(path):
        with pytest.raises(LockHeldError), GpuLock("GPU-1"):
            pass
        return record_files.decode_record(path)

    monkeypatch.setattr("ci.measuring.decode_record", held)

    assert fake_night.night(make_records()).code == Exit.PASS
    with GpuLock("GPU-1"):
        pass


def test_lock_is_free_after_an_interrupt(fake_night, one_gpu):
    fake_night.night([None], do={0: "interrupt"})

    with GpuLock("GPU-1"):
        pass


def test_second_night_in_one_folder_is_refused(fake_night):
    out = fake_night.options.out
    out.mkdir()

    with FileLock(out / ".lock"), pytest.raises(BrokenEnvironmentError, match="another run is using this folder"):
        fake_night.night(make_records())


def test_each_gpu_gets_its_own_processes(fake_night, monkeypatch):
    monkeypatch.setattr("ci.nightly.find_gpus", lambda: [Gpu("GPU-1", "NVIDIA H200"), Gpu("GPU-2", "NVIDIA H200")])
    monkeypatch.setattr("ci.nightly.require_usable", lambda gpu: None)

    result = fake_night.night(make_records(QUIET * 2), gpus="all", exclusive=True)

    (night,) = result.nights
    assert len(night.records) == 10
    assert [line.rsplit(maxsplit=1)[1] for line in fake_night.started] == ["GPU-1"] * 5 + ["GPU-2"] * 5
    assert {record.neighbours for record in fake_night.stored()} == {0}


def test_store_without_space_is_refused_before_anything_is_measured(fake_night, monkeypatch):
    def full(path, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("benchmarks.harness.store_folder._write_through", full)
    with pytest.raises(BrokenEnvironmentError, match=r"--store .*No space left"):
        fake_night.night(make_records())
    assert fake_night.started == []


def test_process_that_fell_back_to_the_cpu_is_no_measurement_of_the_gpu(fake_night, one_gpu):
    on_cpu = records.Environment(gpu_model="cpu", python="3.12.1", torch="2.11.0", harness="1")

    with pytest.raises(BrokenEnvironmentError, match="GPU-1 saw no GPU and measured the CPU"):
        fake_night.night(make_records(environment=on_cpu))

    assert fake_night.stored() == []
    assert len(fake_night.started) == 1
    fake_night.prepare(make_records())
    assert fake_night.run(resume=True).code == Exit.PASS


def test_four_processes_are_no_base(fake_night):
    result = fake_night.night(make_records()[:4], processes=4)

    assert result.code == Exit.PASS
    assert not result.nights[0].accepted
    assert "4 processes: 5 are needed" in result.nights[0].notes[0]


def test_gpu_that_is_not_here_is_refused_with_those_that_are(fake_night):
    with pytest.raises(UsageError, match="out of cpu"):
        fake_night.run(gpus="GPU-1234")


def test_damaged_record_of_the_base_night_is_named_and_fails_the_night_once(fake_night):
    first = fake_night.night(make_records()).nights[0]
    path = next(fake_night.store.rglob(f"{first.records[0]}.json"))
    path.write_bytes(path.read_bytes()[:100])

    second = fake_night.night(make_records())
    third = fake_night.night(make_records())

    assert second.code == Exit.INVALID
    assert first.records[0] in second.nights[0].quarantined[0]
    assert third.code == Exit.PASS
    assert {v.verdict for v in third.nights[0].verdicts} == {"inconclusive", "unchanged"}


def test_damaged_record_of_a_night_that_is_no_base_is_named_and_fails_the_night_once(fake_night):
    old = fake_night.night(make_records()).nights[0]
    fake_night.night(make_records())
    path = next(fake_night.store.rglob(f"{old.records[2]}.json"))
    path.write_bytes(path.read_bytes()[:-30])

    third = fake_night.night(make_records())
    fourth = fake_night.night(make_records())

    assert third.code == Exit.INVALID
    assert [old.records[2] in note for note in third.nights[0].quarantined] == [True]
    assert not path.exists()
    assert fourth.code == Exit.PASS


def test_stored_night_is_strict_json(fake_night):
    night = fake_night.night(make_records()).nights[0]

    text = next(fake_night.store.rglob(f"nights/**/{night.id}.json")).read_text()

    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in a stored night"))
