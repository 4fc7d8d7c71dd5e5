"""The parts of a gate: what is prepared, a run cut short, a judge that says the same twice, and what policy does."""

import json
import shutil

import pytest
from typer.testing import CliRunner

from benchmarks.harness.record_files import encode
from benchmarks.harness.records import Night, commit_of
from benchmarks.harness.store import Store
from ci.__main__ import app
from ci.exits import BrokenEnvironmentError, Exit, MissingDataError, UsageError
from ci.gate import running
from ci.gate.judge import approve, command, judge
from ci.gate.outputs import FILES
from ci.gate.plan import block_of, load_plan
from ci.gate.result import encode as encode_result
from tests.ci.gates import OTHER_CARD, PROGRAM, kinds, library, slower, verdict_of

ALIASES = """version = 1
[[alias]]
old = "one"
new = "uno"
reason = "a better name for the same work"
owner = "maintainers"
date = "2026-11-29"
"""


def renamed_program(**names: str) -> str:
    """The program's list of cases with other names."""
    text = (PROGRAM / "run.py").read_text()
    for old, new in names.items():
        text = text.replace(f'"{old}"', f'"{new}"')
    return text


def ran(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def in_repository(fake_gate, monkeypatch):
    """The command line, in the fake's repository."""
    monkeypatch.setattr("ci.measuring.ROOT", fake_gate.root)
    return fake_gate


# --- prepare


def test_a_folder_holds_both_libraries_the_bases_program_and_policy_and_nothing_of_git(fake_gate):
    base = fake_gate.commit(library())
    head = fake_gate.commit(slower(5), benchmarks__extra_DOT_py="", ci__thresholds_DOT_toml="not read")
    folder = fake_gate.prepare(base, head)

    assert (folder / "base" / "recoverssm" / "__init__.py").read_text() == library()
    assert (folder / "head" / "recoverssm" / "__init__.py").read_text() == slower(5)
    assert not (folder / "head" / "benchmarks" / "extra.py").exists()
    assert (folder / "policy" / "thresholds.toml").read_text() != "not read"
    assert fake_gate.plan.policy_changes == ["benchmarks/extra.py", "ci/thresholds.toml"]
    assert not list(folder.rglob(".git"))


def test_preparing_runs_nothing_of_the_head(fake_gate):
    base = fake_gate.commit(library())
    head = fake_gate.commit("raise SystemExit(9)\n", benchmarks__run_DOT_py="raise SystemExit(9)\n")
    folder = fake_gate.prepare(base, head)
    assert (folder / "head-own" / "benchmarks" / "run.py").read_text() == "raise SystemExit(9)\n"
    assert fake_gate.plan.cases == ["one", "two"]


def test_the_base_is_where_the_branch_left_whatever_came_after(fake_gate):
    fork = fake_gate.commit(library())
    fake_gate.git("checkout", "--quiet", "-b", "branch")
    head = fake_gate.commit(slower(5))
    fake_gate.git("checkout", "--quiet", "main")
    fake_gate.commit(slower(50))

    fake_gate.prepare("main", head)
    assert (fake_gate.plan.base.commit, fake_gate.plan.distance) == (fork, 1)


def test_the_nearest_ancestor_with_an_accepted_night_is_taken_and_its_distance_told(fake_gate, tmp_path, monkeypatch):
    commits = [fake_gate.commit(slower(percent)) for percent in range(4)]
    store = tmp_path / "store"
    for name, commit, accepted in (("a", commits[0], True), ("b", commits[1], True), ("c", commits[2], False)):
        night = Night(
            id=f"20261129T120000Z-{commit[:8]}-00000{name}",
            created_utc="2026-11-29T12:00:00Z",
            case_set="pr",
            gpu_model="nvidia-h200",
            records=[],
            verdicts=[],
            accepted=accepted,
            exit_code=0,
        )
        path = store / "nights" / "nvidia-h200" / f"{night.id}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(night))

    read: list[set[str]] = []
    nights = Store.nights
    monkeypatch.setattr(Store, "nights", lambda self, *, ids: read.append(ids) or nights(self, ids=ids))
    fake_gate.prepare(commits[2], commits[3], with_data=str(store))
    assert [commit_of(name) for ids in read for name in ids] == [commits[2][:8], commits[1][:8]]
    assert (fake_gate.plan.base.commit, fake_gate.plan.distance) == (commits[1], 2)
    assert fake_gate.plan.base_found == "nearest ancestor with data"
    with pytest.raises(MissingDataError, match="base without data"):
        fake_gate.prepare(commits[2], commits[3], name="other", with_data=str(tmp_path / "nothing"))


def test_a_base_older_than_gates_is_measured_by_the_heads_program_and_an_owner_is_told(fake_gate):
    (fake_gate.root / "ci" / "gate" / "plan.py").rename(fake_gate.tmp / "plan.py")
    base = fake_gate.commit(library())
    (fake_gate.tmp / "plan.py").rename(fake_gate.root / "ci" / "gate" / "plan.py")
    head = fake_gate.commit(slower(10))

    for harness in ("base", "own", base):
        with pytest.raises(UsageError, match=f"commit {base[:12]} is older than gates"):
            fake_gate.prepare(base, head, harness=harness)
    result = fake_gate.gate(base, head)
    assert result.harness == "head"
    assert verdict_of(result, "verify").verdict == "regressed"
    assert kinds(result) == {"policy-changed"}
    assert result.exit_code == Exit.MISSING  # it casts more doubt than the regression, which is listed all the same


def test_two_old_commits_are_measured_by_a_newer_program(fake_gate):
    (fake_gate.root / "ci" / "gate" / "plan.py").rename(fake_gate.tmp / "plan.py")
    base, head = fake_gate.commit(library()), fake_gate.commit(slower(10))
    (fake_gate.tmp / "plan.py").rename(fake_gate.root / "ci" / "gate" / "plan.py")
    newer = fake_gate.commit(library())

    result = fake_gate.gate(base, head, harness="main", approved_by="maintainers")
    assert result.harness == newer[:12]
    assert (result.base.commit, result.head.commit) == (base, head)
    assert f"the program of {newer[:12]}" in result.findings[0].message
    assert result.exit_code == Exit.REGRESSED


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--case", "three*"], Exit.MISSING, "nothing selected"),
        (["--set", "nosuch"], Exit.USAGE, "expected pr"),
        (["--harness", "mine"], Exit.USAGE, "expected a commit, branch or tag"),
    ],
)
def test_what_cannot_be_prepared_is_refused_and_leaves_nothing(in_repository, tmp_path, arguments, code, message):
    in_repository.commit(library())
    done = ran("gate", "prepare", "main", "HEAD", "--out", tmp_path / "gate", *arguments)
    assert done.exit_code == code
    assert message in done.output
    assert not (tmp_path / "gate").exists()


