"""What `ci gate prepare` takes for base and head, lays down for a machine without git, and refuses."""

import pytest

from benchmarks.harness.ids import commit_of
from benchmarks.harness.record_files import encode
from benchmarks.harness.records import Night
from benchmarks.harness.store import Store
from ci.exits import Exit, MissingDataError, UsageError
from tests.ci.command_line import invoke
from tests.ci.gates import kinds, library, slower, verdict_of


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
    done = invoke("gate", "prepare", "main", "HEAD", "--out", tmp_path / "gate", *arguments)
    assert done.exit_code == code
    assert message in done.output
    assert not (tmp_path / "gate").exists()


def test_edits_that_are_not_committed_are_told(in_repository, tmp_path):
    in_repository.commit(library())
    in_repository.write("recoverssm/__init__.py", slower(10))
    in_repository.write("recoverssm/new.py", "")

    def told(head):
        return invoke("gate", "prepare", "main", head, "--out", tmp_path / f"gate-{head}").output

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
