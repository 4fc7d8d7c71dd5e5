"""asv run for real on our suite, over two commits of a small repository."""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.harness.environment import collect_environment
from ci.asv_machine import write_machine

ROOT = Path(__file__).resolve().parents[2]
VERIFY, MEMORY, DEVICE = (
    "bench_cpu_reference.Verify.track_seconds",
    "bench_memory.Cache.track_bytes",
    "bench_graph_cold.Conv.track_seconds",
)


def load_config():
    text = (ROOT / "asv.conf.json").read_text()
    return json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Our suite under asv, twice: once for each of two commits."""
    folder = tmp_path_factory.mktemp("asv")
    repo, home = folder / "repo", folder / "home"
    repo.mkdir()
    home.mkdir()
    dropped = ("PYTEST_", "GIT_", "COV_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    environment |= {"HOME": str(home), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    environment |= {"ASV_PYTHONPATH": str(ROOT)}

    def run(*command):
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def git(*arguments):
        identity = ("-c", "user.name=test", "-c", "user.email=test@example.org")
        return run("git", "-C", str(repo), *identity, *arguments).strip()

    git("init", "--quiet", "--initial-branch=main")
    commits = []
    for message in ("one", "two"):
        git("commit", "--quiet", "--allow-empty", "--message", message)
        commits.append(git("rev-parse", "HEAD"))
    config = load_config() | {"repo": str(repo), "benchmark_dir": str(ROOT / "benchmarks")}
    config |= {name: str(folder / name) for name in ("env_dir", "results_dir", "html_dir")}
    (folder / "asv.conf.json").write_text(json.dumps(config))
    machine = write_machine(collect_environment(), home / ".asv-machine.json")

    def asv(*arguments):
        return run(sys.executable, "-m", "asv", *arguments)

    chosen = [rf"{re.escape(VERIFY)}\(.*, 4, .*\)", re.escape(MEMORY), rf"{re.escape(DEVICE)}\(.*, 1, 4, 'fp32', .*\)"]
    for commit in commits:
        options = ("--python=same", "--set-commit-hash", commit, "--machine", machine, "--record-samples")
        asv("run", *options, *(f"--bench={pattern}" for pattern in chosen))
    return SimpleNamespace(folder=folder, commits=commits, machine=machine, asv=asv)


def stored(measured, commit):
    (path,) = (measured.folder / "results_dir" / measured.machine).glob(f"{commit[:8]}-*.json")
    return json.loads(path.read_text())


def row(results, name):
    return dict(zip(results["result_columns"], results["results"][name], strict=False))


def test_asv_stores_every_sample_of_ours_in_seconds(measured):
    for commit in measured.commits:
        found = row(stored(measured, commit), VERIFY)
        samples = [one for one in found["samples"] if one]
        assert len(samples) == 2  # T = 4 in both dtypes; the others were not asked for
        assert all(len(one) >= 6 and all(1e-6 < value < 100 for value in one) for one in samples)
        assert [count for count in found["stats_repeat"] if count] == [len(one) for one in samples]
        assert all(number >= 1 for number in found["stats_number"] if number)
        for value, one in zip(found["result"], found["samples"], strict=True):
            assert math.isnan(value) if one is None else min(one) <= value <= max(one)


def test_the_machine_is_named_by_its_gpu_and_results_carry_the_versions(measured):
    environment = collect_environment()
    results = stored(measured, measured.commits[0])

    assert measured.machine == environment.gpu_model
    assert results["params"]["gpu"] == environment.gpu_model
    assert (results["params"]["torch"], results["params"]["triton"]) == (environment.torch, environment.triton)


def test_memory_is_bytes_in_use_and_ours_is_less(measured):
    found = row(stored(measured, measured.commits[0]), MEMORY)
    half = len(found["result"]) // 2  # the provider is the first parameter

    ours, full_state = found["result"][:half], found["result"][half:]
    assert found["params"][0] == ["'recoverssm'", "'full_state'"]
    assert all(0 < used < needed for used, needed in zip(ours, full_state, strict=True))


def test_without_a_gpu_device_time_is_skipped_and_no_other_timer_takes_over(measured):
    found = row(stored(measured, measured.commits[0]), DEVICE)

    assert all(value is not None and math.isnan(value) for value in found["result"])  # None would be a failure
    assert found.get("samples") is None


def test_publish_shows_both_commits(measured):
    measured.asv("publish")

    index = json.loads((measured.folder / "html_dir/index.json").read_text())
    assert {VERIFY, MEMORY} <= set(index["benchmarks"])
    assert set(index["revision_to_hash"].values()) == set(measured.commits)
    (graph,) = (measured.folder / "html_dir/graphs").glob(f"**/gpu-cpu/**/{VERIFY}.json")
    points = json.loads(graph.read_text())
    assert len(points) == 2
    assert all(any(value is not None for value in values) for _, values in points)


def test_compare_has_both_sides(measured):
    shown = measured.asv("compare", *measured.commits, "--machine", measured.machine)

    lines = [line for line in shown.splitlines() if f"{VERIFY}(2, 4, 'fp32')" in line]
    assert len(lines) == 1
    assert re.search(r"±.*±.*\d\.\d\d", lines[0])


def test_the_configuration_is_the_one_that_make_asv_uses():
    config = load_config()

    assert (config["repo"], config["benchmark_dir"]) == (".", "benchmarks")
    assert {config[name].partition("/")[0] for name in ("env_dir", "results_dir", "html_dir")} == {"out"}
