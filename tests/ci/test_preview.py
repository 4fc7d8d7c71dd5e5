"""What `ci nightly` says without starting anything: cases, what would run, how long, and what it refuses."""

import json

import pytest
from typer.testing import CliRunner

from benchmarks.cases import SETS
from ci.__main__ import app
from ci.exits import Exit
from tests.ci.clusters import FILE
from tests.ci.command_line import invoke
from tests.ci.nights import make_records
from tests.ci.stores import make_night, put_at_url, store_nights

pytestmark = pytest.mark.usefixtures("no_gpu")


def test_list_names_the_cases_and_starts_nothing(no_process):
    result = invoke("nightly", "--set", "smoke", "--list", "--json")

    assert [case["name"] for case in json.loads(result.output)["cases"]] == [case.name for case in SETS["smoke"]]


def test_list_without_a_set_names_every_set_with_its_cases(no_process):
    result = invoke("nightly", "--list", "--json")

    found = {one["set"]: [case["name"] for case in one["cases"]] for one in json.loads(result.output)["sets"]}
    assert found == {name: [case.name for case in cases] for name, cases in SETS.items()}


def test_list_of_all_sets_leaves_out_those_without_a_match(no_process):
    result = invoke("nightly", "--list", "--case", "*_b32_t3_a2.73_*")

    assert [line for line in result.output.splitlines() if line.startswith("set")] == ["set: smoke", "set: nightly"]
    assert invoke("nightly", "--list", "--case", "*zzz*").exit_code == Exit.MISSING


@pytest.mark.parametrize("commit", ["--no-page", "main", ""])
def test_night_of_a_commit_that_is_no_hash_is_refused_before_anything_starts(no_process, commit):
    result = invoke("nightly", "--set", "smoke", "--dry-run", "--commit", commit)

    assert result.exit_code == Exit.USAGE
    assert f"Invalid value for '--commit': expected 7 to 40 hex digits, got {commit!r}" in " ".join(
        result.output.split()
    )


@pytest.mark.parametrize("option", ["--dry-run", "--estimate", "--resume"])
def test_all_but_list_need_a_set_and_say_so(no_process, option):
    result = invoke("nightly", option)

    assert result.exit_code == Exit.USAGE
    assert (
        "--set: expected one of smoke, pr, nightly, roofline, league, published; --list without --set" in result.output
    )


@pytest.fixture
def fleet_file(tmp_path):
    (tmp_path / "fleet.toml").write_text(FILE)
    return str(tmp_path / "fleet.toml")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--executor", "slurm"], "--fleet: expected a file"),
        (["--executor", "slurm", "--fleet", "FILE", "--shard", "1/2"], "--shard: on a cluster"),
        (["--fleet", "FILE"], "--fleet: expected with --executor slurm alone"),
        (["--executor", "k8s"], "expected local or slurm, got 'k8s'"),
    ],
)
@pytest.mark.parametrize("also", [[], ["--dry-run"]], ids=["run", "dry"])
def test_options_of_a_cluster_that_do_not_fit_are_refused(no_process, fleet_file, arguments, said, also):
    result = invoke("nightly", "--set", "smoke", *(fleet_file if one == "FILE" else one for one in arguments), *also)

    assert result.exit_code == Exit.USAGE
    assert said in result.output


def test_dry_run_of_a_fleet_tells_its_pools_and_reads_its_file(no_process, fleet_file, tmp_path):
    command = ["nightly", "--set", "smoke", "--executor", "slurm", "--fleet", fleet_file, "--dry-run", "--json"]
    result = invoke(*command, "--store", str(tmp_path / "s"))

    pool = {"partition": "gpu", "gres": None, "shards": 2, "cases": "3+3", "at_most_min": 60}
    assert json.loads(result.output)["gpus"] == {"h200": pool}

    (tmp_path / "fleet.toml").write_text(FILE.replace("shards = 2", "shards = 7"))
    assert "pool h200: 7 shards of 6 cases" in invoke(*command).output


def test_dry_run_says_what_would_run_and_starts_nothing(no_process, tmp_path):
    result = invoke(
        "nightly", "--set", "pr", "--case", "*_b32_*", "--dry-run", "--json", "--store", str(tmp_path / "s")
    )

    facts = json.loads(result.output)
    assert facts["num_cases"] == 2
    assert facts["processes_per_gpu"] == 5
    assert "--case '*_b32_*'" in facts["command"]
    assert not (tmp_path / "s").exists()


def test_estimate_is_from_the_last_night_and_grows_with_processes(fake_night):
    fake_night.night(make_records(duration_s=4.0))

    result = invoke(
        "nightly", "--set", "smoke", "--estimate", "--json", "--store", str(fake_night.store), "--processes", "10"
    )

    seconds = json.loads(result.output)["estimate"]["nvidia-h200"]["seconds_per_gpu"]
    assert seconds == pytest.approx(4.0 * len(SETS["smoke"]) * 10)  # the record has one case


def test_unknown_set_exits_2_with_the_known_ones():
    result = invoke("nightly", "--set", "smok", "--list")

    assert result.exit_code == Exit.USAGE
    assert "smoke, pr, nightly" in result.output


def test_unknown_case_exits_2_with_the_known_ones():
    result = invoke("nightly", "--set", "smoke", "--case", "kimi_k3", "--json")

    assert result.exit_code == Exit.USAGE
    assert SETS["smoke"][0].name in result.output


@pytest.mark.parametrize(
    ("asked", "said"),
    [(("--providers", "theirs"), "(vllm_recoverssm, "), (("--provider", "gone.py:X"), "of a file that is there, got")],
)
def test_a_kernel_that_nobody_has_is_refused_before_anything_starts(no_process, asked, said):
    result = invoke("nightly", "--set", "smoke", *asked)

    assert result.exit_code == Exit.USAGE
    assert said in " ".join(result.output.split())


def test_nothing_selected_exits_3():
    assert invoke("nightly", "--set", "smoke", "--case", "*zzz*").exit_code == Exit.MISSING


def test_a_preview_reads_the_last_night_alone(tmp_path, monkeypatch):
    url, asked = put_at_url(store_nights(tmp_path / "from", *map(make_night, range(1, 8))), tmp_path, monkeypatch)

    result = CliRunner().invoke(app, ["nightly", "--set", "smoke", "--dry-run", "--json", "--store", url])

    assert list(json.loads(result.stdout)["last_accepted"]) == ["nvidia-h200"]
    assert {name.split("/")[2][:8] for name in asked} == {"20261107"}
    assert len([name for name in asked if name.startswith("records")]) == 3