def test_edits_that_are_not_committed_are_told(in_repository, tmp_path):
    in_repository.commit(library())
    in_repository.write("recoverssm/__init__.py", slower(10))
    in_repository.write("recoverssm/new.py", "")

    def told(head):
        return ran("gate", "prepare", "main", head, "--out", tmp_path / f"gate-{head}").output

    assert "not committed, and so not measured: recoverssm/__init__.py, recoverssm/new.py" in told("HEAD")
    assert "not committed" not in told("main")


def test_a_base_without_the_library_has_no_data(fake_gate):
    fake_gate.write("README", "nothing yet")
    fake_gate.git("add", "--all")
    fake_gate.git("commit", "--quiet", "--message", "empty")
    base = fake_gate.git("rev-parse", "HEAD")
    with pytest.raises(MissingDataError, match="no folder recoverssm"):
        fake_gate.prepare(base, fake_gate.commit(library()))


def test_a_folder_in_use_is_not_prepared_again(fake_gate):
    base = fake_gate.commit(library())
    folder = fake_gate.prepare(base, base)
    for name in (folder.name, f"{folder.name}/plan.json"):
        with pytest.raises(UsageError, match="expected an empty folder"):
            fake_gate.prepare(base, base, name=name)


def test_blocks_alternate_and_pairs_share_their_seed():
    orders = set()
    for number in range(40):
        block = block_of(7, "screen", number)
        sides = [process.side for process in block]
        orders.add(tuple(sides))
        assert block == block_of(7, "screen", number)
        assert block[0].seed == block[1].seed != block[2].seed == block[3].seed
    assert orders == {("base", "head", "head", "base"), ("head", "base", "base", "head")}
    assert block_of(7, "screen", 0) != block_of(8, "screen", 0)


