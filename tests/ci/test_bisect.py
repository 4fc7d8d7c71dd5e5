"""Bisections of small repositories: a commit that slows an op, one that does not build, one that is noisy."""

import io
import json
import math

import pytest
from rich.console import Console
from typer.testing import CliRunner

from ci.__main__ import app
from ci.commits import bisect, bisect_report
from ci.commits.bisect_state import load
from ci.exits import Exit, MissingDataError, UsageError
from ci.gate import running
from ci.trees import Repository
from tests.ci.gates import library, slower


def history(fake_gate, *libraries):
    """GOOD, then a commit per library; the range as a request."""
    good = fake_gate.commit(library())
    names = [fake_gate.commit(text) for text in libraries]
    return good, names


def request(good, bad, **changes):
    """Fewer blocks than by default: the noise of these libraries is small, and hundreds of processes are started."""
    return bisect.Request(good, bad, **{"seed": 7, "blocks": (4, 5), **changes})


def search(fake_gate, good, bad, out="bisect", **changes):
    repository, folder = Repository(fake_gate.root), fake_gate.tmp / out
    state = bisect.begin(request(good, bad, **changes), folder, repository)
    return go_on(fake_gate, state, folder)


def go_on(fake_gate, state, folder, **options):
    repository = Repository(fake_gate.root)
    return bisect.run(state, folder, repository, running.Options(**options), Console(file=fake_gate.said, width=200))


def steps_allowed(count):
    return math.ceil(math.log2(count)) + 2


def fast(number):
    """Libraries that take as long as GOOD and differ from it in text."""
    return library(READ_BYTES=500) + f"# {number}\n"


def slow(number, percent=10):
    return slower(percent) + f"# {number}\n"


@pytest.mark.parametrize("first_slow", [pytest.param(0, marks=pytest.mark.long), 5])
def test_commit_that_slows_an_op_is_found_within_the_steps(fake_gate, first_slow):
    good, names = history(fake_gate, *(slow(n) if n >= first_slow else fast(n) for n in range(8)))

    result = search(fake_gate, good, names[-1], blocks=(6, 12))

    assert bisect_report.as_json(result)["first_slower"] == names[first_slow]
    assert result.found.num_steps <= steps_allowed(8)
    assert result.state.series[1] == "verify"
    assert result.state.steps[names[-1]].change_pct == pytest.approx(10, abs=1)


def test_commits_that_do_not_build_are_passed_over_and_cost_no_step(fake_gate):
    broken = "import no_such_module\n"
    good, names = history(fake_gate, fast(0), fast(1), fast(2), broken, slow(4), slow(5), slow(6), slow(7))

    result = search(fake_gate, good, names[-1])

    found = bisect_report.as_json(result)
    assert found["first_slower"] is None
    assert (found["after"], found["up_to"], found["open"]) == (names[2], names[4], [names[3]])
    step = result.state.steps[names[3]]
    assert (step.answer, step.is_measured) == ("skipped", False)
    assert "no_such_module" in step.reason
    shown = show(result)
    assert f"between {names[2][:12]}" in shown
    assert "no_such_module" in shown


@pytest.mark.long
def test_commit_before_the_slow_one_that_does_not_build_is_in_nobodys_way(fake_gate):
    good, names = history(fake_gate, fast(0), "import no_such_module\n", fast(2), slow(3), slow(4))

    assert bisect_report.as_json(search(fake_gate, good, names[-1]))["first_slower"] == names[3]


def test_noisy_commit_stays_undecided_and_is_in_the_answer(fake_gate):
    noisy = library(TIMES_US={"verify": 105.0, "commit": 400.0}, NOISE=0.12)
    good, names = history(fake_gate, fast(0), fast(1), noisy, slow(3), slow(4), slow(5))

    result = search(fake_gate, good, names[-1])

    found = bisect_report.as_json(result)
    assert result.state.steps[names[2]].answer == "unclear"
    assert (found["first_slower"], found["after"], found["up_to"]) == (None, names[1], names[3])
    assert result.found.num_steps <= steps_allowed(6)


def test_bad_that_is_not_slower_ends_at_once_and_says_what_was_found(fake_gate):
    good, names = history(fake_gate, *(fast(n) for n in range(6)))

    with pytest.raises(MissingDataError, match=r"not shown to be slower than .*unchanged"):
        search(fake_gate, good, names[-1])


def test_good_that_cannot_be_measured_ends_at_once(fake_gate):
    good = fake_gate.commit("import no_such_module\n")
    names = [fake_gate.commit(slow(n)) for n in range(4)]

    with pytest.raises(MissingDataError, match="no_such_module"):
        search(fake_gate, good, names[-1])


def test_commits_of_known_sources_are_not_measured(fake_gate):
    """The sixth commit has GOOD's library again, and the third one the fifth's."""
    good, names = history(fake_gate, fast(0), fast(1), slow(2), slow(2), slow(2), slow(5))

    result = search(fake_gate, good, names[-1])

    assert bisect_report.as_json(result)["first_slower"] == names[2]
    copied = [step for step in result.state.steps.values() if not step.is_measured]
    assert all("the same sources as" in step.reason for step in copied)
    assert result.found.num_steps + len(copied) == len(result.state.steps)


