"""A night in shards through a real Slurm of several nodes without a GPU, against the night of one run."""

import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.cases import select
from benchmarks.harness.store import Store
from ci.exits import Exit
from ci.fleet.command import nightly_on_cluster
from ci.fleet.config import load_fleet
from ci.fleet.night import Hours
from ci.nightly import run_nightly
from ci.options import Options
from tests.ci.slurm_cluster import slurm_cluster

CASES = select("smoke")
NODES = ("n1", "n2", "n3", "n4")
FILE = """
version = 1
control = ["{control}"]
retries = 2
backoff_s = 1
poll_s = 1
give_up_min = 30
[[pool]]
name = "cpu"
partition = "cpu"
shards = 3
cpus_per_task = 1
"""
CONTROL = """#!/bin/sh
test "$SLURMD_NODENAME" != n3 || { echo "n3 has lost its fan"; exit 1; }
"""


def workers(node):
    """Process ids of the shards that run on a node."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command, variables = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()
        except OSError:
            continue
        program, *arguments = command.split(b"\0")
        is_worker = b"submitit.core._submit" in arguments and b"python" in program  # no shell and no srun
        if is_worker and f"SLURMD_NODENAME={node}".encode() in variables.split(b"\0"):
            yield int(folder.name)


class Trouble:
    """Between two looks at the cluster: once each, a worker that measures is killed and a node that measures drains."""

    def __init__(self, night: Path) -> None:
        self.night, self.killed, self.drained = night, [], []

    def __call__(self, seconds: float) -> None:
        time.sleep(seconds)
        measuring = {path.relative_to(self.night).parts[1] for path in self.night.glob("*/*/processes/*/*/*.journal")}
        if not self.drained and "n2" in measuring:
            command = ["scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=test"]
            subprocess.run(command, check=True)
            self.drained.append("n2")
        if not self.killed and "n1" in measuring:
            self.killed += list(workers("n1"))
            for pid in self.killed:
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def options(tmp_path):
    return Options(
        case_set="smoke",
        pattern="*",
        selected=[case.name for case in CASES],
        store=str(tmp_path / "sharded"),
        out=tmp_path / "out",
        processes=1,
        seed=7,
        gpus="cpu",
        page=False,
        static=True,
    )


def figures(store):
    """What must not depend on who measured: cases, what checks came to, exact and compiled figures.

    How far off a result is within its limit depends on the inputs, and those on the order of the cases.
    """
    records = store.records()
    measured = [record for record in records if not record.is_static]
    exact = {
        (record.environment.gpu_model, *m.key): (m.value, m.status)
        for record in records
        for m in record.measurements
        if m.contract in ("exact", "static")
    }
    checks = {(c.case, c.op, c.provider, c.metric): (c.limit, c.passed) for r in measured for c in r.checks}
    keys = {(record.environment.gpu_model, *m.key, m.status) for record in records for m in record.measurements}
    return {case.name for r in measured for case in r.cases}, checks, exact, keys


@pytest.mark.long
def test_shards_on_slurm_with_a_killed_worker_a_draining_and_a_sick_node_are_the_night_of_one_run(
    tmp_path, options, monkeypatch
):
    file, control = tmp_path / "fleet.toml", tmp_path / "control"
    control.write_text(CONTROL)
    control.chmod(0o755)
    file.write_text(FILE.format(control=control))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    trouble = Trouble(options.out / "n")
    with slurm_cluster(tmp_path / "slurm", NODES) as env, (tmp_path / "progress.txt").open("w") as progress:
        monkeypatch.setenv("SLURM_CONF", env["SLURM_CONF"])
        console = Console(file=progress, width=200)
        result = nightly_on_cluster(
            options, CASES, "n", load_fleet(file), console, hours=Hours(time.monotonic, trouble)
        )
    said = (tmp_path / "progress.txt").read_text()
    alone = replace(options, store=str(tmp_path / "whole"), out=tmp_path / "alone")
    with (tmp_path / "alone.txt").open("w") as progress:
        whole = run_nightly(alone, Console(file=progress, width=200))

    assert len(trouble.killed) == 1, said
    assert trouble.drained == ["n2"]
    assert "node n3 is quarantined" in said
    assert (result.code, whole.code) == (Exit.PASS, Exit.PASS), said
    assert {night.gpu_model: night.lacks for night in result.nights} == {n.gpu_model: [] for n in whole.nights}
    for sharded, alone in zip(figures(Store(tmp_path / "sharded")), figures(Store(tmp_path / "whole")), strict=True):
        assert sharded == alone