# --- run


def test_a_run_that_is_cut_short_goes_on_and_finds_what_one_run_finds(fake_gate):
    base, head = fake_gate.commit(library()), fake_gate.commit(slower(10))
    whole = fake_gate.gate(base, head)
    folder = fake_gate.prepare(base, head, name="parts")

    assert fake_gate.run(folder, max_s=0.0) == Exit.INTERRUPTED
    assert kinds(judge(folder)) == {"unfinished"}
    assert judge(folder).exit_code == Exit.MISSING
    assert fake_gate.run(folder) == Exit.PASS
    sides = {process.position: process for process in block_of(7, "confirm", 3)}
    (folder / "records" / f"{sides[1].name}.json").unlink()  # as if the machine had stopped there
    fake_gate.said.truncate(0)
    state = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps(state | {"complete": False}))
    assert fake_gate.run(folder) == Exit.PASS
    assert encode_result(judge(folder)) == encode_result(whole)
    again = [name for name in (process.name for process in sides.values()) if name in fake_gate.said.getvalue()]
    assert again == [sides[0].name, sides[1].name]  # half a pair is no pair


def test_processes_that_are_not_forked_find_the_same(fake_gate):
    base, head = fake_gate.commit(library()), fake_gate.commit(slower(10))
    sizes = {"screen_blocks": 4, "confirm_blocks": 4}
    forked = fake_gate.gate(base, head, **sizes)
    folder = fake_gate.prepare(base, head, name="fresh", **sizes)
    assert fake_gate.run(folder, fork="no") == Exit.PASS
    assert encode_result(judge(folder)) == encode_result(forked)


def test_a_gate_goes_on_where_it_began_and_on_no_other_card(fake_gate, monkeypatch):
    base = fake_gate.commit(library())
    folder = fake_gate.prepare(base, base, screen_blocks=4)
    with pytest.raises(UsageError, match="expected one GPU"):
        fake_gate.run(folder, gpus="all")
    assert fake_gate.run(folder, gpus="GPU-2", max_s=0.0) == Exit.INTERRUPTED  # and nothing was measured there
    assert fake_gate.run(folder) == Exit.PASS
    next((folder / "records").glob("screen-*.json")).unlink()

    with pytest.raises(UsageError, match="was begun on GPU-1, got GPU-2"):
        fake_gate.run(folder, gpus="GPU-2")
    monkeypatch.setattr(running, "find_gpus", lambda: [OTHER_CARD])
    with pytest.raises(UsageError, match="was begun on GPU-1, got GPU-2"):
        fake_gate.run(folder)


@pytest.mark.parametrize("name", ["head/recoverssm/__init__.py", "base/benchmarks/run.py"])
def test_a_folder_that_was_not_copied_whole_is_refused(fake_gate, name):
    folder = fake_gate.prepare(fake_gate.commit(library()), fake_gate.commit(slower(1)))
    (folder / name).write_text("")
    with pytest.raises(BrokenEnvironmentError, match="is not what was prepared"):
        fake_gate.run(folder)


