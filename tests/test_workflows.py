"""Workflows: what may start them, what they may do, and that each step runs on a laptop too."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from ci.posting import artifact

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


PERMISSIONS = {
    "nightly.yml": {"night": {"contents": "read"}},
    "publish.yml": {"collect": {"actions": "read", "contents": "read"}, "publish": {"contents": "write"}},
    "pr-gate.yml": {"prepare": {"contents": "read"}, "run": {}, "judge": {}},
    "pr-gate-post.yml": {
        "read": {"actions": "read", "contents": "read"},
        "post": {"checks": "write", "contents": "read", "pull-requests": "write"},
    },
}
STARTED_BY = {
    "nightly.yml": {"schedule", "workflow_dispatch"},
    "publish.yml": {"schedule", "workflow_dispatch"},
    "pr-gate.yml": {"pull_request"},
    "pr-gate-post.yml": {"workflow_run"},
}


def loaded(name):
    return yaml.safe_load((ROOT / ".github/workflows" / name).read_text())


def started_by(content):
    return content[True]  # YAML 1.1 reads the key `on` as true


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_workflow_has_no_permissions_and_a_job_those_it_needs(path):
    content = loaded(path.name)

    assert content["permissions"] == {}
    assert {name: job["permissions"] for name, job in content["jobs"].items()} == PERMISSIONS[path.name]


def test_who_may_write_reads_nothing_that_another_run_left(jobs):
    """What reads strangers' archives has nothing to give away, and hands on what it has checked as plain files."""
    for job in jobs:
        if "write" in job["permissions"].values():
            assert "actions" not in job["permissions"]
            uses = {step["uses"].partition("@")[0] for step in job["steps"] if "uses" in step}
            assert uses == {"actions/checkout", "actions/download-artifact"}  # of this run alone: no run is named
            downloads = [step["with"] for step in job["steps"] if "download-artifact" in step.get("uses", "")]
            assert all(set(download) == {"name", "path"} for download in downloads)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_workflow_starts_by_its_own_event_alone(path):
    """Above all never by pull_request_target, which would hand strangers' code our token."""
    assert set(started_by(loaded(path.name))) == STARTED_BY[path.name]


def test_jobs_end_by_themselves(jobs):
    for job in jobs:
        assert 1 <= job["timeout-minutes"] <= 120


def test_a_job_that_is_run_again_replaces_what_it_left(jobs):
    """GitHub refuses a second artifact of one name in a run."""
    uploads = [step for job in jobs for step in job["steps"] if "upload-artifact" in step.get("uses", "")]

    assert [step["with"]["name"] for step in uploads if step["with"].get("overwrite") is not True] == []


def test_a_step_is_one_line_of_make_or_python(jobs):
    commands = [step["run"] for job in jobs for step in job["steps"] if "run" in step]

    assert commands
    for command in commands:
        assert re.match(r"(make|\.venv/bin/python -m) \S", command)
        assert "\n" not in command.strip()
        assert "${{" not in command  # works in a plain shell, and nothing can be injected


def test_every_command_and_target_exists_with_its_options(jobs):
    from typer.main import get_command

    from ci.__main__ import app

    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()
    for words in (shlex.split(step["run"]) for job in jobs for step in job["steps"] if "run" in step):
        if words[0] == "make":
            assert words[1] in targets
            continue
        assert words[:3] == [".venv/bin/python", "-m", "ci"]
        command = get_command(app)
        for word in words[3:]:
            command = getattr(command, "commands", {}).get(word, command)
        known = {option for item in command.params for option in (*item.opts, *item.secondary_opts)}
        assert {word for word in words if word.startswith("--")} <= known, words


