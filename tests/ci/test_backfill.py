"""A range of commits measured in turn: the order, what is skipped, resuming, and that no night counts the records."""

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console
from typer.testing import CliRunner

from benchmarks.harness.store import Store
from ci.__main__ import app
from ci.commits import backfill, backfill_report
from ci.commits.compare import compare
from ci.commits.stored import read_named
from ci.exits import BrokenEnvironmentError, Exit, MissingDataError, UsageError
from ci.gpus import Gpu
from tests.ci.commits import Commits

QUIET = Console(file=io.StringIO(), width=200)


@pytest.fixture
def commits(tmp_path, monkeypatch):
    monkeypatch.setenv("RECOVERSSM_LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.setattr("ci.commits.backfill.find_gpus", lambda: [Gpu("GPU-1", "NVIDIA H200"), Gpu("GPU-2", "same")])
    monkeypatch.setattr("ci.nightly.require_usable", lambda gpu: None)
    made = Commits(tmp_path)
    made.commit("before", "us = 90.0\n")
    return made


def request(commits, **changes):
    asked = backfill.Request(
        "HEAD~3..HEAD", "smoke", "*", str(commits.root.parent / "store"), rounds=5, seed=7, root=commits.root
    )
    return replace(asked, **changes)


def measure(commits, out="out", **changes):
    folder = commits.root.parent / out
    state = backfill.prepare(request(commits, **changes), folder, QUIET)
    return backfill.run(state, folder, QUIET, command=commits.command)


def three(commits):
    return [commits.commit(f"takes {us}", f"us = {us}\n") for us in (100.0, 105.0, 106.0)]


def test_rounds_have_every_commit_once_and_another_order(commits):
    names = three(commits)

    result = measure(commits)

    assert result.code == Exit.PASS
    rounds = [commits.started[at : at + 3] for at in range(0, 15, 3)]
    assert all(sorted(one) == sorted(names) for one in rounds)
    assert len({tuple(one) for one in rounds}) > 1
    assert result.counts == dict.fromkeys(names, 5)


@pytest.mark.parametrize(("program", "lean"), [(None, True), ("own", False)])
def test_processes_are_lean_where_one_program_measures_all(commits, program, lean):
    three(commits)

    measure(commits, program=program)

    lines = (commits.folder / "started.txt").read_text().splitlines()
    assert {line.endswith(" lean") for line in lines} == {lean}


def test_records_bear_commit_and_mark_and_two_commits_compare(commits):
    first, second, _ = three(commits)

    state = measure(commits).state

    store = Store(commits.root.parent / "store")
    assert {record.backfill for record in store.records()} == {state.plan.id}
    found = compare(read_named([str(store.folder)], (first, second)), first, second)
    assert (found.code, len(found.a.records)) == (Exit.REGRESSED, 5)
    assert not store.nights()


def test_report_has_every_commit_against_the_first(commits):
    names = three(commits)
    result = measure(commits)

    found = backfill_report.ratios(Store(commits.root.parent / "store"), result)

    assert found[names[0]] == {"verify": 1.0}
    assert found[names[1]]["verify"] == pytest.approx(1.05, abs=0.01)
    shown = backfill_report.as_json(result, found)
    assert json.loads(json.dumps(shown))["commits"][2]["subject"] == "takes 106.0"
    assert shown["next"].startswith(f"python -m ci compare {names[0][:12]} {names[2][:12]}")


def test_one_commit_is_compared_with_nothing(commits):
    commits.commit("alone", "us = 100.0\n")

    assert backfill_report.next_step(measure(commits, range="HEAD~1..HEAD", rounds=1)) == ""


def test_commit_that_does_not_build_is_skipped_at_its_first_process_and_told(commits):
    first = commits.commit("good", "us = 100.0\n")
    broken = commits.commit("broken", "import no_such_module\n")
    last = commits.commit("good again", "us = 101.0\n")

    result = measure(commits)

    assert result.code == Exit.PASS
    assert result.counts == {first: 5, broken: 0, last: 5}
    assert commits.started.count(broken) == 1
    assert "No module named 'no_such_module'" in result.state.skipped[broken]


@pytest.mark.parametrize("code", [2, 3, 5])
def test_commit_that_the_program_does_not_fit_is_skipped_alone(commits, code):
    first = commits.commit("good", "us = 100.0\n")
    old = commits.commit("other calls", f"do = '{code}'\n")
    last = commits.commit("good again", "us = 101.0\n")

    result = measure(commits)

    assert result.counts == {first: 5, old: 0, last: 5}
    assert "calls what this library has not" in result.state.skipped[old]


def test_nothing_that_works_is_missing_data(commits):
    for number in range(3):
        commits.commit("broken", f"import no_such_module{number}\n")

    with pytest.raises(MissingDataError, match=r"none of 3 commits could be measured: .*no_such_module"):
        measure(commits)


def test_commits_of_the_same_sources_are_measured_once(commits):
    first, _, _ = three(commits)
    commits.git("commit", "--quiet", "--allow-empty", "--message", "docs")
    docs = commits.git("rev-parse", "HEAD")

    result = measure(commits, range="HEAD~4..HEAD")

    assert docs not in commits.started
    assert list(result.state.plan.same) == [docs]
    assert first in commits.started


def test_interrupted_backfill_goes_on_and_measures_nothing_twice(commits):
    names = [commits.commit("good", "us = 100.0\n"), commits.commit("stops", "do = 'interrupt'\n")]
    folder = commits.root.parent / "out"
    state = backfill.prepare(request(commits, range="HEAD~2..HEAD", rounds=3), folder, QUIET)

    stopped = backfill.run(state, folder, QUIET, command=commits.command)
    done = sum(stopped.counts.values())
    result = backfill.run(backfill.load_state(folder), folder, QUIET, command=commits.command)

    assert stopped.code == Exit.INTERRUPTED
    assert result.code == Exit.PASS
    assert result.counts == dict.fromkeys(names, 3)
    assert len(commits.started) == 7  # one of them was interrupted
    assert done < 6


def test_backfill_whose_time_is_up_passes_and_goes_on(commits):
    names = three(commits)
    folder = commits.root.parent / "out"
    state = backfill.prepare(request(commits, rounds=2), folder, QUIET)

    paused = backfill.run(state, folder, QUIET, command=commits.command, max_minutes=0)
    result = backfill.run(backfill.load_state(folder), folder, QUIET, command=commits.command)

    assert (paused.code, sum(paused.counts.values())) == (Exit.PASS, 0)
    assert "time is up after 0 minutes; go on: python -m ci backfill --resume" in paused.messages[0]
    assert result.counts == dict.fromkeys(names, 2)


def test_resuming_needs_no_git(commits, monkeypatch):
    three(commits)
    folder = commits.root.parent / "out"
    backfill.prepare(request(commits), folder, QUIET)
    commits.root.rename(commits.root.with_name("gone"))

    assert backfill.run(backfill.load_state(folder), folder, QUIET, command=commits.command).code == Exit.PASS


def test_another_card_cannot_go_on(commits):
    three(commits)
    measure(commits)
    folder = commits.root.parent / "out"

    with pytest.raises(UsageError, match="began on GPU-1"):
        backfill.run(backfill.load_state(folder), folder, QUIET, gpus="GPU-2", command=commits.command)


def test_commit_that_worked_and_then_cannot_ends_the_backfill(commits):
    """The environment broke, not the commit."""
    names = three(commits)
    folder = commits.root.parent / "out"
    state = backfill.prepare(request(commits, rounds=2), folder, QUIET)
    backfill.run(state, folder, QUIET, command=commits.command)
    state.plan.seeds.append(1)
    for name in names:
        saved = folder / "commits" / name[:12] / "night-state.json"
        night = json.loads(saved.read_text())
        night["plan"]["seeds"].append(1)
        saved.write_text(json.dumps(night))
        (folder / "trees" / name[:12] / "recoverssm" / "__init__.py").write_text("do = '5'\n")

    with pytest.raises(BrokenEnvironmentError) as broken:
        backfill.run(state, folder, QUIET, command=commits.command)
    assert "backfill --resume" in broken.value.next_step or "doctor" in broken.value.next_step


def test_record_of_other_sources_is_set_aside(commits):
    names = three(commits)
    folder = commits.root.parent / "out"
    state = backfill.prepare(request(commits, rounds=2), folder, QUIET)
    (folder / "trees" / names[1][:12] / "recoverssm" / "more.py").write_text("")  # after it was exported

    result = backfill.run(state, folder, QUIET, command=commits.command)

    assert result.counts[names[1]] == 0
    assert "measured other sources" in result.state.skipped[names[1]]


def test_every_second_commit_ends_with_the_newest(commits):
    names = three(commits)

    assert [one.commit for one in backfill.commits_of(request(commits, every=2))] == [names[0], names[2]]


def test_folder_with_a_backfill_is_not_begun_again(commits):
    three(commits)
    measure(commits)

    with pytest.raises(UsageError, match="exists"):
        backfill.prepare(request(commits), commits.root.parent / "out", QUIET)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["main"], "two dots"),
        (["main...HEAD"], "two dots"),
        (["HEAD..no-such"], "no-such"),
        ([], "expected A..B"),
        (["--resume", "HEAD~1..HEAD"], "expected no A..B"),
        (["HEAD~1..HEAD", "--set", "no-such"], "no-such"),
    ],
)
def test_wrong_usage_is_told_and_exits_2(arguments, says, tmp_path):
    result = CliRunner().invoke(app, ["backfill", *arguments, "--out", str(tmp_path / "out")])

    assert result.exit_code == 2
    assert says in result.output