def test_another_policy_than_was_prepared_is_refused(fake_gate):
    base = fake_gate.commit(library())
    folder = fake_gate.prepare(base, base)
    with (folder / "policy" / "thresholds.toml").open("a") as file:
        file.write("# looser\n")
    with pytest.raises(UsageError, match="policy: is not what was prepared"):
        judge(folder)


def test_what_is_no_gate_folder_is_refused(tmp_path):
    for part in ("run", "judge"):
        done = ran("gate", part, tmp_path)
        assert done.exit_code == Exit.USAGE
        assert "next: python -m ci gate prepare" in done.output


def test_an_architecture_that_nobody_knows_is_no_gate_without_figures(fake_gate):
    base = fake_gate.commit(library())
    folder = fake_gate.prepare(base, base, archs=["sm_90", "sm_1"])
    for _ in range(2):
        with pytest.raises(UsageError, match="sm_1: no limits"):
            fake_gate.run(folder)


# --- judge


def test_the_line_that_repeats_a_gate_has_its_blocks_and_is_safe_to_copy(fake_gate):
    base = fake_gate.commit(library())
    fake_gate.prepare(base, base, screen_blocks=4)
    sides = f"--base {base[:12]} --head {base[:12]} --set pr"
    assert command(fake_gate.plan) == f"python -m ci gate {sides} --blocks 4 --seed 7"
    assert "--case 'x; ls' --blocks" in command(fake_gate.plan, "x; ls")
    assert command(fake_gate.plan, "one", "sm_90").endswith("--case one --blocks 4 --arch sm_90 --seed 7")


def test_a_gate_judged_elsewhere_gives_the_same_bytes(fake_gate, tmp_path):
    folder = fake_gate.prepare(fake_gate.commit(library()), fake_gate.commit(slower(10)))
    fake_gate.run(folder)
    copy = tmp_path / "somewhere" / "else"
    shutil.copytree(folder, copy)

    assert ran("gate", "judge", folder).exit_code == ran("gate", "judge", copy).exit_code == Exit.REGRESSED
    for name in FILES:
        assert (folder / name).read_bytes() == (copy / name).read_bytes(), name
    before = (folder / "verdict.json").read_bytes()
    ran("gate", "judge", folder)
    assert (folder / "verdict.json").read_bytes() == before
    assert str(tmp_path).encode() not in before


def test_the_command_does_all_of_it_and_its_json_is_the_verdict(in_repository, tmp_path):
    in_repository.commit(library())
    in_repository.git("checkout", "--quiet", "-b", "branch")
    in_repository.commit(slower(10))
    out = tmp_path / "out"
    done = ran("gate", "--base", "main", "--out", out, "--seed", "7", "--json")
    assert done.exit_code == Exit.REGRESSED
    assert json.loads((out / "verdict.json").read_text())["exit_code"] == Exit.REGRESSED
    assert '"verdict": "regressed"' in done.stdout


def test_what_a_gate_would_do_is_told_without_doing_it(in_repository, tmp_path):
    base = in_repository.commit(library())
    in_repository.git("checkout", "--quiet", "-b", "branch")
    in_repository.commit(slower(10))
    arguments = ("--out", tmp_path / "out", "--store", tmp_path / "store", "--gpus", "cpu", "--json")
    facts = json.loads(ran("gate", "--base", "main", "--dry-run", *arguments).stdout)
    assert facts["base"].startswith(base[:12])
    assert (facts["distance"], facts["screen_processes"], facts["confirm_processes_at_most"]) == (1, 4, 4)
    assert "num_cases" not in json.loads(ran("gate", "--base", "main", "--estimate", *arguments).stdout)
    assert "kimi_k3_tp8_b1_t8_a3.84_fp32" in ran("gate", "--list").stdout
    assert not (tmp_path / "out").exists()


