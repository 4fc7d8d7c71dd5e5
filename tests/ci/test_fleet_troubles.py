"""What goes wrong with a night on a cluster, at each point: nothing measured is lost, nothing missing is green."""

import sys
from dataclasses import replace

import pytest

from benchmarks.harness.errors import RemoteError, UnsentError
from benchmarks.harness.lock import GpuLock
from benchmarks.harness.records import Shard
from benchmarks.harness.store import Store
from ci import nightly
from ci.exits import BrokenEnvironmentError, Exit, Interrupted, UsageError
from ci.fleet import night as fleet_night
from ci.fleet.night import JOBS
from ci.fleet.worker import ShardJob
from ci.gpus import Gpu
from tests.ci.clusters import FILE, shards
from tests.ci.nights import drifting

OTHER_POOL = '[[pool]]\nname = "other"\npartition = "b"\nshards = 2\n'


def refuse_pool(cluster, monkeypatch, name):
    take = cluster.fake.submit

    def submit(pool, *more):
        if pool.name == name:
            raise BrokenEnvironmentError("invalid partition specified: gpu")
        return take(pool, *more)

    monkeypatch.setattr(cluster.fake, "submit", submit)


def test_pool_from_which_nothing_came_is_missing_and_not_green(cluster, monkeypatch):
    cluster.file.write_text(FILE + OTHER_POOL)
    refuse_pool(cluster, monkeypatch, "h200")

    result = cluster({}, shards(1, 2))

    assert result.nights[0].exit_code == Exit.PASS  # of the other pool
    assert result.code == Exit.MISSING
    assert len([line for line in result.messages if "h200" in line and "invalid partition" in line]) == 2


def test_night_of_which_nothing_came_tells_why(cluster, monkeypatch):
    refuse_pool(cluster, monkeypatch, "h200")

    result = cluster({}, [])

    assert (result.code, result.nights) == (Exit.MISSING, [])
    assert "h200 1/2: given up after 2 tries: invalid partition specified" in result.messages[0]
    assert "no record of a night n1" in result.messages[-1]


def test_cluster_that_cannot_be_asked_for_a_while_ends_no_night(cluster):
    cluster.fake.silent = 3

    result = cluster({}, shards(1, 2))

    assert (result.code, result.nights[0].lacks) == (Exit.PASS, [])
    assert "squeue: no answer within 60 s" in cluster.said


def test_jobs_that_cannot_be_cancelled_are_told_and_hide_no_result(cluster):
    cluster.fake.cannot_cancel = True

    result = cluster({0: "pending"}, shards(2))

    assert (result.code, result.nights[0].lacks) == (Exit.MISSING, ["1/2"])
    assert "jobs 1_0 were not cancelled" in cluster.said


@pytest.mark.parametrize("name", ["a b", "../up", "", ".hidden", "n" * 65])
def test_night_needs_a_plain_name(cluster, name):
    with pytest.raises(UsageError, match="--night"):
        cluster({}, [], night=name)
    assert cluster.fake.submitted == []


def test_name_of_an_earlier_night_is_refused(cluster):
    cluster({}, shards(1, 2))

    with pytest.raises(UsageError, match=r"--night n1: .* has shards of it"):
        cluster({}, [])


def test_resumed_night_must_be_the_one_that_was_begun(cluster):
    cluster({0: "pending"}, shards(2))

    with pytest.raises(UsageError, match="--resume: begun with"):
        cluster({}, [], resume=True, case_set="pr")


def kill(*_):
    raise Interrupted("SIGKILL")  # as nothing that the night does catches


def test_killed_night_finds_its_jobs_again_and_submits_none_twice(cluster):
    cluster.fake.cannot_cancel = True  # as after kill -9
    cluster({0: "pending"}, shards(2))

    result = cluster({}, shards(1), resume=True)

    assert (result.code, result.nights[0].lacks) == (Exit.PASS, [])
    assert [shard for shard, _ in cluster.fake.submitted] == ["1/2", "2/2"]
    assert not list(cluster.folder.glob(f"*/{JOBS}"))


@pytest.mark.parametrize("when", ["before", "after"])
def test_night_killed_while_it_brings_a_shard_in_loses_nothing(cluster, monkeypatch, when):
    bring_in = fleet_night.import_from

    def killed(*arguments):
        if when == "after":
            bring_in(*arguments)
        kill()

    with monkeypatch.context() as patched:
        patched.setattr(fleet_night, "import_from", killed)
        assert cluster({1: "pending"}, shards(1)).code == Exit.INTERRUPTED
    result = cluster({}, shards(2), resume=True)

    assert (result.code, result.nights[0].lacks, len(result.nights[0].records)) == (Exit.PASS, [], 10)


def test_shard_of_a_node_that_drifted_is_measured_again_by_the_resumed_night(cluster):
    drifted = shards(1, controls=drifting(300.0))
    cluster({0: "run", 1: "pending", 2: "pending"}, drifted)

    result = cluster({}, shards(1, 2), resume=True)

    assert (result.code, result.nights[0].lacks, len(result.nights[0].records)) == (Exit.PASS, [], 10)


