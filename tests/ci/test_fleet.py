"""Shards on a cluster that exists only here: what is measured, lost, tried again, kept off, and given up."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.harness.records import Shard
from ci.exits import BrokenEnvironmentError, Exit, UsageError
from ci.fleet.config import load_fleet
from ci.fleet.worker import ShardJob
from tests.ci.clusters import FILE, shards
from tests.ci.nights import drifting


def test_every_shard_comes_back_and_is_judged_as_one_night(cluster):
    result = cluster({}, shards(1, 2))

    (night,) = result.nights
    assert (result.code, night.accepted, len(night.records)) == (Exit.PASS, True, 10)
    assert cluster.fake.submitted == [("1/2", []), ("2/2", [])]
    assert {r.shard for r in cluster.night.stored()} == {Shard(night="n1", index=i, count=2) for i in (1, 2)}


def test_shard_whose_job_was_killed_is_measured_again(cluster):
    result = cluster({0: "killed"}, shards(2, 1))

    assert (result.code, result.nights[0].lacks) == (Exit.PASS, [])
    assert [shard for shard, _ in cluster.fake.submitted] == ["1/2", "2/2", "1/2"]
    assert "ended without a report; again in 60 s" in cluster.said


def test_shard_that_is_lost_again_and_again_is_given_up_and_told(cluster):
    result = cluster({0: "killed", 2: "killed"}, shards(2))

    assert (result.code, result.nights[0].lacks) == (Exit.MISSING, ["1/2"])
    assert "h200 1/2: given up after 2 tries" in result.messages[0]


def test_node_that_fails_its_control_is_quarantined_and_its_shard_goes_elsewhere(cluster):
    result = cluster({0: "sick"}, shards(2, 1))

    assert (result.code, result.nights[0].lacks) == (Exit.PASS, [])
    assert cluster.fake.submitted[2] == ("1/2", ["n1"])
    assert "node n1 is quarantined since " in result.messages[0]
    assert "control false: exit code 1" in result.messages[0]


def test_quarantine_holds_for_later_nights_until_it_is_lifted(cluster):
    cluster({0: "sick"}, shards(2, 1))
    again = cluster({}, shards(1, 2), night="n2")

    assert cluster.fake.submitted[3:] == [("1/2", ["n1"]), ("2/2", ["n1"])]
    assert "node n1 is quarantined" in again.messages[0]


def test_node_whose_card_drifted_is_quarantined_and_what_it_measured_is_left_out(cluster):
    result = cluster({}, [*shards(1, controls=drifting(300.0)), *shards(2), *shards(1)])

    assert (result.code, len(result.nights[0].records)) == (Exit.PASS, 10)
    assert "took +20.0 % at the end of the process" in result.messages[0]


def test_night_that_has_waited_long_enough_is_judged_without_what_has_not_come(cluster):
    result = cluster({0: "pending"}, shards(2))

    assert (result.code, result.nights[0].lacks) == (Exit.MISSING, ["1/2"])
    assert result.messages == ["h200 1/2: not there after 30 minutes: job 1_0 PENDING (Resources)"]
    assert cluster.fake.cancelled == {"1_0"}


def test_resumed_night_asks_for_missing_shards_alone(cluster):
    cluster({0: "pending"}, shards(2))
    result = cluster({}, shards(1), resume=True)

    assert (result.code, result.nights[0].lacks) == (Exit.PASS, [])
    assert [shard for shard, _ in cluster.fake.submitted] == ["1/2", "2/2", "1/2"]


def test_pool_that_takes_no_jobs_is_tried_again_and_does_not_end_the_night(cluster, monkeypatch):
    def refuse(pool, jobs, exclude):
        raise BrokenEnvironmentError("invalid partition specified: gpu")

    cluster.file.write_text(FILE + '[[pool]]\nname = "other"\npartition = "b"\nshards = 2\n')
    take = cluster.fake.submit
    monkeypatch.setattr(
        cluster.fake, "submit", lambda pool, *more: (refuse if pool.name == "h200" else take)(pool, *more)
    )
    result = cluster({}, shards(1, 2))

    assert len(result.nights[0].records) == 10
    assert [line for line in result.messages if "given up after 2 tries: invalid partition" in line]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("version = 1", "missing required field `pool`"),
        (FILE + "[[pool]]\nname = 'h200'\npartition = 'b'\n", "expected each name once"),
        (FILE.replace("shards = 2", "shards = 0"), "shards"),
        (FILE + "gress = 'x'\n", "unknown field"),
        (FILE + "sbatch = { --account = 'x' }\n", r"matching regex .*sbatch"),
        (FILE + 'sbatch = { account = "a\\n#SBATCH --uid=0" }\n', r"matching regex .*sbatch"),
        (FILE.replace('"gpu"', '"a\\nb"'), r"matching regex .*partition"),
        (FILE + 'gres = "gpu\\nreboot"\n', r"matching regex .*gres"),
        (FILE.replace("poll_s = 10", "poll_s = inf"), "poll_s"),
        ("version = 1 # \udcff", "not valid TOML"),
    ],
)
def test_file_that_is_wrong_is_refused_with_its_place(tmp_path, text, said):
    file = tmp_path / "fleet.toml"
    file.write_bytes(text.encode(errors="surrogateescape"))

    with pytest.raises(UsageError, match=said) as caught:
        load_fleet(file)
    assert str(file) in str(caught.value)


def test_more_shards_than_cases_are_refused(cluster):
    cluster.file.write_text(FILE.replace("shards = 2", "shards = 7"))

    with pytest.raises(UsageError, match="7 shards of 6 cases"):
        cluster({}, [])


def test_shard_that_is_complete_on_its_node_is_reported_again_and_not_measured(fake_night, monkeypatch):
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    job = ShardJob(replace(fake_night.options, shard=Shard(night="n1", index=1, count=2)), fake_night.tmp / "place")
    fake_night.prepare(shards(1))

    job()
    first = (job.place / "n1" / "report.json").read_bytes()
    (job.place / "n1" / "report.json").unlink()
    job()

    assert b'"code": 0' in first
    assert b'"code": 0' in (job.place / "n1" / "report.json").read_bytes()
    assert len(fake_night.started) == 5


def test_job_travels_to_its_node_as_a_pickle(fake_night):
    import pickle

    job = ShardJob(fake_night.options, Path("place"), (sys.executable, "-c", "pass"))

    assert pickle.loads(pickle.dumps(job)) == job
