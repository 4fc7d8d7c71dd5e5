"""Workflows: what may start them, what they may do, and that each step runs on a laptop too."""

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted((ROOT / ".github/workflows").glob("*.yml"))
PINNED = re.compile(r"uses: [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$")


@pytest.fixture(params=FILES, ids=lambda path: path.name)
def workflow(request):
    return request.param.read_text()


@pytest.fixture
def jobs(workflow):
    return yaml.safe_load(workflow)["jobs"].values()


def test_actions_are_pinned_by_commit_with_their_version(workflow):
    uses = [line.strip().removeprefix("- ") for line in workflow.splitlines() if "uses:" in line]

    assert uses
    assert [line for line in uses if not PINNED.fullmatch(line)] == []


def test_a_workflow_has_no_permissions_and_a_job_says_what_it_needs(workflow, jobs):
    assert yaml.safe_load(workflow)["permissions"] == {}
    for job in jobs:
        assert set(job["permissions"]) <= {"contents"}


def test_jobs_end_by_themselves(jobs):
    for job in jobs:
        assert 1 <= job["timeout-minutes"] <= 120


def test_a_step_is_one_line_of_make_or_python(jobs):
    commands = [step["run"] for job in jobs for step in job["steps"] if "run" in step]

    assert commands
    for command in commands:
        assert re.match(r"(make|\.venv/bin/python -m) \S", command)
        assert "\n" not in command.strip()
        assert "${{" not in command  # works in a plain shell, and nothing can be injected


def test_strangers_code_never_reaches_our_machines(workflow):
    started_by = yaml.safe_load(workflow)[True]  # YAML 1.1 reads the key `on` as true

    assert set(started_by) == {"schedule", "workflow_dispatch"}


class TestNightly:
    @pytest.fixture
    def job(self):
        return yaml.safe_load((ROOT / ".github/workflows/nightly.yml").read_text())["jobs"]["night"]

    def test_it_runs_on_each_card(self, job):
        assert job["strategy"] == {"fail-fast": False, "matrix": {"gpu": ["h100", "h200", "gb300"]}}
        assert job["runs-on"] == ["self-hosted", "${{ matrix.gpu }}"]

    def test_one_night_at_a_time_uses_a_card_and_is_never_cut_short(self, job):
        assert job["concurrency"] == {"group": "gpu-${{ matrix.gpu }}", "cancel-in-progress": False}

    def test_the_page_is_left_out_where_plotly_is_not_installed(self, job):
        (page,) = [step for step in job["steps"] if step.get("name") == "page"]
        (upload,) = [step for step in job["steps"] if "upload-artifact" in step.get("uses", "")]

        assert page["run"] == "make site STORE=branch:perf-history SITE=out/site"
        assert upload["with"]["path"] == "out/site"
        assert upload["with"]["if-no-files-found"] == "ignore"

    def test_the_store_is_the_branch_so_that_a_night_finds_the_last_one(self, job):
        (night,) = [step["run"] for step in job["steps"] if " ci nightly " in step.get("run", "")]

        assert night.endswith("--store branch:perf-history")
        assert job["permissions"] == {"contents": "write"}