class TestNightly:
    @pytest.fixture
    def job(self):
        return yaml.safe_load((ROOT / ".github/workflows/nightly.yml").read_text())["jobs"]["night"]

    def test_it_runs_on_each_card(self, job):
        assert job["strategy"] == {"fail-fast": False, "matrix": {"gpu": ["h100", "h200", "gb300"]}}
        assert job["runs-on"] == ["self-hosted", "${{ matrix.gpu }}"]

    def test_one_night_at_a_time_uses_a_card_and_is_never_cut_short(self, job):
        assert job["concurrency"] == {"group": "gpu-${{ matrix.gpu }}", "cancel-in-progress": False}

    def test_a_night_that_hangs_ends_before_its_job_so_that_what_it_left_is_kept(self, job):
        """GitHub cancels a job that is over its time, and a cancelled job uploads nothing."""
        steps = {step.get("name"): step.get("timeout-minutes", 0) for step in job["steps"]}

        assert steps["night"]
        assert steps["confirm what this night is suspected of"]
        assert sum(steps.values()) + 20 <= job["timeout-minutes"]

    def test_a_night_outwaits_the_card_of_a_gate(self, job):
        (night,) = [step["run"] for step in job["steps"] if step.get("name") == "night"]

        assert "--gpus all" in night  # and none of a CPU where they are gone
        assert "--wait 1800" in night

    def test_a_leg_reads_the_nights_so_far_and_leaves_what_it_added(self, job):
        commands = [step["run"] for step in job["steps"] if "run" in step]
        (upload,) = [step for step in job["steps"] if "upload-artifact" in step.get("uses", "")]

        assert commands[2] == "make leg-begin"
        assert " --store out/leg/store" in commands[3]
        assert commands[-1] == "make leg-end"
        assert upload["with"]["name"] == "night-${{ matrix.gpu }}"
        assert upload["with"]["path"] == "out/leg/night.tar.gz"
        assert upload["if"] == "${{ !cancelled() }}"  # a night that fails is published too


class TestPublish:
    @pytest.fixture
    def jobs(self):
        return loaded("publish.yml")["jobs"]

    @pytest.fixture
    def steps(self, jobs):
        return {step["name"]: step for step in jobs["collect"]["steps"] if "run" in step}

    def test_it_waits_for_no_runner(self, jobs):
        assert {job["runs-on"] for job in jobs.values()} == {"ubuntu-latest"}
        assert "needs" not in jobs["collect"]
        assert "workflow_run" not in started_by(loaded("publish.yml"))

    def test_it_expects_every_leg_of_the_nights(self, steps):
        legs = loaded("nightly.yml")["jobs"]["night"]["strategy"]["matrix"]["gpu"]

        assert f"--expect {','.join(legs)} " in steps["into one store"]["run"]
        overdue = steps["has every card had its night"]["run"]
        assert all(f"nvidia-{leg}*" in overdue for leg in legs)

    def test_a_card_that_missed_one_night_is_overdue_the_next_morning(self, steps):
        begun, published = (
            int(loaded(f"{name}.yml")[True]["schedule"][0]["cron"].split()[1]) for name in ("nightly", "publish")
        )
        hours = int(re.search(r"--hours (\d+)", steps["has every card had its night"]["run"])[1])

        assert published - begun < hours <= 24 + published - begun - 3  # GitHub may start both hours late

    def test_a_missing_leg_makes_it_red_and_the_page_is_published_all_the_same(self, jobs, steps):
        assert "if" not in steps["into one store"]
        for name in ("page", "feed, badge, issue text", "what is new", "has every card had its night"):
            assert steps[name]["if"] == "${{ !cancelled() }}"
        (upload,) = [step for step in jobs["collect"]["steps"] if "upload-artifact" in step.get("uses", "")]
        assert upload["if"] == jobs["publish"]["if"] == "${{ !cancelled() }}"

    def test_raw_records_which_name_hosts_stay_off_the_published_page(self, steps):
        assert steps["page"]["run"].endswith("PAGE=--public")

    def test_what_may_write_installs_nothing_and_publishes_what_the_other_job_left(self, jobs):
        (upload,) = [step for step in jobs["collect"]["steps"] if "upload-artifact" in step.get("uses", "")]
        _, download, publish = jobs["publish"]["steps"]

        assert {name: upload["with"][name] for name in download["with"]} == download["with"]
        assert publish["run"] == f"make publish FROM={download['with']['path']}"