def test_repaired_node_begins_its_shard_anew(cluster):
    cluster.fake.nodes = ("n1", "n2")
    cluster({1: "pending", 2: "pending"}, shards(1, controls=drifting(300.0)))
    cluster.folder.joinpath("quarantined-nodes.json").unlink()

    result = cluster({}, shards(1, 2), resume=True)

    assert (result.code, len(result.nights[0].records)) == (Exit.PASS, 10)
    assert cluster.fake.submitted[-1][1] == []


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"node": 1}'])
def test_report_that_cannot_be_read_is_a_lost_shard(cluster, damage):
    def spoil(folder):
        (folder / "report.json").write_bytes(damage)

    result = cluster({0: spoil}, shards(1, 2, 1))

    assert (result.code, len(result.nights[0].records)) == (Exit.PASS, 10)
    assert "report.json: cannot be read" in cluster.said


def test_shard_whose_files_are_damaged_is_measured_again(cluster):
    def spoil(folder):
        next(folder.glob("store/records/*/*.parquet")).write_bytes(b"PAR1")

    result = cluster({0: spoil}, shards(1, 2, 1))

    assert (result.code, result.nights[0].lacks, len(result.nights[0].records)) == (Exit.PASS, [], 10)
    assert "not taken in" in cluster.said


@pytest.mark.parametrize("error", [UnsentError("away"), RemoteError("away"), OSError("disk full")])
def test_store_that_goes_away_is_tried_again_while_the_night_waits(cluster, monkeypatch, error):
    add, failing = Store.add_record, [error] * 3

    def sometimes(self, *arguments):
        if self.folder == cluster.night.store and failing:
            raise failing.pop()
        return add(self, *arguments)

    monkeypatch.setattr(Store, "add_record", sometimes)
    result = cluster({}, shards(1, 2))

    assert (result.code, result.nights[0].lacks, len(result.nights[0].records)) == (Exit.PASS, [], 10)
    assert cluster.fake.cancelled == set()


def test_store_that_stays_away_leaves_the_shard_to_the_resumed_night(cluster, monkeypatch):
    def away(*_):
        raise RemoteError("away")

    with monkeypatch.context() as patched:
        patched.setattr(fleet_night, "import_from", away)
        first = cluster({}, shards(1, 2))
    second = cluster({}, [], resume=True)

    assert first.code == Exit.MISSING
    assert "h200 1/2: not there after 30 minutes: measured on n1, not stored: away" in first.messages
    assert (second.code, len(second.nights[0].records)) == (Exit.PASS, 10)
    assert len(cluster.fake.submitted) == 2


def test_shard_that_keeps_failing_is_taken_in_and_its_code_is_that_of_the_night(cluster):
    lacking = shards(1)
    lacking[2] = None  # a process that leaves no record

    result = cluster({}, [*lacking, *shards(2), None])

    assert (result.code, result.nights[0].lacks) == (Exit.INVALID, [])
    assert any(line.startswith("h200 1/2: exit 4 on n1: ") for line in result.messages)


def test_gpu_that_is_in_use_quarantines_no_node(fake_night, monkeypatch):
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    monkeypatch.setattr(nightly, "find_gpus", lambda: [Gpu("GPU-a", "NVIDIA H200")])
    shard = Shard(night="n1", index=1, count=2)
    job = ShardJob(replace(fake_night.options, shard=shard, gpus="all"), fake_night.tmp / "place")

    with GpuLock("GPU-a"):
        job()

    report = fleet_night._read(job.place / "n1" / "report.json")
    assert (report.code, report.node_fails) == (Exit.BROKEN, [])
    assert "in use by" in report.messages[0]


def test_node_whose_gpu_is_gone_is_quarantined_and_measures_nothing_on_its_cpu(cluster):
    cluster.file.write_text(FILE.replace('partition = "gpu"', 'partition = "gpu"\ngres = "gpu:h200:1"'))
    cluster.fake.nodes = tuple(f"n{number}" for number in range(9))

    result = cluster(dict.fromkeys(range(2, 9), "pending"), [])

    assert (result.code, cluster.night.started) == (Exit.MISSING, [])
    assert "node n0 is quarantined since " in result.messages[0]
    assert "--gpus all: no GPU" in result.messages[0]


def test_control_that_prints_no_text_quarantines_its_node(fake_night, monkeypatch):
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    job = ShardJob(fake_night.options, fake_night.tmp / "place", ("sh", "-c", r"printf '\377fan\n'; exit 3"))

    job()

    report = fleet_night._read(job.place / "n1" / "report.json")
    assert report.node_fails == ["control sh: exit code 3; last line: \ufffdfan"]


def test_shard_that_never_compiled_is_not_green_and_the_resumed_night_measures_it_again(cluster):
    broken = {"static": True, "static_command": (sys.executable, "-c", "raise SystemExit(5)")}
    first = cluster({}, shards(1, 2, 1), **broken)
    again = cluster({}, shards(1, 1), resume=True, **broken)

    assert [shard for shard, _ in cluster.fake.submitted] == ["1/2", "2/2", "1/2", "1/2", "1/2"]
    assert (first.code, again.code) == (Exit.BROKEN, Exit.BROKEN)
    assert any("nothing was compiled" in line for line in again.messages)


@pytest.mark.parametrize("command", ['"/shared/no-such-control"', '"no-such-program", "-x"', '""'])
def test_control_that_nobody_can_run_quarantines_no_node(cluster, command):
    """Every node would fail it, one after another, and be kept off for good."""
    cluster.file.write_text(f"control = [{command}]\n{FILE}")

    with pytest.raises(UsageError, match="control"):
        cluster({}, [])
    assert cluster.fake.submitted == []
