"""What is said to Slurm's commands and made of their answers; the commands are scripts."""

import os
from pathlib import Path

import pytest

from ci.exits import BrokenEnvironmentError, UsageError
from ci.fleet.config import Pool, load_fleet
from ci.fleet.slurm import COMMANDS, Slurm
from ci.fleet.worker import ShardJob
from ci.options import Options
from tests.ci.clusters import FILE

OPTIONS = Options("smoke", "*", ["case"], "store", Path("out"), 1, 1)
POOL = Pool(name="h200", partition="gpu", sbatch={"account": "kernels", "exclusive": True, "nice": 5, "hold": False})


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Call it with the lines of a command's script; the job that was submitted is in ``job.sh``."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    (tmp_path / "bin").mkdir()

    def say(name, *lines):
        script = tmp_path / "bin" / name
        script.write_text("\n".join(["#!/bin/sh", *lines, ""]))
        script.chmod(0o755)

    for name in (*COMMANDS, "srun"):
        say(name, "exit 0")
    say("sbatch", f'cp "$1" {tmp_path / "job.sh"}', "echo Submitted batch job 7")
    say("sinfo", "printf 'n1\\nn2\\nn1\\n'")
    say.submit = lambda pool=POOL, exclude=(): Slurm(tmp_path / "logs").submit(
        pool, [ShardJob(OPTIONS, tmp_path / "place")] * 2, exclude
    )
    say.job = tmp_path / "job.sh"
    return say


def test_shards_are_one_array_with_the_options_of_the_file(slurm):
    assert slurm.submit() == ["7_0", "7_1"]

    lines = slurm.job.read_text().splitlines()
    for option in ("array=0-1%2", "partition=gpu", "account=kernels", "exclusive", "nice=5", "requeue"):
        assert f"#SBATCH --{option}" in lines
    assert "hold" not in slurm.job.read_text()


def test_quarantined_node_that_the_cluster_no_longer_has_is_not_named(slurm):
    """Slurm would refuse the job: every later night would end without a shard."""
    slurm.submit(exclude=["n2", "gone"])

    assert "#SBATCH --exclude=n2" in slurm.job.read_text().splitlines()


def test_jobs_that_slurm_refuses_are_told_with_its_words(slurm):
    slurm("sbatch", "echo sbatch: error: invalid partition specified: gpu >&2", "exit 1")

    with pytest.raises(BrokenEnvironmentError, match=r"partition gpu: .*invalid partition specified: gpu"):
        slurm.submit()


def test_alive_is_what_waits_or_runs_with_its_state(slurm, tmp_path):
    states = ("7_0 RUNNING (None)", "7_1 PENDING (Nodes required for job are DOWN)", "7_2 COMPLETED (None)")
    slurm("squeue", *(f"echo '{line}'" for line in states))

    assert Slurm(tmp_path).alive(["7_0", "7_1", "7_2", "7_3"]) == {
        "7_0": "RUNNING (None)",
        "7_1": "PENDING (Nodes required for job are DOWN)",
    }


def test_jobs_that_slurm_has_forgotten_have_ended(slurm, tmp_path):
    slurm("squeue", "echo slurm_load_jobs error: Invalid job id specified >&2", "exit 1")

    assert Slurm(tmp_path).alive(["7_0"]) == {}


def test_slurm_that_does_not_answer_is_an_error(slurm, tmp_path):
    slurm("squeue", "echo Unable to contact slurm controller >&2", "exit 1")

    with pytest.raises(BrokenEnvironmentError, match="squeue: exit 1: Unable to contact"):
        Slurm(tmp_path).alive(["7_0"])


@pytest.mark.parametrize("name", COMMANDS)
def test_host_without_a_command_is_told_before_anything_is_submitted(slurm, tmp_path, monkeypatch, name):
    (tmp_path / "bin" / name).unlink()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    with pytest.raises(BrokenEnvironmentError, match=f"no {name} on this host"):
        Slurm(tmp_path)


@pytest.mark.parametrize("option", ["array", "cpus_per_task", "exclude", "partition", "time"])
def test_option_that_the_program_sets_itself_is_refused(tmp_path, option):
    (tmp_path / "fleet.toml").write_text(f'{FILE}sbatch = {{ {option} = "1" }}\n')

    with pytest.raises(UsageError, match=rf"fleet.toml.*sbatch: {option.replace('_', '-')}: expected other options"):
        load_fleet(tmp_path / "fleet.toml")