class TestGate:
    """Strangers' code runs in one job, and that job has nothing to give away."""

    @pytest.fixture
    def text(self):
        return (ROOT / ".github/workflows/pr-gate.yml").read_text()

    @pytest.fixture
    def jobs(self):
        return loaded("pr-gate.yml")["jobs"]

    def uses(self, job):
        return [step["uses"].partition("@")[0] for step in job["steps"] if "uses" in step]

    def test_a_fork_waits_for_an_owner_before_its_code_runs(self, jobs):
        assert jobs["run"]["environment"] == (
            "${{ github.event.pull_request.head.repo.full_name == github.repository && 'gate' || 'gate-forks' }}"
        )

    def test_only_that_job_has_our_card_and_its_runner_serves_one_job(self, jobs):
        assert jobs["run"]["runs-on"] == ["self-hosted", "h200", "ephemeral"]
        assert {job["runs-on"] for name, job in jobs.items() if name != "run"} == {"ubuntu-latest"}

    def test_that_job_has_no_checkout_no_secret_no_cache_and_no_store(self, jobs):
        assert set(self.uses(jobs["run"])) == {"actions/download-artifact", "actions/upload-artifact"}
        described = yaml.safe_dump(jobs["run"])
        for word in ("secrets", "github.token", "GITHUB_TOKEN", "actions/cache", "--store", "perf-history"):
            assert word not in described

    @pytest.mark.parametrize("name", ["HOME", "TRITON_CACHE_DIR", "PIP_CACHE_DIR"])
    def test_folders_that_code_may_leave_things_in_are_of_one_run(self, jobs, name):
        assert "${{ github.run_id }}-${{ github.run_attempt }}" in jobs["run"]["env"][name]

    def test_nothing_here_writes_to_a_store(self, text):
        assert "--store" not in text
        assert "write" not in [value for job in PERMISSIONS["pr-gate.yml"].values() for value in job.values()]

    def test_the_first_job_runs_the_bases_code_and_reads_the_head_as_files(self, jobs):
        (checkout,) = [step for step in jobs["prepare"]["steps"] if "checkout" in step.get("uses", "")]
        commands = [step["run"] for step in jobs["prepare"]["steps"] if "run" in step]

        assert checkout["with"]["ref"] == "${{ github.event.pull_request.base.sha }}"
        assert [command for command in commands if "$HEAD" in command] == commands[1:]
        assert commands[1] == 'make fetch COMMIT="$HEAD"'
        assert " ci gate prepare " in commands[2]

    def test_an_approval_is_of_the_labelled_commit_alone(self, jobs):
        assert jobs["prepare"]["env"]["APPROVED_BY"] == (
            "${{ github.event.action == 'labeled' && github.actor || '' }}"
        )

    def test_the_judge_takes_plan_and_policy_from_the_first_job(self, jobs):
        downloads = [step["with"] for step in jobs["judge"]["steps"] if "download" in step.get("uses", "")]

        # The later one overwrites: what strangers' code left cannot replace the plan or our code.
        assert downloads == [{"name": "gate-measured", "path": "out/gate"}, {"name": "gate-prepared"}]
        assert "actions/checkout" not in self.uses(jobs["judge"])

    def test_the_verdict_is_kept_whatever_it_is(self, jobs):
        steps = {step.get("name") or step["with"]["name"]: step for step in jobs["judge"]["steps"]}

        for name in ("summary", "gate-verdict", "gate-junit"):
            assert steps[name]["if"] == "${{ !cancelled() }}"
        assert steps[artifact.NAME]["with"]["path"].endswith(f"/{artifact.MEMBER}")


class TestGatePost:
    @pytest.fixture
    def jobs(self):
        return loaded("pr-gate-post.yml")["jobs"]

    def test_it_follows_the_gate_and_nothing_else(self, jobs):
        assert started_by(loaded("pr-gate-post.yml")) == {
            "workflow_run": {"workflows": [loaded("pr-gate.yml")["name"]], "types": ["completed"]}
        }
        assert "github.event.workflow_run.event == 'pull_request'" in jobs["read"]["if"]
        assert jobs["post"]["if"] == "${{ !cancelled() && needs.read.result != 'skipped' }}"

    @pytest.mark.parametrize("name", ["read", "post"])
    def test_it_runs_our_default_branch(self, jobs, name):
        (checkout,) = [step for step in jobs[name]["steps"] if "checkout" in step.get("uses", "")]

        assert "ref" not in checkout["with"]
        assert checkout["with"]["persist-credentials"] is False

    @pytest.mark.parametrize(("name", "command"), [("read", "fetch-verdict --out"), ("post", "post")])
    def test_only_the_step_that_asks_github_has_the_token_and_none_reads_the_event_into_its_line(
        self, jobs, name, command
    ):
        (asks,) = [step for step in jobs[name]["steps"] if "env" in step]

        assert asks["run"] == f".venv/bin/python -m ci {command} out/post/verdict.json"
        assert asks["env"] == {"GITHUB_TOKEN": "${{ github.token }}"}
        assert "env" not in jobs[name]

    def test_what_may_write_gets_what_the_other_job_checked(self, jobs):
        (upload,) = [step["with"] for step in jobs["read"]["steps"] if "upload-artifact" in step.get("uses", "")]
        (download,) = [step["with"] for step in jobs["post"]["steps"] if "download-artifact" in step.get("uses", "")]

        assert {name: upload[name] for name in download} == download
