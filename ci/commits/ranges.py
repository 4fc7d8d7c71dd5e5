"""The commits of a range, each in a folder of its own, so that they can be measured where there is no git."""

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from benchmarks.harness.environment import source_hash
from ci.exits import MissingDataError, UsageError
from ci.trees import Repository, export_tree

TREES = "trees"
NAME_DIGITS = 12  # of a commit, in names of folders


class Commit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One commit of a range; ``missing`` says why there is nothing to measure."""

    commit: str
    subject: str
    source_hash: str = ""
    missing: str = ""

    @property
    def short(self) -> str:
        return self.commit[:NAME_DIGITS]

    def __str__(self) -> str:
        return f"{self.short} {self.subject}"


def parse_range(text: str) -> tuple[str, str]:
    """``A..B`` as two names. Raises UsageError."""
    base, dots, head = text.partition("..")
    if not dots or not base or not head or head.startswith("."):
        raise UsageError(f"expected A..B, two commits with two dots between them, got {text!r}", "main~10..main")
    return base, head


def commits_between(repository: Repository, base: str, head: str) -> list[str]:
    """Commits after ``base`` up to ``head`` along the first parents, oldest first.

    Raises:
        UsageError: ``head`` does not descend from ``base``.
        MissingDataError: they are the same.
    """
    first, last = repository.resolve(base), repository.resolve(head)
    if first == last:
        raise MissingDataError(f"{base}..{head}: no commits: both are {first[:NAME_DIGITS]}")
    if repository.merge_base(first, last) != first:
        raise UsageError(f"{base}..{head}: {head} does not descend from {base}", f"git merge-base {base} {head}")
    return repository.between(first, last)


def thin(commits: Sequence[str], every: int) -> list[str]:
    """Every N-th commit, the newest always among them."""
    return list(commits[::-1][::every][::-1])


def tree_of(folder: Path, commit: Commit) -> Path:
    """Where ``export`` put its files."""
    return folder / TREES / commit.short


def export(
    repository: Repository,
    commits: Sequence[str],
    folder: Path,
    *,
    program_of: str | None,
    say: Callable[[str], None] = lambda text: None,
) -> list[Commit]:
    """Write each commit's library, and beside it the measuring program of ``program_of`` or, when None, its own."""
    exported = []
    for number, name in enumerate(commits, start=1):
        commit = Commit(name, repository.subject(name))
        say(f"tree {number} of {len(commits)}: {commit}")
        tree = tree_of(folder, commit)
        try:
            if not (tree / "recoverssm").is_dir():
                export_tree(repository, name, tree, program_of=program_of)
            if not (tree / "benchmarks").is_dir():
                raise MissingDataError(f"commit {commit.short} has no folder benchmarks: nothing to measure with")
            exported.append(msgspec.structs.replace(commit, source_hash=source_hash(tree / "recoverssm")))
        except MissingDataError as error:
            exported.append(msgspec.structs.replace(commit, missing=str(error)))
    return exported