@pytest.mark.long
def test_change_of_bytes_is_found_as_a_change_of_time_is(fake_gate):
    good, names = history(fake_gate, *(library(CACHE_BYTES=1000 + (n >= 2)) + f"# {n}\n" for n in range(4)))

    result = search(fake_gate, good, names[-1])

    assert bisect_report.as_json(result)["first_slower"] == names[2]
    assert result.state.series[0] == "cache_bytes"


def test_change_of_a_compiled_figure_is_found_though_gates_list_only_those_that_changed(fake_gate):
    good, names = history(fake_gate, *(library(LAUNCHES=1 + (n >= 2)) + f"# {n}\n" for n in range(4)))

    result = search(fake_gate, good, names[-1])

    assert bisect_report.as_json(result)["first_slower"] == names[2]
    assert (result.state.series[0], result.state.gpu_model) == ("launches", "sm_90")


@pytest.mark.long
def test_filters_choose_what_is_followed(fake_gate):
    def both(n):
        return (
            library(TIMES_US={"verify": 110.0 if n >= 3 else 100.0, "commit": 440.0 if n >= 1 else 400.0}) + f"# {n}\n"
        )

    good, names = history(fake_gate, *(both(n) for n in range(5)))

    assert bisect_report.as_json(search(fake_gate, good, names[-1], op="commit"))["first_slower"] == names[1]
    assert bisect_report.as_json(search(fake_gate, good, names[-1], "other", op="verify"))["first_slower"] == names[3]


def test_what_else_is_slower_is_told(fake_gate):
    good, names = history(fake_gate, library(TIMES_US={"verify": 120.0, "commit": 480.0}))

    result = search(fake_gate, good, names[-1])

    assert len(result.state.others) >= 1
    assert "also slower in BAD: device_us/" in show(result)


def test_bisection_whose_time_is_up_goes_on_where_it_was(fake_gate):
    good, names = history(fake_gate, *(slow(n) if n >= 2 else fast(n) for n in range(4)))
    folder = fake_gate.tmp / "bisect"
    state = bisect.begin(request(good, names[-1]), folder, Repository(fake_gate.root))

    paused = go_on(fake_gate, state, folder, max_s=0.0)
    done = go_on(fake_gate, load(folder), folder)
    measured = len(list(folder.glob("steps/*/records/*.json")))
    again = go_on(fake_gate, load(folder), folder)

    assert (paused.code, paused.found) == (Exit.INTERRUPTED, None)
    assert "bisect --resume" in paused.messages[0]
    assert bisect_report.as_json(done)["first_slower"] == bisect_report.as_json(again)["first_slower"] == names[2]
    assert len(list(folder.glob("steps/*/records/*.json"))) == measured


def test_prepared_bisection_needs_no_git(fake_gate):
    good, names = history(fake_gate, *(slow(n) if n >= 1 else fast(n) for n in range(3)))
    folder, repository = fake_gate.tmp / "bisect", Repository(fake_gate.root)
    state = bisect.begin(request(good, names[-1]), folder, repository)
    bisect.prepare_all(state, folder, repository, lambda text: None)
    fake_gate.root.rename(fake_gate.root.with_name("gone"))

    result = go_on(fake_gate, load(folder), folder)

    assert bisect_report.as_json(result)["first_slower"] == names[1]


def test_every_gate_is_measured_by_one_program(fake_gate):
    """GOOD is older than gates, so it is BAD's, also where a commit between them has its own."""
    (fake_gate.root / "ci" / "gate" / "plan.py").unlink()
    good = fake_gate.commit(library())
    names = [fake_gate.commit(slow(n), ci__gate__plan_DOT_py="", other=str(n)) for n in range(3)]

    result = search(fake_gate, good, names[-1])

    plans = [json.loads(path.read_text()) for path in (fake_gate.tmp / "bisect").glob("steps/*/plan.json")]
    assert len(plans) > 1
    assert {plan["harness"] for plan in plans} == {names[-1][:12]}
    assert bisect_report.as_json(result)["first_slower"] == names[0]


def test_folder_with_a_bisection_is_not_begun_again(fake_gate):
    good, names = history(fake_gate, slow(0))
    search(fake_gate, good, names[-1])

    with pytest.raises(UsageError, match="exists"):
        search(fake_gate, good, names[-1])


def test_json_is_strict_and_has_every_step(fake_gate):
    good, names = history(fake_gate, fast(0), slow(1))

    found = json.loads(json.dumps(bisect_report.as_json(search(fake_gate, good, names[-1])), allow_nan=False))

    assert {one["commit"]: one["answer"] for one in found["steps"]} == {names[0]: "good", names[1]: "bad"}
    assert found["max_steps"] == 3


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["HEAD~1"], "expected GOOD and BAD"),
        (["HEAD~1", "no-such"], "no-such"),
        (["HEAD", "HEAD~1"], "does not descend"),
        (["--resume", "HEAD~1", "HEAD"], "expected no commits"),
        (["--resume"], "bisect.json"),
    ],
)
def test_wrong_usage_is_told_and_exits_2(arguments, says, tmp_path):
    result = CliRunner().invoke(app, ["bisect", *arguments, "--out", str(tmp_path / "out")])

    assert result.exit_code == 2
    assert says in result.output


def show(result):
    file = io.StringIO()
    bisect_report.show(result, Console(file=file, width=200))
    return file.getvalue()
