import os
import subprocess
from pathlib import Path

import pytest

from benchmarks.harness.environment import source_hash
from ci.exits import MissingDataError, UsageError
from ci.trees import Repository, clean_env, export_tree, prove_import


class Commits:
    """A small repository whose library is one module; ``commit`` writes files and returns the commit."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()
        self.git("init", "--quiet", "--initial-branch", "main")

    def git(self, *arguments: str) -> str:
        settings = ("-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false")
        command = ["git", *settings, *arguments]
        return subprocess.run(command, cwd=self.root, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self, message: str, **files: str) -> str:
        for name, text in files.items():
            path = self.root / name.replace("__", "/").replace("_py", ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def commits(tmp_path):
    return Commits(tmp_path / "repository")


def library(text: str, program: str = "") -> dict[str, str]:
    return {"recoverssm__init_py": text, "benchmarks__run_py": program}


def test_the_base_of_a_branch_is_where_it_left_and_its_distance_counts_the_branch_alone(commits):
    fork = commits.commit("fork", **library("a = 1\n"))
    commits.git("checkout", "--quiet", "-b", "branch")
    commits.commit("first", **library("a = 2\n"))
    head = commits.commit("second", **library("a = 3\n"))
    commits.git("checkout", "--quiet", "main")
    commits.commit("main goes on", **library("a = 4\n"))

    repository = Repository(commits.root)
    assert repository.merge_base("main", repository.resolve("branch")) == fork
    assert repository.distance(fork, head) == 2
    assert repository.subject(head) == "second"


def test_commits_between_two_are_told_oldest_first(commits):
    first, second, third = (commits.commit(name, **library(name)) for name in ("1", "2", "3"))

    assert Repository(commits.root).between(first, third) == [second, third]


def test_histories_without_a_common_commit_have_no_base(commits):
    commits.commit("main", **library("a = 1\n"))
    commits.git("checkout", "--quiet", "--orphan", "other")
    commits.commit("other", **library("a = 2\n"))
    with pytest.raises(MissingDataError, match="nothing in common"):
        Repository(commits.root).merge_base("main", "other")


@pytest.mark.parametrize("ref", ["no-such-branch", "--all", "HEAD:recoverssm"])
def test_what_names_no_commit_is_refused(commits, ref):
    commits.commit("only", **library("a = 1\n"))
    with pytest.raises(UsageError, match="expected a commit, branch or tag"):
        Repository(commits.root).resolve(ref)


def test_a_tree_has_the_commits_library_beside_anothers_program_and_nothing_of_the_working_tree(commits, tmp_path):
    base = commits.commit("base", **library("a = 1\n", "old"))
    head = commits.commit("head", **library("a = 2\n", "new"), tests__test_py="assert True\n")
    (commits.root / "recoverssm" / "init.py").write_text("a = 3  # not committed\n")
    tree = export_tree(Repository(commits.root), head, tmp_path / "tree", program_of=base)

    assert (tree.folder / "recoverssm" / "init.py").read_text() == "a = 2\n"
    assert (tree.folder / "benchmarks" / "run.py").read_text() == "old"
    assert not (tree.folder / "tests").exists()
    assert tree.source_hash == source_hash(tree.folder / "recoverssm")
    assert Repository(commits.root).changed(base, head, ["benchmarks"]) == ["benchmarks/run.py"]


def test_a_commit_without_the_library_has_nothing_to_measure(commits, tmp_path):
    commit = commits.commit("docs alone", README_py="text")
    with pytest.raises(MissingDataError, match="no folder recoverssm"):
        export_tree(Repository(commits.root), commit, tmp_path / "tree")


@pytest.mark.parametrize("target", ["/etc/passwd", "../../elsewhere"])
def test_a_link_that_leads_out_of_a_commit_is_refused(commits, tmp_path, target):
    (commits.root / "recoverssm").mkdir()
    (commits.root / "recoverssm" / "link").symlink_to(target)
    commit = commits.commit("a link")
    with pytest.raises(MissingDataError, match=f"{commit[:12]} cannot be laid out: .*link"):
        export_tree(Repository(commits.root), commit, tmp_path / "tree")


def make_package(folder: Path, text: str) -> Path:
    (folder / "recoverssm").mkdir(parents=True)
    (folder / "recoverssm" / "__init__.py").write_text(text)
    return folder


def test_a_package_elsewhere_on_the_path_does_not_come_before_the_tree(tmp_path):
    own, other = make_package(tmp_path / "own", ""), make_package(tmp_path / "other", "")
    env = {**os.environ, "PYTHONPATH": str(other), "PYTHONSAFEPATH": "1"}
    assert prove_import(own, env) is None
    assert not {"PYTHONSAFEPATH", "PYTHONPATH"} & clean_env(env).keys()


def test_folders_of_the_path_with_other_packages_stay(tmp_path):
    ours, others = make_package(tmp_path / "ours", ""), tmp_path / "others"
    (others / "msgspec").mkdir(parents=True)
    path = os.pathsep.join((str(ours), "", ".", str(others)))
    assert clean_env({"PYTHONPATH": path, "HOME": "/h"}) == {"PYTHONPATH": str(others), "HOME": "/h"}


def test_an_installed_package_in_place_of_the_trees_is_named(tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    installed = make_package(tmp_path / "installed", "")
    monkeypatch.setattr("ci.trees.clean_env", dict)  # as if the interpreter found it by itself
    reason = prove_import(tmp_path / "empty", {**os.environ, "PYTHONPATH": str(installed)})
    assert reason is not None
    assert f"imported from {installed / 'recoverssm'}" in reason


def test_a_library_that_does_not_import_is_told_in_its_own_words(tmp_path):
    broken = make_package(tmp_path / "broken", "import no_such_module\n")
    assert "No module named 'no_such_module'" in str(prove_import(broken, os.environ))


@pytest.mark.parametrize("text", ["raise SystemExit(0)\n", "import os\nos._exit(0)\n"])
def test_a_library_that_ends_the_process_that_imports_it_does_not_import(tmp_path, text):
    assert "ends the process" in str(prove_import(make_package(tmp_path / "quitter", text), os.environ))