def test_the_command_says_how_to_go_on(in_repository, tmp_path):
    in_repository.commit(library())
    done = ran("gate", "--base", "main", "--out", tmp_path / "out", "--max-seconds", "0")
    assert done.exit_code == Exit.INTERRUPTED
    assert f"go on: python -m ci gate run {tmp_path / 'out'}" in done.output
    assert ran("gate", "--out", tmp_path / "out", "--resume").exit_code == Exit.PASS
    assert ran("gate").exit_code == ran("gate", "--resume", "--base", "main").exit_code == Exit.USAGE


# --- policy


def test_a_head_that_changes_its_judge_is_told_and_cleared_by_an_owner(fake_gate):
    base = fake_gate.commit(library())
    head = fake_gate.commit(library(NOISE=0.0031), ci__thresholds_DOT_toml="limits = 'none'")
    result = fake_gate.gate(base, head)
    assert kinds(result) == {"policy-changed"}
    assert "ci/thresholds.toml" in result.findings[0].message
    assert result.exit_code == Exit.MISSING

    folder = fake_gate.tmp / "gate"
    approve(folder, "maintainers")
    cleared = judge(folder)
    assert cleared.exit_code == Exit.PASS
    assert cleared.findings[0].cleared_by == load_plan(folder).approved_by == "maintainers"


def test_a_vanished_case_is_missing(fake_gate):
    base = fake_gate.commit(library())
    head = fake_gate.commit(library(), benchmarks__run_DOT_py=renamed_program(one="uno"))
    result = fake_gate.gate(base, head, approved_by="maintainers")
    assert "case-vanished" in kinds(result)
    assert [finding.case for finding in result.findings if finding.kind == "case-vanished"] == ["one"]
    assert result.exit_code == Exit.MISSING


def test_a_case_that_an_approved_head_renames_goes_on(fake_gate):
    base = fake_gate.commit(library())
    head = fake_gate.commit(slower(10), benchmarks__run_DOT_py=renamed_program(one="uno"), ci__aliases_DOT_toml=ALIASES)
    result = fake_gate.gate(base, head)
    assert "case-vanished" in kinds(result)

    approved = fake_gate.gate(base, head, name="approved", approved_by="maintainers")
    assert "case-vanished" not in kinds(approved)
    assert verdict_of(approved, "verify", case="uno").verdict == "regressed"


def test_a_renamed_case_is_the_same_series_where_each_side_measures_itself(fake_gate):
    base = fake_gate.commit(library())
    head = fake_gate.commit(slower(10), benchmarks__run_DOT_py=renamed_program(one="uno"), ci__aliases_DOT_toml=ALIASES)
    result = fake_gate.gate(base, head, harness="own", approved_by="maintainers")
    assert verdict_of(result, "verify", case="uno").verdict == "regressed"
    assert not any(v.verdict == "missing" for v in result.verdicts)


def test_without_an_alias_the_old_name_is_missing_where_each_side_measures_itself(fake_gate):
    base = fake_gate.commit(library())
    head = fake_gate.commit(library(NOISE=0.0031), benchmarks__run_DOT_py=renamed_program(one="uno"))
    result = fake_gate.gate(base, head, harness="own", approved_by="maintainers")
    assert verdict_of(result, "verify", case="one").verdict == "missing"
    assert verdict_of(result, "verify", case="uno").verdict == "new"
    assert result.exit_code == Exit.MISSING


def test_a_known_regression_of_the_base_excuses_the_head(fake_gate):
    entry = """version = 1
[[regression]]
metric = "device_us"
op = "verify"
provider = "recoverssm"
case = "*"
gpu_model = "nvidia-*"
expected_pct = [8.0, 12.0]
reason = "the price of a check that everybody wants"
owner = "maintainers"
date = "2026-11-01"
expires = "2027-03-01"
"""
    fake_gate.write("ci/known-regressions.toml", entry)
    base = fake_gate.commit(library())
    result = fake_gate.gate(base, fake_gate.commit(slower(10)))
    verify = verdict_of(result, "verify")
    assert (verify.verdict, verify.known, verify.fails) == ("regressed", "acknowledged", False)
    assert result.exit_code == Exit.PASS
